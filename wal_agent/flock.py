"""Does a living process hold a file's flock? The kernel frees it at any kind of death: a proof of life."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Literal

FlockState = Literal["held", "free", "unknown"]
Life = Literal["alive", "dead", "unknown"]  # of the process that is to hold it


_LOOKS = (0.01, 0.03, 0.1, 0.2)  # seconds; who only looks (`flock_state`) holds the lock for some microseconds


def try_lock(fd: int) -> bool:
    """Take the lock of an open file for this process's life; False where a living process has it."""
    for pause in (*_LOOKS, 0.0):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(pause)
    return False


def flock_state(path: Path | str) -> FlockState:
    """`unknown`: not there, not a plain file of this user's, or not readable. Never blocks, follows no link; the path
    may come from a bucket, so what it names is only ever opened for reading."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return "unknown"
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid():
            return "unknown"
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError:
        return "unknown"
    finally:
        os.close(fd)
    return "free"

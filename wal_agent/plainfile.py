"""Opens files that somebody else may have put there: never a link, a FIFO that would be waited for, or a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_plain(path: Path | str) -> BinaryIO:
    """A regular file, to be read. OSError: there is none, or something else."""
    fd = os.open(path, READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_plain(path: Path | str, most: int | None = None) -> bytes | None:
    """A regular file's bytes; None for anything else, for one that cannot be opened, and for one with more than `most`
    bytes."""
    try:
        file = open_plain(path)
    except OSError:
        return None
    with file:
        data = file.read() if most is None else file.read(most + 1)
    return data if most is None or len(data) <= most else None

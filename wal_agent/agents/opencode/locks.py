"""Locks that dead OpenCode processes left.

OpenCode holds one while it installs its plugin package in the background, and leaves it there when it ends meanwhile,
which is nearly always. It believes in such a lock for 60 s; and with a plugin, as in our runs, its start waits for it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.opencode import place
from wal_agent.plainfile import read_plain

YOUNG = 5.0  # seconds in which a lock may still get the words that say whose it is


def clear_dead_locks(env: Env) -> None:
    """Remove those whose holder is dead. Never fails."""
    with suppress(OSError):
        for lock in list((place.state_home(env) / "locks").glob("*.lock")):
            if _dead(lock):
                _remove(lock)


def _remove(lock: Path) -> None:
    """By another name, so that a new holder's lock is not taken for the dead one's."""
    grave = lock.with_name(f"{lock.name}.{uuid.uuid4().hex}")
    with suppress(OSError):
        lock.rename(grave)
        if _dead(grave):
            shutil.rmtree(grave, ignore_errors=True)
        else:
            grave.rename(lock)


def _dead(lock: Path) -> bool:
    """Held by no living process of this machine."""
    said = read_plain(lock / "meta.json", 4096)
    if said is None:
        return not (lock / "meta.json").exists() and time.time() - lock.stat().st_mtime > YOUNG
    try:
        meta = json.loads(said)
        host, pid = meta["hostname"], int(meta["pid"])
    except (ValueError, LookupError, TypeError):
        return False
    return host == socket.gethostname() and pid > 0 and not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

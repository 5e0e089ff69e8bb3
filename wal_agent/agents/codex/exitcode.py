"""A command's exit code, which the after-hook does not carry: Codex writes it to the session file just before."""

from __future__ import annotations

import os
import stat

from wal_agent.agents.session_files import decode_json

_TAILS = (1 << 17, 1 << 22)  # bytes from the end: the line is among the last, behind what other calls printed meanwhile


def read_exit_code(path: str | None, call_id: str) -> int | None:
    """None: it cannot be told."""
    if not path:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        about = os.fstat(fd)
        for tail in _TAILS if stat.S_ISREG(about.st_mode) else ():
            found = _exit_code_in(os.pread(fd, tail, max(0, about.st_size - tail)), call_id)
            if found is not None or tail >= about.st_size:
                return found
    except OSError:
        pass
    finally:
        os.close(fd)
    return None


def _exit_code_in(data: bytes, call_id: str) -> int | None:
    wanted = call_id.encode()
    for line in reversed(data.split(b"\n")):
        if wanted not in line or b'"item_completed"' not in line:
            continue
        try:
            item = decode_json(line)["payload"]["item"]
            if item["type"] == "CommandExecution" and item["id"] == call_id:
                return int(item["exit_code"])
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return None

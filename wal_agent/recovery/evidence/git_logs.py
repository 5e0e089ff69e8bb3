"""Reads reflogs by hand: how far one went before a command, and what was added to it since."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from wal_agent.evidence.git_repo import Repo, UnreadableRepo, read_from

MOST_LOG = 256 << 10  # bytes that a reflog may have grown by
_END = 16 << 10  # bytes of its end that are read
_TAIL = 1024  # bytes of it that tell whether it is still the same one


@dataclass(frozen=True, slots=True)
class LogMark:
    """How far a reflog goes, with a hash of its end; `last`: where its last line begins, with a hash of what is in
    front of that."""

    size: int
    end: str
    last: int
    front: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """One movement of a ref."""

    old: str
    new: str
    message: str


_LINE = re.compile(rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64}) [^\n]*?> -?\d+ [+-]\d+(?:\t([^\n]*))?")


def mark_log(repo: Repo, ref: str) -> LogMark:
    """Of a reflog as it is now; sizes of 0 where there is none."""
    found = read_from(repo.at(ref), f"logs/{ref}", -_END, _END)
    if found is None or not found[1]:
        return LogMark(0, "", 0, "")
    data, size = found
    if not data.endswith(b"\n"):
        raise UnreadableRepo  # a line is being written, or was torn
    cut = data.rfind(b"\n", 0, -1) + 1
    if not cut and size > len(data):
        raise UnreadableRepo
    return LogMark(size, _digest(data), size - len(data) + cut, _digest(data[:cut]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data[-_TAIL:]).hexdigest()[:16]


def read_log_since(repo: Repo, ref: str, then: LogMark) -> tuple[LogLine, ...] | None:
    """The lines that a reflog got since; None where it is not the same one any more."""
    start = max(0, then.size - _END)
    found = read_from(repo.at(ref), f"logs/{ref}", start, MOST_LOG)
    if found is None:
        return () if not then.size else None
    data, size = found
    old, new = data[: then.size - start], data[then.size - start :]
    if size < then.size or (then.size and _digest(old) != then.end) or (new and not new.endswith(b"\n")):
        return None
    lines = []
    for text in new.splitlines():
        match = _LINE.fullmatch(text)
        if match is None:
            return None
        lines.append(LogLine(match[1].decode(), match[2].decode(), (match[3] or b"").decode("utf-8", "replace")))
    return tuple(lines)


def lost_last_line(repo: Repo, ref: str, then: LogMark) -> bool:
    """Whether a reflog is what it was without its last line."""
    now = mark_log(repo, ref)
    return bool(then.size) and (now.size, now.end) == (then.last, then.front if then.last else "")

"""Claude Code's session file: JSON lines that point at the one before them by `parentUuid`.

One line for each block of a message: a call and its result are lines of their own. Lines of other types hold titles,
modes and queues; they are kept as they are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wal_agent.agents.session_files import Json, Line, encode_json, records

CHAIN = ("user", "assistant", "attachment", "system")
EPOCH = "1970-01-01T00:00:00.000Z"


@dataclass(slots=True)
class Entry:
    """One line. A line that is not touched keeps its bytes."""

    value: Json
    line: Line

    @property
    def kind(self) -> str:
        return str(self.value.get("type", ""))

    @property
    def uuid(self) -> str:
        """Of a line in the conversation's chain; empty for any other."""
        found = self.value.get("uuid")
        main = self.kind in CHAIN and not self.value.get("isSidechain")
        return found if main and isinstance(found, str) else ""

    @property
    def time(self) -> str:
        found = self.value.get("timestamp")
        return found if isinstance(found, str) else ""

    @property
    def message(self) -> Json:
        found = self.value.get("message")
        return found if isinstance(found, dict) else {}

    def blocks(self, kind: str) -> Iterator[Json]:
        content = self.message.get("content")
        for block in content if isinstance(content, list) else []:
            if isinstance(block, dict) and block.get("type") == kind:
                yield block

    def calls(self) -> Iterator[Json]:
        if self.kind == "assistant" and self.uuid:
            yield from (b for b in self.blocks("tool_use") if isinstance(b.get("id"), str))

    def results(self) -> Iterator[Json]:
        if self.kind == "user" and self.uuid:
            yield from (b for b in self.blocks("tool_result") if isinstance(b.get("tool_use_id"), str))

    def change(self, value: Json) -> None:
        self.value = value
        self.line = encode_json(value)


def new_entry(value: Json) -> Entry:
    return Entry(value, encode_json(value))


@dataclass(slots=True)
class Session:
    entries: list[Entry] = field(default_factory=list)
    junk: int = 0  # lines that are not JSON objects


def load_session(data: bytes) -> Session:
    session = Session()
    for record, line in records(data):
        if record is None:
            session.junk += 1
        else:
            session.entries.append(Entry(record, line))
    return session


def dump_session(session: Session) -> bytes:
    return b"".join(part for e in session.entries for part in (e.line, b"\n"))


def conversation_end(session: Session) -> str | None:
    """The line that the conversation goes on from: the last of the chain, or where the user rewound to after it."""
    rewound: str | None = None
    for e in reversed(session.entries):
        if e.uuid:
            return rewound or e.uuid
        to = e.value.get("leafUuid")
        if e.kind == "last-prompt" and e.value.get("explicit") is True and isinstance(to, str):
            rewound = rewound or to
    return rewound


def time_after(session: Session) -> str:
    """A time later than every line's: of several ends of a chain, Claude takes the latest (read in its program)."""
    latest = max((at for e in session.entries if e.uuid and (at := _seconds(e.time)) is not None), default=None)
    return EPOCH if latest is None else one_ms_later(_spelled(latest))


def one_ms_later(time: str) -> str:
    """A millisecond after it."""
    at = _seconds(time)
    return EPOCH if at is None else _spelled(at + timedelta(milliseconds=1))


def time_seconds(time: str) -> float:
    """Unknown counts as late enough."""
    at = _seconds(time)
    return float("inf") if at is None else at.timestamp()


def _seconds(time: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(time)
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at if at.year < 9999 else None


def _spelled(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- a look at a file's beginning, whatever its size (I9) ----------------------------------------------------------

_PIECE = 1 << 16
_LIMIT = 1 << 23


def has_messages(path: Path) -> bool:
    """Does a regular file begin a conversation?"""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    torn: list[bytes] = []  # pieces of a line whose end is not read yet
    size = 0
    with os.fdopen(fd, "rb", buffering=0) as f:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        while size < _LIMIT and (piece := f.read(_PIECE)):
            size += len(piece)
            lines, end, rest = piece.rpartition(b"\n")
            if end and _has_turn(b"".join([*torn, lines])):
                return True
            torn = [rest] if end else [*torn, piece]
    return _has_turn(b"".join(torn))


def _has_turn(lines: bytes) -> bool:
    return b'"user"' in lines and any(is_turn(r) for r, _ in records(lines))


def is_turn(record: Json | None) -> bool:
    """A line that begins a turn: a user's own words. What Claude adds by itself is marked as meta."""
    if record is None or record.get("type") != "user" or record.get("isMeta") or record.get("isSidechain"):
        return False
    return isinstance(record.get("message"), dict)

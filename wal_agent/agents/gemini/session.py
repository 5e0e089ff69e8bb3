"""Gemini's session file, read as Gemini reads it: lines that append, replace by id, checkpoint and rewind.

Junk lines are passed over, as there. A line that is not touched keeps its bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wal_agent.agents.session_files import Json, Line, decode_json, encode_json, records
from wal_agent.plainfile import open_plain


@dataclass(slots=True)
class Message:
    """One message and the line that tells it. After a change, `line` is dropped and the value is written anew."""

    value: Json
    line: Line | None = None

    @property
    def kind(self) -> str:
        return str(self.value.get("type", ""))

    @property
    def calls(self) -> list[Json]:
        found = self.value.get("toolCalls")
        return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []

    def parts(self) -> list[Any]:
        content = self.value.get("content")
        if isinstance(content, str):
            return [{"text": content}] if content else []
        return content if isinstance(content, list) else []


@dataclass(slots=True)
class Session:
    meta: Json = field(default_factory=dict)
    messages: dict[str, Message] = field(default_factory=dict)
    scratchpad: bytes | None = None  # the last $set of the memory scratchpad, while nothing came after it
    junk: int = 0  # lines that are not JSON objects
    headed: bool = False  # the first line is the session's head

    def said(self) -> list[Message]:
        return [m for m in self.messages.values() if m.kind in ("user", "gemini")]


def load_session(data: bytes) -> Session:
    session = Session()
    for n, (record, line) in enumerate(records(data)):
        if record is None:
            session.junk += 1
        else:
            _apply(session, record, line)
            if n == 0:
                session.headed = _is_head(record)
    return session


def _apply(session: Session, record: Json, line: Line) -> None:
    change = record.get("$set")
    if isinstance(record.get("$rewindTo"), str):
        _rewind(session, record["$rewindTo"])
    elif isinstance(record.get("id"), str):
        session.messages[record["id"]] = Message(record, line)
        session.scratchpad = None
    elif isinstance(change, dict):
        if isinstance(change.get("messages"), list):
            session.messages.clear()
            _apply_record(session, change["messages"])
        if "memoryScratchpad" in change:
            session.scratchpad = encode_json({"$set": {"memoryScratchpad": change["memoryScratchpad"]}})
        session.meta |= {k: v for k, v in change.items() if k not in ("messages", "memoryScratchpad")}
    elif _is_head(record):
        session.meta |= {k: v for k, v in record.items() if k != "messages"}
        if isinstance(record.get("messages"), list):
            _apply_record(session, record["messages"])


def _is_head(record: Json) -> bool:
    return isinstance(record.get("sessionId"), str) and isinstance(record.get("projectHash"), str)


def _apply_record(session: Session, messages: list[Any]) -> None:
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("id"), str):
            session.messages[message["id"]] = Message(message)


def _rewind(session: Session, to: str) -> None:
    ids = list(session.messages)
    for gone in ids[ids.index(to) :] if to in session.messages else ids:
        del session.messages[gone]
    session.scratchpad = None


def dump_session(session: Session) -> bytes:
    """The head, then each message once. Loading it gives the same session again."""
    lines: list[Line] = [encode_json(session.meta)]
    lines += [m.line if m.line is not None else encode_json(m.value) for m in session.messages.values()]
    if session.scratchpad is not None:
        lines.append(session.scratchpad)
    return b"\n".join(lines) + b"\n"


# ---- a look at a file's first lines, whatever its size (I9) ---------------------------------------------------------

_PIECE = 1 << 16
_LIMIT = 1 << 23


def session_id_of(path: Path) -> str | None:
    """The id in the first line."""
    return _id(_record(_lines(path, 1)))


def is_headless(path: Path) -> bool:
    """Its first line is a whole record, but no session's head."""
    data = _lines(path, 1)
    record = _record(data)
    return b"\n" in data and record is not None and _id(record) is None


def begins_session(fd: int) -> bool:
    """Whether an open file has the first line of a session."""
    return _id(_record(_first(fd, 1))) is not None


def _record(data: bytes) -> Json | None:
    """The first line's."""
    try:
        record = decode_json(data.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _id(record: Json | None) -> str | None:
    found = record.get("sessionId") if record else None
    return found if isinstance(found, str) else None


def is_stub(path: Path, session: str) -> bool:
    """Nothing but a head of this session and a checkpoint that holds only the context that Gemini itself makes."""
    data = _lines(path, 3)
    if data.count(b"\n") != 2 or not data.endswith(b"\n") or len(data) >= _LIMIT:
        return False
    read = load_session(data)
    texts = ["".join(str(p.get("text", "")) for p in m.parts() if isinstance(p, dict)) for m in read.said()]
    context = all(text.lstrip().startswith("<session_context>") for text in texts)
    return context and read.headed and read.junk == 0 and read.meta.get("sessionId") == session and len(texts) <= 1


def _lines(path: Path, wanted: int) -> bytes:
    """The start of a regular file; nothing of anything else."""
    try:
        with open_plain(path) as file:
            return _first(file.fileno(), wanted)
    except OSError:
        return b""


def _first(fd: int, wanted: int) -> bytes:
    """Up to so many lines and a piece."""
    data = b""
    while data.count(b"\n") < wanted and len(data) < _LIMIT and (piece := os.pread(fd, _PIECE, len(data))):
        data += piece
    return data

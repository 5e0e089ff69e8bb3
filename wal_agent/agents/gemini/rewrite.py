"""Rewrite a Gemini session that rests: a compact form for its first turns, or a return to an earlier message.

Append-only, in Gemini's own records, seen to work on the real program: `$set` with all messages, as Gemini itself
writes it at each resume and behind a compression, and `$rewindTo`. Gemini's own summary is followed by a short answer
of the model's; so is this one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import Unit
from wal_agent.agents.gemini.session import Message, Session, load_session
from wal_agent.agents.session_files import EPOCH, Json, as_object, as_objects, as_text, encode_json, time_of

_CONTEXT = ("<session_context>", "<hook_context>")
_ID = "wal-agent-compact-"
_READ = "I have read it."
_ENDED = ("success", "error", "cancelled")


def units(main: bytes) -> tuple[Unit, ...]:
    return tuple(_unit(m) for m in load_session(main).messages.values())


def _unit(message: Message) -> Unit:
    value = message.value
    parts = as_objects(message.parts())
    text = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    asks = [*message.calls, *(c for part in parts if (c := as_object(part.get("functionCall"))))]
    ended = [c for c in message.calls if c.get("result") or c.get("status") in _ENDED]
    answers = [*ended, *(r for part in parts if (r := as_object(part.get("functionResponse"))))]
    key = as_text(value.get("id"))
    ours = key.startswith(_ID)
    begins = message.kind == "user" and not answers and not ours and not text.lstrip().startswith(_CONTEXT)
    at = time_of(value.get("timestamp"))
    return Unit(
        key=key,
        data=(bytes(message.line) if message.line is not None else encode_json(value)) + b"\n",
        prompt=text if begins else "",
        time=at.timestamp() if at else 0.0,
        asks=tuple(as_text(c.get("id")) for c in asks),
        answers=tuple(as_text(c.get("id")) for c in answers),
        summary=text if ours and message.kind == "user" else "",
    )


def _form(read: Session, session: str, text: str) -> list[Json]:
    """Return the compact form and the model's answer to it."""
    last = next(reversed(read.messages), "")
    time = next((t for m in reversed(read.messages.values()) if (t := as_text(m.value.get("timestamp")))), EPOCH)
    name = uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {last} {text!r}").hex
    said = {"id": f"{_ID}{name}", "timestamp": time, "type": "user", "content": [{"text": text}]}
    read_it = {"id": f"wal-agent-read-{name}", "timestamp": time, "type": "gemini", "content": _READ, "thoughts": []}
    return [said, read_it]


def compact(main: bytes, session: str, workspace: Path, first: int, last: int, text: str) -> bytes:
    read = load_session(main)
    shown = [m.value for m in read.messages.values()]
    if not 0 <= first < last <= len(shown):
        raise ValueError("no such messages")
    return _set([*shown[:first], *_form(read, session, text), *shown[last:]])


def rewind(main: bytes, session: str, workspace: Path, keep: int, text: str) -> bytes:
    read = load_session(main)
    if not 0 <= keep < len(read.messages):
        raise ValueError("no such messages")
    to = list(read.messages)[keep]
    lines = [{"$rewindTo": to}, *_form(read, session, text)]
    return b"".join(encode_json(line) + b"\n" for line in lines)


def _set(messages: Sequence[Json]) -> bytes:
    return encode_json({"$set": {"messages": list(messages)}}) + b"\n"

"""Rewrite a Gemini session that rests: a compact form for its first turns, or a return to an earlier message.

Append-only, in Gemini's own records, seen to work on the real program: `$set` with all messages, as Gemini itself
writes it at each resume and behind a compression, and `$rewindTo`. Gemini's own summary is followed by a short answer
of the model's; so is this one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import RequestedCall, Unit
from wal_agent.agents.gemini.session import Message, Session, load_session
from wal_agent.agents.session_files import EPOCH, Json, as_object, as_objects, as_text, encode_json, records, seconds_of

_CONTEXT = ("<session_context>", "<hook_context>")
_ID = "wal-agent-compact-"
_READ = "I have read it."
_ENDED = ("success", "error", "cancelled")


def units(main: bytes) -> tuple[Unit, ...]:
    first = _first_times(main)
    messages = load_session(main).messages.values()
    return tuple(_unit(m, first.get(as_text(m.value.get("id")), "")) for m in messages)


def _first_times(main: bytes) -> dict[str, str]:
    """Return when each message was first written: at each resume Gemini gives all of them the time of that resume."""
    found: dict[str, str] = {}
    for record, _ in records(main):
        if record is not None and (id := as_text(record.get("id"))):
            found.setdefault(id, as_text(record.get("timestamp")))
    return found


def _parts(message: Message, kind: str) -> list[Json]:
    return [found for part in as_objects(message.parts()) if (found := as_object(part.get(kind)))]


def _unit(message: Message, time: str) -> Unit:
    value = message.value
    text = "\n".join(p["text"] for p in as_objects(message.parts()) if isinstance(p.get("text"), str))
    calls = message.calls or _parts(message, "functionCall")  # behind a resume it has them only as parts
    answers = [*(c for c in message.calls if c.get("status") in _ENDED), *_parts(message, "functionResponse")]
    key = as_text(value.get("id"))
    ours = key.startswith(_ID)
    begins = message.kind == "user" and not answers and not ours and not text.lstrip().startswith(_CONTEXT)
    return Unit(
        key=key,
        data=bytes(message.written) + b"\n",
        prompt=text if begins else "",
        time=seconds_of(time or value.get("timestamp")),
        asks=tuple(
            RequestedCall(as_text(c.get("id")), as_text(c.get("name")), encode_json(as_object(c.get("args"))))
            for c in calls
        ),
        answers=tuple(as_text(a.get("id")) for a in answers),
        failed=tuple(as_text(a.get("id")) for a in answers if _failed(a)),
        summary=text if ours and message.kind == "user" else "",
    )


def _failed(answer: Json) -> bool:
    return answer.get("status") in ("error", "cancelled") or "error" in as_object(answer.get("response"))


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
    return _set([*shown[:first], *_form(read, session, text), *shown[last:]])


def rewind(main: bytes, session: str, workspace: Path, keep: int, text: str) -> bytes:
    read = load_session(main)
    to = list(read.messages)[keep]
    lines = [{"$rewindTo": to}, *_form(read, session, text)]
    return b"".join(encode_json(line) + b"\n" for line in lines)


def _set(messages: Sequence[Json]) -> bytes:
    return encode_json({"$set": {"messages": list(messages)}}) + b"\n"

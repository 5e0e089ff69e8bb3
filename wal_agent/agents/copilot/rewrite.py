"""Rewrite a Copilot session that rests: a compact form for its first turns, or a return to an earlier message.

Append-only, in Copilot's own events, seen to work on the real program: at a resume a `session.context_cleared` leaves
out all that stands before it, and copies of the messages that stay follow it. (Copilot ignores a
`session.snapshot_rewind` in the file, and its own `session.compaction_complete` keeps no message, and repeats all
prompts.)
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from wal_agent.agents.base import Unit
from wal_agent.agents.copilot.session import Event, call_requests, call_status, compactions, dump_events, load_events
from wal_agent.agents.session_files import EPOCH, Json, as_text, seconds_of

TITLE = "[wal-agent] "
_CLEARED, _COMPACTED = "session.context_cleared", "session.compaction_complete"
_SAID = ("user.message", "assistant.message")
_SHOWN = (*_SAID, _COMPACTED, "tool.execution_complete", "system.notification")  # kinds that the model gets
_NO_TALK = ("session.", "model.", "system.message")  # beginnings of kinds that are never copied


class _Message(msgspec.Struct, frozen=True):
    """A message as the model gets it, with what follows it up to the next. `summary`: of a compaction of Copilot's own,
    whose events begin with the prompts that Copilot repeats with it; None for any other message."""

    key: str
    events: list[Event]
    summary: str | None = None


def units(main: bytes) -> tuple[Unit, ...]:
    return tuple(_unit(message) for message in visible(load_events(main).events))


def visible(events: Sequence[Event]) -> list[_Message]:
    """Return what the model gets, in its order."""
    found: list[_Message] = []
    for event in events:
        if event.agent:
            continue
        if event.kind == _CLEARED:
            first = as_text(event.data.get("initialMessage"))
            said = {**event.value, "type": "user.message", "data": {"content": first}}
            found = [_Message(_key(event), [Event(said)])] if first else []
        elif event.kind == _COMPACTED:
            if done := compactions(bytes(event.written) + b"\n"):
                prompts = [e for message in found for e in message.events if e.kind == "user.message"]
                found = [_Message(_key(event), [*prompts, event], done[0].summary)]
        elif event.kind in _SAID:
            found.append(_Message(_key(event), [event]))
        elif found and not event.kind.startswith(_NO_TALK):
            found[-1].events.append(event)
    return found


def _key(event: Event) -> str:
    """Return the name that a copy of the event has too."""
    names = (event.data.get("messageId"), event.data.get("compactionAttemptId"), event.value.get("id"))
    return next((name for name in names if isinstance(name, str)), "")


def _unit(message: _Message) -> Unit:
    events = message.events
    first = events[0]
    text = as_text(first.data.get("content")) if first.kind == "user.message" and message.summary is None else ""
    ours = text.startswith(TITLE)
    outcomes = [e for e in events if e.kind == "tool.execution_complete"]
    return Unit(
        key=message.key,
        data=dump_events([e for e in events if e.kind in _SHOWN]),
        prompt="" if ours else text,
        time=seconds_of(first.value.get("timestamp")),
        asks=tuple(request for e in events for request in call_requests(e)),
        answers=tuple(as_text(e.data.get("toolCallId")) for e in outcomes),
        failed=tuple(as_text(e.data.get("toolCallId")) for e in outcomes if call_status(e) != "done"),
        summary=text if ours else message.summary or "",
    )


def compact(main: bytes, session: str, workspace: Path, first: int, last: int, text: str) -> bytes:
    """Return lines that hold the whole conversation."""
    events = load_events(main).events
    shown = visible(events)
    time = next((t for e in reversed(events) if (t := as_text(e.value.get("timestamp")))), EPOCH)
    name = f"{session} rewrite {len(events)}"
    form: Json = {"content": text, "transformedContent": text, "delivery": "idle", "messageId": _uuid(name)}
    copies = [[dict(e.value) for m in messages for e in m.events] for messages in (shown[:first], shown[last:])]
    values: list[Json] = [
        {"type": _CLEARED, "data": {"messagesCleared": len(shown)}, "timestamp": time},
        *copies[0],
        {"type": "user.message", "data": form, "timestamp": time},
        *copies[1],
    ]
    parent = next((e.value.get("id") for e in reversed(events)), None)
    for n, value in enumerate(values):
        value |= {"id": _uuid(f"{name} {n}"), "parentId": parent}
        parent = value["id"]
    return dump_events([Event(value) for value in values])


def _uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))

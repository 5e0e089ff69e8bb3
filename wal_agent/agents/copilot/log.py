"""Copilot's session file: events, a line each, chained by `parentId`.

What the model is told of a call is its request in an `assistant.message` and the `tool.execution_complete` of the same
id; a call whose message is not in the file is not told at all, whatever else stands there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wal_agent.agents.copilot.hooks import call_arguments
from wal_agent.agents.session_files import Json, encode_json, records, well_formed, whole_lines

EPOCH = "1970-01-01T00:00:00.000Z"


@dataclass(slots=True)
class Event:
    """`line`: as it stands in the file; None once `value` was changed."""

    value: Json
    line: bytes | memoryview | None = None

    @property
    def kind(self) -> str:
        return str(self.value.get("type"))

    @property
    def data(self) -> Json:
        data = self.value.get("data")
        return data if isinstance(data, dict) else {}

    @property
    def agent(self) -> str:
        """The subagent that it is of, if it is of one."""
        return str(self.value.get("agentId") or "")

    @property
    def inner(self) -> bool:
        return bool(self.agent)


@dataclass(frozen=True, slots=True)
class Request:
    """A call as the model asked for it. `agent`: the subagent that did, if one did. `message`: the event's own id; some
    models give the ids of calls again and again."""

    id: str
    tool: str
    input: bytes
    agent: str
    message: str = ""


@dataclass(slots=True)
class EventLog:
    events: list[Event]
    junk: int
    torn: bool


def load_events(data: bytes) -> EventLog:
    kept = whole_lines(data)
    read = EventLog([], 0, torn=bool(data[len(kept) :].strip(b"\0 \t\r\n")))
    for value, line in records(kept):
        if value is None or not isinstance(value.get("type"), str):
            read.junk += 1
        else:
            read.events.append(Event(value, line))
    return read


def dump_events(events: list[Event]) -> bytes:
    return b"".join(part for e in events for part in (e.line if e.line is not None else encode_json(e.value), b"\n"))


def call_requests(event: Event) -> list[Request]:
    """The calls that a message of the model asks for."""
    asked = event.data.get("toolRequests") if event.kind == "assistant.message" else None
    return [
        Request(
            str(r["toolCallId"]),
            str(r.get("name")),
            hook_spelling(r.get("arguments")),
            event.agent,
            str(event.value.get("id")),
        )
        for r in (asked if isinstance(asked, list) else [])
        if isinstance(r, dict) and r.get("toolCallId")
    ]


def hook_spelling(args: Any) -> bytes:
    """A call's input as its hooks told it."""
    return call_arguments(well_formed(encode_json(args)))


def time_seconds(timestamp: Any) -> float:
    """Unknown counts as late."""
    try:
        at = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return float("inf")
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

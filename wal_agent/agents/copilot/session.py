"""What bytes appended to a session file tell: calls with an outcome, and that a turn began.

An outcome names its call by id only, and hooks know no ids. The call's tool and input stand further up, often in bytes
that were told before; so what was asked is remembered until its outcome is told, or another session begins. Ids are the
model's: they may come again, and a subagent's may be its parent's.
"""

from __future__ import annotations

import threading
from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.copilot.log import Event, Request, call_requests, load_events

_MAX_INPUTS = 64 << 20  # bytes of inputs that are remembered; the oldest go first

_Key = tuple[str, str]  # agent, id
Status = Literal["done", "failed", "refused", "cancelled"]
_CODES: dict[str, Status] = {
    "denied": "refused",
    "rejected": "refused",
    "interrupted": "cancelled",
    "aborted": "cancelled",
    "cancelled": "cancelled",
}


class OpenCalls:
    """Calls that were asked for and whose outcome was not told yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[_Key, Request] = {}
        self._size = 0

    def take(self, events: list[Event]) -> list[SeenCall]:
        with self._lock:
            return [seen for event in events for seen in self._told(event)]

    def _told(self, event: Event) -> list[SeenCall]:
        for request in call_requests(event):
            self._remember(request)
        if event.kind == "session.start" and not event.inner:
            self._asked, self._size = {}, 0
        if event.kind == "abort":  # what this agent had running gets no outcome of its own
            return self._end([key for key in self._asked if key[0] == event.agent], "cancelled")
        if event.kind != "tool.execution_complete":
            return []
        key = event.agent, str(event.data.get("toolCallId"))
        return self._end([key if key in self._asked else self._by_id(key[1])], call_status(event))

    def _by_id(self, id: str) -> _Key:
        return next((key for key in reversed(self._asked) if key[1] == id), ("", id))

    def _end(self, keys: list[_Key], how: Status) -> list[SeenCall]:
        ended = filter(None, map(self._forget, keys))
        return [SeenCall(r.tool, r.input, how, f"{r.message} {r.id}") for r in ended]

    def _remember(self, request: Request) -> None:
        key = request.agent, request.id
        self._forget(key)
        self._asked[key] = request
        self._size += len(request.input)
        while self._size > _MAX_INPUTS and len(self._asked) > 1:
            self._forget(next(iter(self._asked)))

    def _forget(self, key: _Key) -> Request | None:
        request = self._asked.pop(key, None)
        self._size -= len(request.input) if request else 0
        return request


def call_status(event: Event) -> Status:
    if event.data.get("success") is True:
        return "done"
    error = event.data.get("error")
    return _CODES.get(str(error.get("code")), "failed") if isinstance(error, dict) else "failed"


def proves_turn(appended: bytes) -> bool:
    """A prompt is written when the hooks of the session's start are over."""
    return any(e.kind == "user.message" and not e.inner for e in load_events(appended).events)

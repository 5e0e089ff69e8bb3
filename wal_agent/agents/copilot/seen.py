"""What bytes appended to a session file tell: calls with an outcome, and that a turn began.

An outcome names its call by id only, and hooks know no ids. The call's tool and input stand further up, often in bytes
that were told before; so what was asked is remembered, by ids that no two calls share, until its outcome is told.
"""

from __future__ import annotations

import threading
from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.copilot.log import Event, Request, load, requests

_MOST = 64 << 20  # bytes of inputs that are remembered; the oldest go first

Status = Literal["done", "failed", "refused", "cancelled"]
_CODES: dict[str, Status] = {
    "denied": "refused",
    "rejected": "refused",
    "interrupted": "cancelled",
    "aborted": "cancelled",
    "cancelled": "cancelled",
}


class Open:
    """Calls that were asked for and whose outcome was not told yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, Request] = {}
        self._size = 0

    def take(self, events: list[Event]) -> list[SeenCall]:
        with self._lock:
            return [seen for event in events for seen in self._told(event)]

    def _told(self, event: Event) -> list[SeenCall]:
        for request in requests(event):
            self._remember(request)
        if event.kind == "abort":  # what was running gets no outcome of its own
            return [seen for id in list(self._asked) if (seen := self._end(id, "cancelled"))]
        if event.kind != "tool.execution_complete":
            return []
        seen = self._end(str(event.data.get("toolCallId")), status(event))
        return [seen] if seen else []

    def _end(self, id: str, how: Status) -> SeenCall | None:
        request = self._forget(id)
        return SeenCall(request.tool, request.input, how, id) if request else None

    def _remember(self, request: Request) -> None:
        self._forget(request.id)
        self._asked[request.id] = request
        self._size += len(request.input)
        while self._size > _MOST and len(self._asked) > 1:
            self._forget(next(iter(self._asked)))

    def _forget(self, id: str) -> Request | None:
        request = self._asked.pop(id, None)
        self._size -= len(request.input) if request else 0
        return request


def status(event: Event) -> Status:
    if event.data.get("success") is True:
        return "done"
    error = event.data.get("error")
    return _CODES.get(str(error.get("code")), "failed") if isinstance(error, dict) else "failed"


def unhooked(appended: bytes) -> bool:
    """A prompt is written when the hooks of the session's start are over."""
    return any(e.kind == "user.message" and not e.inner for e in load(appended).events)

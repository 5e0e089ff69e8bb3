"""Calls that the log knows and the session file does not, put back into it (proven on the real program)."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wal_agent.agents.base import LoggedCall
from wal_agent.agents.copilot.log import EPOCH, Event, Request, requests, seconds
from wal_agent.agents.jsonl import Json, decode
from wal_agent.agents.putback import capped, noted, unknown

OURS = "wal-agent"  # `interactionId` of what is put back
_BOUNDS = ("assistant.message", "assistant.turn_end", "user.message", "abort", "session.resume", "session.shutdown")
_EARLY = 0.001  # seconds that a timestamp of milliseconds may be too early


@dataclass(slots=True)
class Asked:
    """A call of the file, and its outcome there. What Copilot itself writes at a resume for a call without one, and
    what an earlier recovery wrote, gives way to what the log knows."""

    request: Request
    message: Event
    outcome: Event | None = None

    @property
    def settled(self) -> bool:
        return self.outcome is not None and not self.weak

    @property
    def weak(self) -> bool:
        return self.outcome is not None and self.outcome.data.get("interactionId") in ("resume", OURS)

    @property
    def ended(self) -> float:
        return seconds(self.outcome.value.get("timestamp")) if self.settled and self.outcome else float("inf")


def put_back(events: list[Event], session: str, calls: Sequence[LoggedCall]) -> int:
    """Change and add events so that each call is told with its outcome; say for how many that was new."""
    asked = _asked(events)
    meant = _matched(asked, calls)
    new = 0
    missing: list[LoggedCall] = []
    writer = _Writer(events, session)
    for call in calls:
        found = meant.get(call.call)
        if found is None:
            missing.append(call)
        elif not found.settled:
            new += writer.settle(found, call)
    if missing:
        writer.message(missing)
    return new + len(missing)


def call_id(call: LoggedCall) -> str:
    """Unlike the number alone, it is not met again when another job goes on with the session."""
    return f"wal_{call.call}_{hashlib.sha256(call.tool.encode() + call.input).hexdigest()[:8]}"


def _asked(events: Iterable[Event]) -> list[Asked]:
    known: dict[str, Asked] = {}
    for event in events:
        for request in requests(event):
            known.setdefault(request.id, Asked(request, event))
        if event.kind == "tool.execution_complete":
            found = known.get(str(event.data.get("toolCallId")))
            if found is not None:
                found.outcome = event
    return list(known.values())


def _matched(asked: Sequence[Asked], calls: Sequence[LoggedCall]) -> dict[int, Asked]:
    """Each call of the file answers for one call of the log: the one put back under its id, else an equal one that did
    not begin after the file's had ended. Of equal ones, those that ended in both go together, then those that ended in
    one."""
    by_id = {a.request.id: a for a in asked}
    meant = {c.call: by_id[call_id(c)] for c in calls if call_id(c) in by_id}
    free: dict[tuple[str, str], list[Asked]] = {}
    for a in asked:
        if not a.request.id.startswith("wal_"):
            free.setdefault((a.request.tool, canonical(a.request.input)), []).append(a)
    for ended, settled in ((True, True), (False, True), (True, False), (False, False)):
        for call in calls:
            if call.call in meant or (call.result is not None) != ended:
                continue
            pool = free.get((call.tool, canonical(call.input)), [])
            fits = (a for a in pool if a.settled == settled and a.ended + _EARLY >= call.started)
            if (found := next(fits, None)) is not None:
                pool.remove(found)
                meant[call.call] = found
    return meant


class _Writer:
    """Adds events, each the child of the one before."""

    def __init__(self, events: list[Event], session: str) -> None:
        self._events = events
        self._session = session
        models = (m for e in reversed(events) if isinstance(m := e.data.get("model"), str) and m != "resumed")
        self._model = next(models, OURS)

    def settle(self, asked: Asked, call: LoggedCall) -> bool:
        """Tell the outcome where Copilot looks for it: before anything that came after its batch, a resume too. False
        where it stands there already."""
        data = {"model": self._model, **outcome(asked.request, call)}
        old = asked.outcome
        if old is not None and old.data.get("interactionId") == OURS:
            if {**old.data, "model": self._model} == data:
                return False
            old.value, old.line = {**old.value, "data": data}, None
            return True
        if old is not None:
            del self._events[self._find(old)]
        at = self._find(asked.message) + 1
        while at < len(self._events) and not _bound(self._events[at], asked.request.agent):
            at += 1
        self._add("tool.execution_complete", f"outcome {asked.request.id}", data, at, asked.request.agent)
        return True

    def message(self, calls: Sequence[LoggedCall]) -> None:
        """A message of the model that was lost: only its calls are known."""
        asked = [Request(call_id(c), c.tool, c.input, "") for c in calls]
        data = {
            "messageId": self._id(f"told {asked[0].id}"),
            "model": self._model,
            "content": "",
            "toolRequests": [
                {"toolCallId": r.id, "name": r.tool, "arguments": plain_input(r), "type": "function"} for r in asked
            ],
            "interactionId": OURS,
        }
        self._add("assistant.message", f"message {asked[0].id}", data, len(self._events))
        for request, call in zip(asked, calls, strict=True):
            data = {"model": self._model, **outcome(request, call)}
            self._add("tool.execution_complete", f"outcome {request.id}", data, len(self._events))

    def _add(self, kind: str, name: str, data: Json, at: int, agent: str = "") -> None:
        before = self._events[at - 1].value if at else {}
        value: Json = {"type": kind, "data": data, "id": self._id(name)}
        value |= {"timestamp": before.get("timestamp", EPOCH), "parentId": before.get("id")}
        self._events.insert(at, Event(value | ({"agentId": agent} if agent else {})))

    def _find(self, event: Event) -> int:
        return next(i for i, e in enumerate(self._events) if e is event)

    def _id(self, name: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._session} {name}"))


def _bound(event: Event, agent: str) -> bool:
    """Whether what comes now is no more of the batch of this agent's last message."""
    if event.kind.startswith("session."):
        return event.kind in _BOUNDS
    return event.kind in _BOUNDS and str(event.value.get("agentId") or "") == agent


def outcome(request: Request, call: LoggedCall) -> Json:
    """The outcome's data. An error is what tells the model that a call did not go well."""
    data: Json = {"toolCallId": request.id, "interactionId": OURS}
    if call.result is None:
        return data | {"success": False, "error": {"message": unknown(call), "code": "interrupted"}}
    text, failed = _said(call)
    if failed:
        return data | {"success": False, "error": {"message": text, "code": "failure"}}
    return data | {"success": True, "result": {"content": text}}


def _said(call: LoggedCall) -> tuple[str, bool]:
    told: Any = (call.result or b"").decode(errors="replace")
    try:
        told = decode(call.result or b"")
    except (ValueError, RecursionError):
        pass
    if isinstance(told, dict):
        error = told.get("error")
        if error is not None:
            message = error.get("message") if isinstance(error, dict) else error
            return capped(message if isinstance(message, str) else json.dumps(error), call.call), True
        told = told.get("text", "")
    return noted(told if isinstance(told, str) else json.dumps(told), call), call.failed


def plain_input(request: Request) -> Any:
    """The input as the file spells it: the one tool whose input is text gets text."""
    try:
        value = decode(request.input)
    except (ValueError, RecursionError):
        return {}
    if request.tool == "apply_patch" and isinstance(value, dict) and isinstance(value.get("input"), str):
        return value["input"]
    return value if isinstance(value, dict) else {}


def canonical(input: bytes) -> str:
    try:
        return json.dumps(decode(input), sort_keys=True)
    except (ValueError, RecursionError):
        return repr(input)

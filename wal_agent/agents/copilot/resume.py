"""Make a restored Copilot session that resumes well (RECOVERY.md): put lost calls and outcomes back, mend its head.

Pure and idempotent, proven on the real program. Copilot writes its session up to a second late, a person's words too,
and at a resume it tells the model of each call without an outcome that it was interrupted, whatever became of it; a
call whose message was lost is not shown at all. The log has them, so they are put back. A file without its first line
is refused by Copilot as corrupted: it gets one.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.copilot.session import Event, Request, call_requests, event_pieces, load_events
from wal_agent.agents.session_files import (
    EPOCH,
    HEAD_REPAIR,
    LOST_PROMPT,
    Json,
    as_object,
    capped_text,
    decode_json,
    end_time,
    input_digest,
    junk_repair,
    lost_calls_repair,
    noted_result,
    unknown_result,
    well_formed,
)
from wal_agent.safefs import Buffer

OURS = "wal-agent"  # `interactionId` of what is put back; of an outcome with the call of the log behind it
_BOUNDS = ("assistant.message", "assistant.turn_end", "user.message", "abort", "session.resume", "session.shutdown")
# Up to where it ends or was cut off; what is cut is followed by a line of ours.
_BEGUN = re.compile(r'\{"(?:text|error)":\s*"((?:[^"\\\n]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)')
_CUT = "\n[wal-agent: "
_EARLY = 0.001  # seconds that a timestamp of milliseconds may be too early

_SAID = ("user.message", "assistant.message")


class FileCall(msgspec.Struct):
    """A call of the file: its request without the input, `key` which is the same for equal inputs, and its outcomes
    there, of which the last one counts. An outcome that Copilot itself writes at a resume is replaced by the log's, for
    a call that began before; one that an earlier recovery wrote, by that of the same call. `over`: when its batch was
    over, at the latest."""

    request: Request
    key: bytes
    message: Event
    outcomes: list[Event] = []
    over: float = float("inf")

    @property
    def outcome(self) -> Event | None:
        return self.outcomes[-1] if self.outcomes else None

    @property
    def settled(self) -> bool:
        return self.outcome is not None and self._by != "resume" and not self.ours

    @property
    def ours(self) -> str:
        """The `call_id` of the log's call that an earlier recovery wrote here."""
        return self._by.removeprefix(f"{OURS} ") if self._by.startswith(f"{OURS} ") else ""

    @property
    def _by(self) -> str:
        return _by(self.outcome) if self.outcome else ""

    @property
    def ended(self) -> float:
        ended = end_time(self.outcome.value.get("timestamp")) if self.outcome else float("inf")
        return ended if self.settled else min(ended, self.over)


def put_back(events: list[Event], session: str, calls: Sequence[LoggedCall]) -> int:
    """Change and add events so that each call has its outcome; return for how many that is new."""
    asked = _file_calls(events)
    meant = _match_calls(asked, calls)
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
    writer.begin_with_prompt()
    return new + len(missing)


def call_id(call: LoggedCall) -> str:
    """Return an id that, unlike the number alone, does not come again when another job continues the session."""
    known = f"{call.started:.3f} {call.tool} ".encode(errors="replace") + call.input
    return f"wal_{call.call}_{hashlib.sha256(known).hexdigest()[:8]}"


def _file_calls(events: Iterable[Event]) -> list[FileCall]:
    """Return the file's calls. Ids may come again, and a subagent's may be its parent's: an outcome belongs to the last
    request before it."""
    found: list[FileCall] = []
    last: dict[tuple[str, ...], FileCall] = {}
    batches: list[FileCall] = []
    for event in events:
        if event.kind in _BOUNDS and event.kind != "user.message":  # a user may write one while calls run
            for a in batches:
                a.over = end_time(event.value.get("timestamp")) if _bound(event, a.request.agent) else a.over
            batches = [a for a in batches if not _bound(event, a.request.agent)]
        for request in call_requests(event):
            key = request.agent, request.id
            if key not in last or last[key].message is not event:
                last[key] = last[(request.id,)] = FileCall(replace(request, input=b""), _key(request.input), event)
                found.append(last[key])
                batches.append(last[key])
        if event.kind == "tool.execution_complete":
            id = str(event.data.get("toolCallId"))
            asked = last.get((event.agent, id)) or last.get((id,))
            if asked is not None:
                asked.outcomes.append(event)
    return found


def _match_calls(asked: Sequence[FileCall], calls: Sequence[LoggedCall]) -> dict[int, FileCall]:
    """Match each call of the file with one of the log: the one that an earlier recovery wrote there, else an equal one
    that did not begin after the file's had ended. Of equal ones, those that ended in both match first, then those that
    ended in one."""
    by_id = {a.ours or a.request.id: a for a in asked if a.ours or a.request.id.startswith("wal_")}
    meant = {c.call: by_id[call_id(c)] for c in calls if call_id(c) in by_id}
    free: dict[tuple[str, bytes], list[FileCall]] = {}
    for a in asked:
        if not a.ours and not a.request.id.startswith("wal_"):
            free.setdefault((a.request.tool, a.key), []).append(a)
    for ended, settled in ((True, True), (False, True), (True, False), (False, False)):
        for call in calls:
            if call.call in meant or (call.result is not None) != ended:
                continue
            pool = free.get((call.tool, _key(call.input)), [])
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

    def settle(self, asked: FileCall, call: LoggedCall) -> bool:
        """Write the outcome where Copilot looks for it: before anything that came after its batch, a resume too. Return
        False where it is there already."""
        data = {"model": self._model, **outcome_data(asked.request, call)}
        old = asked.outcome
        if old is not None and asked.ours:
            if {**old.data, "model": self._model} == data:
                return False
            old.value = {**old.value, "data": data}
            return True
        for written in [o for o in asked.outcomes if _by(o) == "resume" or _by(o).startswith(f"{OURS} ")]:
            del self._events[self._find(written)]
        at = self._find(asked.message) + 1
        while at < len(self._events) and not _bound(self._events[at], asked.request.agent):
            at += 1
        name = f"outcome {asked.request.message} {asked.request.id}"
        self._add("tool.execution_complete", name, data, at, asked.request.agent)
        return True

    def message(self, calls: Sequence[LoggedCall]) -> None:
        """Write a message of the model that was lost: only its calls are known."""
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
            data = {"model": self._model, **outcome_data(request, call)}
            self._add("tool.execution_complete", f"outcome {request.id}", data, len(self._events))

    def begin_with_prompt(self) -> None:
        """See LOST_PROMPT."""
        at, first = next(((n, e) for n, e in enumerate(self._events) if e.kind in _SAID and not e.agent), (0, None))
        if first is not None and first.kind == "assistant.message":
            self._add("user.message", "lost prompt", {"content": LOST_PROMPT}, at)

    def _add(self, kind: str, name: str, data: Json, at: int, agent: str = "") -> None:
        before = self._events[at - 1].value if at else {}
        value: Json = {"type": kind, "data": data, "id": self._id(name)}
        value |= {"timestamp": before.get("timestamp", EPOCH), "parentId": before.get("id")}
        self._events.insert(at, Event(value | ({"agentId": agent} if agent else {})))

    def _find(self, event: Event) -> int:
        return next(i for i, e in enumerate(self._events) if e is event)

    def _id(self, name: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._session} {name}"))


def _by(outcome: Event) -> str:
    """Return who wrote an outcome: `resume` for Copilot itself, at one."""
    return str(outcome.data.get("interactionId"))


def _bound(event: Event, agent: str) -> bool:
    """Return whether the event ends the batch of this agent's last message."""
    if event.kind.startswith("session."):
        return event.kind in _BOUNDS
    return event.kind in _BOUNDS and event.agent == agent


def outcome_data(request: Request, call: LoggedCall) -> Json:
    """Return the outcome's data. Only an error shows the model that a call failed."""
    data: Json = {"toolCallId": request.id, "interactionId": f"{OURS} {call_id(call)}"}
    if call.result is None:
        return data | {"success": False, "error": {"message": unknown_result(call), "code": "interrupted"}}
    text, failed = _said(call)
    if failed:
        return data | {"success": False, "error": {"message": text, "code": "failure"}}
    return data | {"success": True, "result": {"content": text}}


def _said(call: LoggedCall) -> tuple[str, bool]:
    try:
        result: Any = decode_json(well_formed(call.result or b""))
    except ValueError:
        result = (call.result or b"").decode(errors="replace")
        if (begun := _BEGUN.match(result)) is not None:
            return noted_result(_rest(result, begun), call), call.failed
    if isinstance(result, dict):
        error = result.get("error")
        if error is not None:
            message = error.get("message") if isinstance(error, dict) else error
            return capped_text(message if isinstance(message, str) else json.dumps(error), call.call), True
        result = result.get("text", "")
    return noted_result(result if isinstance(result, str) else json.dumps(result), call), call.failed


def _rest(result: str, begun: re.Match[str]) -> str:
    """Return the text of a truncated result (`gate.cut`), and wal-agent's sentence behind it."""
    cut = result.rfind(_CUT)
    text: str = json.loads(f'"{begun[1]}"', strict=False)
    return text + (result[cut:] if cut >= begun.end() else "")


def plain_input(request: Request) -> Any:
    """Return the input as the file spells it: the one tool whose input is text gets text."""
    try:
        value = decode_json(well_formed(request.input))
    except ValueError:
        return {}
    if request.tool == "apply_patch" and isinstance(value, dict) and isinstance(value.get("input"), str):
        return value["input"]
    return as_object(value)


def _key(input: bytes) -> bytes:
    try:
        return input_digest(decode_json(well_formed(input)))
    except ValueError:
        return input


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    read = load_events(main)
    repairs: list[str] = []
    if read.torn:
        repairs.append("The session file's last line was torn and was cut.")
    repairs += junk_repair(read.junk)
    if mend_head(read.events, session, workspace):
        repairs.append(HEAD_REPAIR)
    repairs += lost_calls_repair(_drop_outcomes(read.events))
    put = put_back(read.events, session, calls)
    messages = sum(e.kind in _SAID and not e.agent for e in read.events)
    said = (str(e.data.get("content", "")) for e in read.events if e.kind == "user.message" and not e.agent)
    prompts = tuple(text for text in said if text != LOST_PROMPT)
    return Reconciled(event_pieces(read.events), put, messages, tuple(repairs), prompts)


def _drop_outcomes(events: list[Event]) -> int:
    """Drop the outcomes whose request was lost; return how many."""
    asked: set[str] = set()
    kept: list[Event] = []
    for event in events:
        asked |= {request.id for request in call_requests(event)}
        if event.kind != "tool.execution_complete" or str(event.data.get("toolCallId")) in asked:
            kept.append(event)
    dropped = len(events) - len(kept)
    events[:] = kept
    return dropped


def mend_head(events: list[Event], session: str, workspace: Path) -> bool:
    first = events[0] if events else None
    if first is not None and first.kind == "session.start" and first.data.get("sessionId") == session:
        return False
    time = next((t for e in events if isinstance(t := e.value.get("timestamp"), str)), EPOCH)
    head = {
        "type": "session.start",
        "data": {
            "sessionId": session,
            "version": 1,
            "producer": "copilot-agent",
            "copilotVersion": "",
            "startTime": time,
            "context": {"cwd": str(workspace)},
        },
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} head")),
        "timestamp": time,
        "parentId": None,
    }
    events[:] = [Event(head), *(e for e in events if e.kind != "session.start")]
    return True

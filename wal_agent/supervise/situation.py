"""What the log says of a job that was just opened, and what of it matters to the plan. Reads only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from wal_agent.agents.base import LoggedCall
from wal_agent.errors import Damaged
from wal_agent.records import Cause, End, Finding, Host, Intent, Opening, Payload, Verdict
from wal_agent.recovery.case import Before
from wal_agent.recovery.prompt import Finished
from wal_agent.recovery.tree_words import Effects
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.lease import LeaseDoc
from wal_agent.wal.reader import Damage, Replay
from wal_agent.wal.state import EndedCall, State

_SAYINGS = {
    "denied": "it was denied, so it did not run",
    "interrupted": "it was interrupted",
    "acknowledged": "a person settled it",
}


@dataclass(frozen=True, slots=True)
class Situation:
    """The job before our opening. `home`: the newest opening under which the agent was started. `inputs`: what each
    open or finished call was given, by its number; what could not be read is missing. `asked`: what the newest turn
    of a person's began with, as far as the log keeps it (conversation.MAX_PROMPT); empty where it is not known."""

    opening: Opening
    before: State
    home: Opening | None
    damage: Damage | None
    inputs: dict[int, bytes]
    asked: bytes = b""

    @property
    def plan_input(self) -> Before:
        return Before(self.before, self.home)

    def same_host(self, here: Host) -> bool:
        """Whether the old run lived under this very kernel and process table, so that looking at processes means
        something."""
        return self.home is not None and self.home.host.same_kernel(here.boot, here.pidns)


def read_situation(opened: OpenedJob) -> Situation:
    """From the replay that ends at our own opening (R2)."""
    replay = opened.replay
    if replay.damage is not None:  # then it is not read up to our opening; the lease says the same
        return observe_log(replay, opening_by(opened.lease.doc, "dead"), opened.blobs)
    state = replay.state
    before = msgspec.structs.replace(state, openings=state.openings[:-1], opened=state.opened - 1)
    return observe_log(dataclasses.replace(replay, state=before), state.openings[-1].opening, opened.blobs)


def observe_log(replay: Replay, opening: Opening, blobs: Blobs) -> Situation:
    """What `opening` would find, or found, behind the log of `replay`."""
    state = replay.state
    if replay.damage:
        return Situation(opening, state, state.home_opening, replay.damage, {})
    asked = fetch_payload(blobs, state.prompt.prompt) if state.prompt else None
    return Situation(opening, state, state.home_opening, None, inputs_of(state, blobs), asked or b"")


def opening_by(doc: LeaseDoc, cause: Cause, args: tuple[str, ...] = ()) -> Opening:
    """The opening record of the lease's holder."""
    return Opening(
        time=doc.time,
        run=doc.run,
        epoch=doc.epoch,
        cause=cause,
        host=doc.host,
        agent=doc.agent,
        agent_version="",
        version="",
        workspace=doc.workspace,
        args=args,
    )


def inputs_of(state: State, blobs: Blobs) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    ended = [*(e.intent for e in state.unsettled), *(c.intent for c in state.unlogged)]
    for intent in [*(o.intent for o in state.open), *ended]:
        data = fetch_payload(blobs, intent.input) if intent.call not in found else None
        if data is not None:
            found[intent.call] = data
    for call in state.unheld:  # of a long one the beginning
        data = fetch_payload(blobs, call.intent.input)
        if data is not None:
            found.setdefault(call.intent.call, data)
    return found


def fetch_payload(blobs: Blobs, payload: Payload | None) -> bytes | None:
    """The payload's bytes; None where there are none, or they are damaged: the call is then told without them."""
    try:
        return None if payload is None else blobs.fetch(payload)
    except Damaged:
        return None


def logged_calls(
    at: Situation, ended: Sequence[EndedCall], blobs: Blobs, verdicts: dict[int, Verdict], effects: Effects
) -> list[LoggedCall]:
    """All calls that the newest session may lack, in the log's order, with what is known of each. `ended`: those of
    them that ended. `effects`: which of them left their file changes elsewhere."""
    calls = [_ended(e, at.inputs.get(e.intent.call), fetch_payload(blobs, e.end.result), effects) for e in ended]
    for o in (o for o in at.before.open if o.intent.session == at.before.session):
        verdict = verdicts.get(o.intent.call)
        finding: Finding = verdict.finding if verdict else "unknown"
        note = f"the run was lost while this call was in flight (finding: {finding}). {verdict.why if verdict else ''}"
        calls.append(_call(o.intent, at.inputs.get(o.intent.call), None, True, note.strip()))
    return sorted(calls, key=lambda c: c.call)


def _ended(e: EndedCall, input: bytes | None, result: bytes | None, effects: Effects) -> LoggedCall:
    end = e.end
    if end.how in ("done", "failed"):
        note = effects.note(end.call) if end.how == "done" and e.intent.cls != "read_only" else ""
        return _call(e.intent, input, result or _said("its result was not saved"), end.how == "failed", note)
    return _call(e.intent, input, _said(_why(end)), True, "")


def _why(end: End) -> str:
    return f"{_SAYINGS[end.how]}: {end.why}" if end.why else _SAYINGS[end.how]


def _said(text: str) -> bytes:
    return msgspec.json.encode(text)


def _call(intent: Intent, input: bytes | None, result: bytes | None, failed: bool, note: str) -> LoggedCall:
    return LoggedCall(intent.call, intent.tool, input or b"{}", result, failed, note, intent.time, intent.agent_call)


def finished_calls(at: Situation, ended: Sequence[EndedCall]) -> tuple[Finished, ...]:
    return tuple(Finished(e.intent.tool, at.inputs.get(e.intent.call), e.end.how) for e in ended)

"""List what a job changed outside of its session, from its log alone: pure, newest first, for a person who cleans up.

An effect is a call that is not known to read only, or the command of a step, unless it is known not to have happened:
denied calls, and those that evidence or a person settled as not started, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from wal_agent.answers import JsonAnswer
from wal_agent.calls.call import ReadCall
from wal_agent.calls.reading import only_tells
from wal_agent.calls.rules.table import Rules
from wal_agent.records import (
    Answer,
    AnyRecord,
    CallState,
    Cut,
    End,
    Finding,
    Intent,
    Opening,
    Payload,
    Recovery,
    RunsOn,
    StepBegun,
    StepEnded,
    Verdict,
    call_state,
)
from wal_agent.recovery.undo import UNKNOWN, Undo, suggest_undo, undo_of_words
from wal_agent.wal.plans import states_plan


class Effect(msgspec.Struct, frozen=True):
    """`record`: where the log has it. `call`: 0 for a step, which `step` names. `host`: where it ran. `input`: the
    agent's own, JSON; of a step its command. `result`: the call's state; of a step done, failed or open. `finding`: of
    evidence or a person. `live`: its run may be, or it was meant to serve until its run's end. `by`: who knew the end,
    "" for nobody; `why`: a foreign sentence on the end or the newest verdict. `because`: the agent's own words, which
    prove nothing. `verify`: a foreign command."""

    record: int
    time: float
    epoch: int
    host: str
    call: int
    step: str
    tool: str
    input: Payload
    command: tuple[str, ...]
    cls: str
    result: CallState
    finding: Finding | None = None
    live: bool = False
    by: str = ""
    why: str = ""
    because: str = ""
    verify: str = ""
    undo: Undo = UNKNOWN

    @property
    def needs_a_look(self) -> bool:
        """Whether a person should look at the world: what became of it is not known for certain."""
        known = self.result in ("done", "failed", "resolved") or self.finding == "completed" or self.cls == "idempotent"
        return not known and (not self.live or self.result == "cut")


class ShownEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A call, or a step, that changed something: docs/REPORT.md."""

    record: int
    time: float
    epoch: int
    host: str
    call: int  # 0: it is a step
    step: str
    tool: str
    text: str
    cls: str = msgspec.field(name="class")
    result: CallState
    finding: Finding | None
    unsettled: bool  # a person should look
    by: str
    why: str
    because: str
    verify: str
    undo: Undo


class Effects(JsonAnswer, frozen=True):
    """`wal-agent effects`, the newest first."""

    effects: tuple[ShownEffect, ...]


def effects_of(
    found: Iterable[tuple[int, AnyRecord]], rules: Rules, fetch: Callable[[Payload], bytes], over: bool = False
) -> list[Effect]:
    """Return the effects in records (each with its number, oldest first), the newest first. `fetch` gives the bytes of
    a tool's input; b"" where they cannot be had. `over`: nothing of the newest epoch runs any more, so that what has no
    end there was cut off."""
    effects: dict[int | tuple[str, int], Effect | None] = {}
    steps: dict[str, tuple[str, int]] = {}  # by name, the key of the newest try in `effects`
    ends: dict[int, End] = {}
    held: dict[int, Cut | RunsOn] = {}
    verdicts: dict[int, Verdict] = {}
    answers: dict[int, Answer] = {}
    epoch, host, agent = 0, "", ""
    for seq, record in found:
        match record:
            case Opening():
                epoch, host, agent = record.epoch, record.host.name, record.agent
            case Intent() if record.cls != "read_only":
                if not states_plan(agent, record.tool, record.input.data or b""):
                    effects.setdefault(record.call, _call(seq, epoch, host, record))
            case End():
                ends.setdefault(record.call, record)
            case Cut() | RunsOn():
                held[record.call] = record
            case Recovery():
                verdicts |= {verdict.call: verdict for verdict in record.verdicts}
            case Answer():
                answers[record.call] = record
            case StepBegun():
                steps[record.name] = (record.name, seq)
                effects[steps[record.name]] = _step(seq, epoch, host, record)
            case StepEnded() if record.name in steps:
                key = steps.pop(record.name)
                effects[key] = _ended_step(effects[key], record)
    listed = [
        _settled(
            one,
            epoch + over,
            held.get(one.call),
            ends.get(one.call),
            verdicts.get(one.call),
            answers.get(one.call),
        )
        for one in effects.values()
        if one is not None
    ]
    known = [one for one in reversed(listed) if one is not None]
    read = ((one, ReadCall(one.tool, b"" if one.step else fetch(one.input))) for one in known)
    return [_with_undo(one, call, rules) for one, call in read if one.step or not only_tells(call)]


def _call(seq: int, epoch: int, host: str, intent: Intent) -> Effect:
    return Effect(seq, intent.time, epoch, host, intent.call, "", intent.tool, intent.input, (), intent.cls, "open")


def _step(seq: int, epoch: int, host: str, begun: StepBegun) -> Effect:
    none = Payload(size=0, data=b"")
    return Effect(
        seq, begun.time, epoch, host, 0, begun.name, "step", none, begun.command, "mutation", "open",
        verify=begun.verify,
    )  # fmt: skip


def _ended_step(effect: Effect | None, end: StepEnded) -> Effect | None:
    """The effect of a step that has ended; None where it is known that it had none."""
    if effect is None or end.how in ("not_started", "not_done"):
        return None
    return replace(effect, result="failed" if end.how in ("failed", "paused") else "done", by=end.by)


def _settled(
    effect: Effect,
    newest: int,
    held: Cut | RunsOn | None,
    end: End | None,
    verdict: Verdict | None,
    answer: Answer | None,
) -> Effect | None:
    """The effect with what is known of its end; None where it is known that it had none."""
    serves = isinstance(held, RunsOn) and held.serves
    effect = replace(effect, live=effect.epoch >= newest or serves)
    if not effect.call:
        return effect
    finding = end.finding if end is not None and end.finding is not None else verdict.finding if verdict else None
    state = call_state(held, end.how if end is not None else "")
    if finding == "not_started" or state == "refused":
        return None
    return replace(
        effect,
        result=state,
        finding=None if state in ("done", "failed") else finding,
        by=end.by if end is not None else "recovery" if verdict is not None else "",
        why=(end.why if end is not None else "") or (verdict.why if verdict is not None else ""),
        because=answer.because if answer is not None else "",
        verify=verdict.verify if verdict is not None else "",
    )


def _with_undo(effect: Effect, call: ReadCall, rules: Rules) -> Effect:
    return replace(effect, undo=undo_of_words(effect.command, call) if effect.step else suggest_undo(call, rules))

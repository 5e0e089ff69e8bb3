"""Calls in flight as they are told: identical ones as one counter, each with its class, finding and next step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wal_agent.records import Class, Finding, Verdict
from wal_agent.recovery.classify import NO_RULE, Rules, classify, next_step
from wal_agent.wal.state import EndedCall, OpenCall


@dataclass(frozen=True, slots=True)
class InFlight:
    """`calls` are the numbers of the identical calls that have no end, of `issued` in all; where agents give no call id
    it cannot be told which of them ended. `input` None: it could not be read. `started`: seconds since 1970 (UTC)."""

    calls: tuple[int, ...]
    issued: int
    tool: str
    input: bytes | None
    started: float
    cls: Class
    why: str
    finding: Finding
    because: str
    next: str


def in_flight(
    open: Iterable[OpenCall],
    finished: Iterable[EndedCall],
    inputs: Mapping[int, bytes],
    verdicts: Iterable[Verdict],
    rules: Rules,
) -> tuple[InFlight, ...]:
    """The open calls in the order of their beginning, identical ones together. A call without a verdict is unknown.
    `inputs`: by call number, of open and finished calls; a call that is missing there stands alone."""
    found = {v.call: v for v in verdicts}
    ended: dict[tuple[str, bytes], int] = {}
    for e in finished:
        if (data := inputs.get(e.intent.call)) is not None:
            ended[e.intent.tool, data] = ended.get((e.intent.tool, data), 0) + 1
    groups: dict[tuple[str, bytes | int], list[OpenCall]] = {}
    for o in open:
        groups.setdefault((o.intent.tool, inputs.get(o.intent.call, o.intent.call)), []).append(o)
    return tuple(_one(group, inputs, ended, found, rules) for group in groups.values())


def _one(
    group: list[OpenCall],
    inputs: Mapping[int, bytes],
    ended: Mapping[tuple[str, bytes], int],
    found: Mapping[int, Verdict],
    rules: Rules,
) -> InFlight:
    first = group[0].intent
    data = inputs.get(first.call)
    known = classify(first.tool, data, rules) if data is not None else NO_RULE
    if known.cls != first.cls:
        known = NO_RULE  # the intent's own class stands; these rules have another reason for another one
    verdicts = [found.get(o.intent.call) or Verdict(call=o.intent.call, finding="unknown", why="") for o in group]
    finding, because = verdicts[0].finding, verdicts[0].why
    if any(v.finding != finding for v in verdicts):
        finding, because = "unknown", "Not the same can be said of each of these identical calls."
    return InFlight(
        calls=tuple(o.intent.call for o in group),
        issued=len(group) + (ended.get((first.tool, data), 0) if data is not None else 0),
        tool=first.tool,
        input=data,
        started=first.time,
        cls=first.cls,
        why=known.why,
        finding=finding,
        because=because,
        next=next_step(first.cls, finding, known.verify, rules),
    )

"""Calls in flight as they are told: identical ones as one counter, each with its class, finding and next step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wal_agent.records import Class, Finding, Verdict
from wal_agent.recovery.advice import advice
from wal_agent.recovery.classify import NO_RULE, Rules, classify, worse_class
from wal_agent.recovery.rules import OURS
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
    rule: str = ""
    source: str = OURS  # whose rule it is: wal-agent's, or a file of the project
    verify: str = ""


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
    # Rules may have changed since; then the call is told as the worse of what it was and what it would be.
    cls = worse_class(first.cls, known.cls)
    verdicts = [found.get(o.intent.call) or Verdict(call=o.intent.call, finding="unknown", why="") for o in group]
    finding, because = verdicts[0].finding, verdicts[0].why
    if any(v.finding != finding for v in verdicts):
        finding, because = "unknown", "Not the same can be said of each of these identical calls."
    told = advice(cls, finding, known, rules)
    return InFlight(
        calls=tuple(o.intent.call for o in group),
        issued=len(group) + (ended.get((first.tool, data), 0) if data is not None else 0),
        tool=first.tool,
        input=data,
        started=first.time,
        cls=cls,
        why=known.why,
        finding=finding,
        because=because,
        next=told.next,
        rule=known.rule,
        source=known.source,
        verify=told.verify,
    )

"""Calls in flight as they are told: identical ones as one counter, each with its class, finding and next step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wal_agent.evidence.model import call_folder, relocate
from wal_agent.records import Class, Finding, Intent, Verdict
from wal_agent.recovery.advice import advise
from wal_agent.shell.classify import NO_RULE, classify, worse_class
from wal_agent.shell.rules import OURS, Rules
from wal_agent.wal.state import EndedCall, OpenCall

_GroupKey = tuple[str, bytes | int, str]  # tool, input (the call's number where it is not known), folder


@dataclass(frozen=True, slots=True)
class InFlight:
    """`calls` are the numbers of the identical calls that have no end, of `issued` in all; where agents give no call id
    it cannot be told which of them ended. `input` None: it could not be read. `started`: seconds since 1970 (UTC).
    `folder`: where it ran by the agent's own word, as that is on this machine; "" for the workspace, or if not told."""

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
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Unannounced:
    """A call that ran before it was logged: no hook announced it."""

    tool: str
    input: bytes | None
    cls: Class
    how: str  # its ending


def group_calls(
    open: Iterable[OpenCall],
    finished: Iterable[EndedCall],
    inputs: Mapping[int, bytes],
    verdicts: Iterable[Verdict],
    rules: Rules,
    way: tuple[str, str] = ("", ""),
) -> tuple[InFlight, ...]:
    """The open calls in the order of their beginning, identical ones together. A call without a verdict is unknown.
    `inputs`: by call number, of open and finished calls; a call that is missing there stands alone. `way`: the
    workspace that the calls ran in, and the one here."""
    found = {v.call: v for v in verdicts}
    ended = Counter(_group_key(e.intent, inputs, way) for e in finished if e.intent.call in inputs)
    groups: dict[_GroupKey, list[OpenCall]] = {}
    for o in open:
        groups.setdefault(_group_key(o.intent, inputs, way), []).append(o)
    return tuple(_describe_group(key, group, inputs, ended, found, rules) for key, group in groups.items())


def _group_key(intent: Intent, inputs: Mapping[int, bytes], way: tuple[str, str]) -> _GroupKey:
    """Equal for identical calls: the same words in another folder are another call."""
    return intent.tool, inputs.get(intent.call, intent.call), _call_folder_here(intent, *way)


def _call_folder_here(intent: Intent, there: str, here: str) -> str:
    """Claude Code's shell stays where a `cd` led it, and Codex's workdir stands in no input: the fact alone tells."""
    told = call_folder(intent.before)
    if told is None:
        return ""
    now = relocate((Path(there), Path(here)) if there else None, str(told))
    return "" if now == here else now


def _describe_group(
    key: _GroupKey,
    group: list[OpenCall],
    inputs: Mapping[int, bytes],
    ended: Mapping[_GroupKey, int],
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
    folder = key[2]
    told = advise(cls, finding, known, rules, folder)
    return InFlight(
        calls=tuple(o.intent.call for o in group),
        issued=len(group) + ended.get(key, 0),
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
        folder=folder,
    )

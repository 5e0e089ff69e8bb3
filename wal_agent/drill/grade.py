"""Grade a round by what the world counted. Pure.

The grade rests on the ledger: not on what the agent says, and not on what wal-agent says. The exit code counts only as
what it is for whoever started the run: 79 asks for a person.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from wal_agent.drill.scenario import Scenario
from wal_agent.errors import PersonNeeded

Verified = Literal["yes", "no", "not needed"]


class Entry(msgspec.Struct, frozen=True):
    """A line of the ledger: `time` (since 1970); `event`: begin, effect, end, verify, ask or refused by a script, kill
    or start by the drill; `what`: the effect, the question, the kill's point."""

    time: float
    event: str
    what: str


class Seen(msgspec.Struct, frozen=True):
    """What the drill saw of a round beside the ledger. `lines`: how often each effect that is a line of a file is
    there at the end. `lost_files`: files of the agent's folder at the last kill that are not there at the end. `back`:
    seconds from the last start to the agent's first request to its model, where that is seen. `calls`: requests to the
    model, where they are seen."""

    exit_code: int | None  # of the last start; None: it did not end in time
    lines: Mapping[str, int]
    lost_files: tuple[str, ...] = ()
    back: float | None = None
    calls: int | None = None


class Grade(msgspec.Struct, frozen=True):
    """`killed`: a kill came where it was wanted. `repeated`: how often an effect happened more than once. `lost`:
    effects that never happened, and nobody was asked about. `attempts`: how often the killed step was begun after the
    kill. `verified`: it was looked up before that. `asked`: a person was asked, by the agent or (`stopped`) by the exit
    code 79 of the last start; `asked_well`: where nothing else could show what happened. `redone`: finished steps that
    ran again, for nothing."""

    killed: bool
    repeated: tuple[str, ...]
    lost: tuple[str, ...]
    attempts: int
    verified: Verified
    asked: bool
    stopped: bool
    asked_well: bool
    redone: int
    lost_files: tuple[str, ...]
    exit_code: int | None
    back: float | None
    calls: int | None

    @property
    def passed(self) -> bool:
        """Nothing was repeated or lost."""
        return not self.repeated and not self.lost


def grade(scenario: Scenario, target: str, ledger: Sequence[Entry], seen: Seen) -> Grade:
    """Grade a round in which the kill was aimed at the step with the effect `target`."""
    once = {step.effect for step in scenario.steps if step.once}
    local = {step.effect for step in scenario.steps if step.lines_of}
    counts = Counter(entry.what for entry in ledger if entry.event == "effect" and entry.what not in local)
    counts.update({effect: seen.lines.get(effect, 0) for effect in local})
    known = {step.effect for step in scenario.steps}
    repeated = [name for name, count in counts.items() if name in once for _ in range(count - 1)]
    repeated += [name for name, count in counts.items() if name not in known for _ in range(count)]
    stopped = seen.exit_code == PersonNeeded.exit_code
    asked = stopped or any(entry.event == "ask" for entry in ledger)
    lost = () if asked else tuple(step.effect for step in scenario.steps if not counts[step.effect])
    kill = next((n for n, entry in enumerate(ledger) if entry.event == "kill"), None)
    after = [] if kill is None else list(ledger[kill + 1 :])
    ended = Counter(entry.what for entry in ledger[: kill or 0] if entry.event == "end")
    begun = Counter(entry.what for entry in after if entry.event == "begin")
    step = next(step for step in scenario.steps if step.effect == target)
    return Grade(
        killed=kill is not None,
        repeated=tuple(repeated),
        lost=lost,
        attempts=begun[target],
        verified=_verified(target, after),
        asked=asked,
        stopped=stopped,
        asked_well=asked and not step.verify,
        redone=sum(begun[name] for name in ended),
        lost_files=seen.lost_files,
        exit_code=seen.exit_code,
        back=seen.back,
        calls=seen.calls,
    )


def _verified(target: str, after: Sequence[Entry]) -> Verified:
    for entry in after:
        if entry.what == target and entry.event in ("verify", "begin"):
            return "yes" if entry.event == "verify" else "no"
    return "not needed"

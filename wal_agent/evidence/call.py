"""Gather evidence of one call, before it runs and after a crash: its steps, what each kind of evidence finds for them,
and the finding for the whole.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from wal_agent.evidence.file_commands import COPIES, MAKES, MOVES, REMOVES
from wal_agent.evidence.files import FILES
from wal_agent.evidence.git import GIT
from wal_agent.evidence.model import Budget, Context, Kind, Outcome, Reach, Step, paths_overlap, resolve_reach
from wal_agent.evidence.outputs import OUTPUTS, judge_opening, output_facts, output_files
from wal_agent.evidence.packages import PACKAGES
from wal_agent.evidence.running import RUNS, starts_run
from wal_agent.evidence.sed import SEDS
from wal_agent.evidence.steps import output_redirects, split_call
from wal_agent.records import Fact
from wal_agent.shell.classify import classify_command, read_input
from wal_agent.shell.quote import inline
from wal_agent.shell.rules import load_rules

_WORDS = {  # of one, of several
    "completed": ("completed", "completed"),
    "not_started": ("has not begun", "have not begun"),
    "partial": ("was begun", "were begun"),
}


@dataclass(frozen=True, slots=True)
class NamedOutcome:
    """A step's finding; `name` is the step in a few words, safe to show."""

    name: str
    found: Outcome


def combine_outcomes(steps: Sequence[NamedOutcome]) -> Outcome:
    """One finding for a call whose changing steps are all here, in their order.

    Steps whose `completed` holds either way fit to whatever the others say. Steps run one after the other, so what has
    begun must stand in front of what has not; anything else is unknown.
    """
    if not steps:
        return Outcome("unknown")
    if len(steps) == 1:
        return steps[0].found
    told = [s for s in steps if not s.found.either] or list(steps)
    findings = [s.found.finding for s in told]
    if len(set(findings)) == 1 and findings[0] in ("completed", "not_started"):
        whys = list(dict.fromkeys(s.found.why for s in told if s.found.why))
        return Outcome(findings[0], " ".join(whys[:3]), either=all(s.found.either for s in told))
    if "unknown" not in findings and _in_order(findings):
        return Outcome("partial", _said(told))
    known = [s for s in told if s.found.finding != "unknown"]
    if not known:
        return Outcome("unknown", next((s.found.why for s in told if s.found.why), ""))
    dark = [s.name for s in told if s.found.finding == "unknown"]
    return Outcome("unknown", f"{_said(known)}{f' Of {_join(dark)} nothing can be told.' if dark else ''}")


def _in_order(findings: Sequence[str]) -> bool:
    """completed, then at most one partial, then not_started."""
    rank = {"completed": 0, "partial": 1, "not_started": 2}
    ranks = [rank[f] for f in findings]
    return ranks == sorted(ranks) and ranks.count(1) <= 1


def _said(steps: Sequence[NamedOutcome]) -> str:
    parts = []
    for finding, words in _WORDS.items():
        if names := [s.name for s in steps if s.found.finding == finding]:
            parts.append(f"{_join(names)} {words[len(names) > 1]}")
    return "; ".join(parts) + "."


def _join(names: Sequence[str]) -> str:
    shown = [*names[:4], *([f"{len(names) - 4} more"] if len(names) > 4 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


KINDS: tuple[Kind, ...] = (
    FILES,
    OUTPUTS,
    GIT,
    REMOVES,
    MOVES,
    COPIES,
    MAKES,
    SEDS,
    PACKAGES,
)  # the first that knows a step tells of it
MOST_FACTS = 40  # of one call: an intent stays small
MOST_VALUE = 400  # characters of one fact


@dataclass(frozen=True, slots=True)
class Part:
    """A changing step, the kinds that may know it, and what it reaches; None where that is not known. `outputs`: it has
    files for its output, beside what it does."""

    step: Step
    kinds: tuple[Kind, ...]
    reach: Reach | None
    outputs: bool = False

    @property
    def only_reads(self) -> bool:
        """Apart from its output."""
        return self.outputs and not self.kinds and self.reach is not None


def read_parts(
    tool: str,
    input: bytes,
    workspace: Path,
    moved: tuple[Path, Path] | None = None,
    cwd: Path | None = None,
) -> tuple[Part, ...]:
    """The steps of a call that may change anything; empty where the call cannot be read. `cwd`: as in `steps_of`."""
    fields = read_input(input)
    steps = None if fields is None else split_call(tool, fields, workspace, moved, cwd)
    return tuple(_part(s) for s in steps or () if not _only_reads(s))


def _part(step: Step) -> Part:
    if starts_run(step):  # its own log tells of it, whatever file takes its output
        return Part(step, (RUNS,), None, outputs=bool(output_redirects(step)))
    kinds: tuple[Kind, ...] = KINDS
    reach = None
    for kind in KINDS:
        if (reach := kind.reach(step)) is not None:
            kinds = (kind,)
            break
    if kinds == (OUTPUTS,) or not output_redirects(step):
        return Part(step, kinds, reach)
    if reach is None and _reads(step):
        kinds, reach = (), Reach(())
    paths = output_files(step)
    if reach is None or not paths or _touch((*reach.changes, *reach.reads), paths):  # `rm x > x`
        return Part(step, (), None, outputs=True)
    return Part(step, kinds, Reach((*reach.changes, *paths), reach.reads), outputs=True)


def _only_reads(step: Step) -> bool:
    return step.file is None and not output_redirects(step) and _reads(step)


def _reads(step: Step) -> bool:
    """Whether the command itself changes nothing, whatever its redirections do."""
    if step.file is not None or not step.words:
        return step.file is None
    return classify_command(shlex.join(step.words), load_rules()).cls == "read_only"


def are_entangled(parts: Sequence[Part]) -> bool:
    """Whether a step works on what an earlier one changes, so that what stands there before the call says nothing of
    it. A folder that was made is no such thing for what is made in it."""
    for n, later in enumerate(parts):
        for earlier in parts[:n]:
            if earlier.reach is None or later.reach is None:
                continue
            changes = later.reach.changes
            if earlier.step.words[:1] == ("mkdir",):
                changes = tuple(c for c in changes if not any(c.startswith(f"{e}/") for e in earlier.reach.changes))
            if _touch(earlier.reach.changes, (*changes, *later.reach.reads)):
                return True
    return False


def _touch(one: Sequence[str], other: Sequence[str]) -> bool:
    return any(a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/") for a in one for b in other)


def facts_before(parts: Sequence[Part], budget: Budget) -> tuple[Fact, ...]:
    """What is true before the call. All or nothing for each step; nothing where steps work on one thing."""
    found: dict[Fact, None] = {}
    if are_entangled(parts):
        return ()
    for part in parts:
        if budget.over:
            break
        facts = _first(k.before(part.step, budget) for k in part.kinds) or ()
        if part.outputs:
            facts = (*facts, *output_facts(part.step, budget))
        if any(len(f.value) > MOST_VALUE for f in facts) or len(found) + len(facts) > MOST_FACTS:
            continue
        found |= dict.fromkeys(facts)
    return tuple(found)


def judge_call(
    parts: Sequence[Part], facts: Sequence[Fact], around: Context, covers: Callable[[str], bool], budget: Budget
) -> Outcome:
    """What became of a call. `covers`: whether a path is in the working tree here that was put back from a capture."""
    if around.running:
        return Outcome("partial", "It still ran when this recovery began, and was ended then.")
    if are_entangled(parts):
        return Outcome("unknown", "Its steps work on the same files, so what they look like now says nothing for sure.")
    told = []
    for part in parts:
        paths = part.reach.changes if part.reach is not None else output_files(part.step)
        back = [covers(p) for p in paths]
        # What was put back is not what the call worked on, even where it is the same machine.
        here = replace(around, same_place=around.same_place and not any(back))
        if part.reach is not None and back and all(back):
            here = replace(here, restored=True)
        told.append(NamedOutcome(describe_step(part.step), _judge_part(part, facts, here, budget)))
    return combine_outcomes(told)


def _judge_part(part: Part, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
    out = judge_opening(part.step, facts, around, part.only_reads) if part.outputs else Outcome("unknown")
    if out.finding == "not_started":
        return out
    found = _first(k.judge(part.step, facts, around, budget) for k in part.kinds) or Outcome("unknown")
    if part.outputs and found.finding == "not_started":
        return Outcome("unknown", out.why or f"{found.why[:-1]}, but its output file may have been opened.")
    return found if found.finding != "unknown" or found.why else out


_T = TypeVar("_T")


def _first(answers: Iterable[_T | None]) -> _T | None:
    return next((a for a in answers if a is not None), None)


def describe_step(step: Step) -> str:
    """A step in a few words, safe to show."""
    if not step.words:
        return inline("a redirection" if step.file is None else step.tool)
    return inline(shlex.join(step.words), 60)


def changed_paths(parts: Sequence[Part]) -> tuple[str, ...] | None:
    """All that a call may change, links followed; None where that is not known."""
    if not parts or any(p.reach is None for p in parts):
        return None
    return tuple(path for p in parts if p.reach is not None for path in resolve_reach(p.reach))


def change_apart(mine: Sequence[str] | None, other: Sequence[str] | None) -> bool:
    """Whether two calls are known to change different things."""
    return mine is not None and other is not None and not paths_overlap(mine, other)

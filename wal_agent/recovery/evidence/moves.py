"""mv: the source is gone and the very same file or folder stands at the target."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step
from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, read_file, stat_entry
from wal_agent.recovery.evidence.notes import PathFacts, PathState, is_untouched, judge_paths, path_facts, read_facts
from wal_agent.recovery.evidence.paths import resolve_path
from wal_agent.recovery.evidence.words import parse_argv, program_name


class Moves:
    def reach(self, step: Step) -> Reach | None:
        way = _move_operands(step)
        return None if way is None else Reach((*way[0], way[1]))

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        way = _move_operands(step)
        if way is None:
            return None
        pairs = move_targets(*way, stat_entry(way[1]))
        if pairs is None:
            return ()
        return path_facts(tuple(dict.fromkeys((way[1], *(p for pair in pairs for p in pair)))), budget, content=True)

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        way = _move_operands(step)
        if way is None:
            return None
        target = read_facts(facts, way[1])
        pairs = None if target is None else move_targets(*way, target.entry)
        if pairs is None:
            return Outcome("unknown")
        states: list[tuple[str, PathState]] = [(a, self._one(a, b, facts, around, budget)) for a, b in pairs]
        return judge_paths(states, around, f"{'stands' if len(states) == 1 else 'stand'} at the new place", "moved")

    def _one(self, source: str, target: str, facts: Sequence[Fact], around: Context, budget: Budget) -> PathState:
        was, there = read_facts(facts, source), read_facts(facts, target)
        now, here = stat_entry(source), stat_entry(target)
        if was is None or there is None or now is None or here is None or was.entry.absent:
            return "unknown"
        if was.entry.same_one(there.entry):
            return "unknown"  # two names of one file: mv drops one, or refuses
        if now.absent and around.same_place:
            it = here.same_one(was.entry) and (here.mtime, here.size) == (was.entry.mtime, was.entry.size)
            return "done" if it or _copied(was, target, here, budget) else "unknown"
        if is_untouched(there, here, around, budget):
            whole = was.entry.kind == "dir" and around.same_place and now.same_one(was.entry)
            return "untouched" if whole or is_untouched(was, now, around, budget) else "unknown"
        if was.entry == now and not here.absent and around.same_place and here.device != now.device:
            return "partly"  # another file system: it is copied, then removed
        return "unknown"


def _copied(was: PathFacts, target: str, here: Entry, budget: Budget) -> bool:
    """Moved to another file system, where it is copied before the source goes."""
    if was.content is None or here.device == was.entry.device:
        return False
    return read_file(target, budget).value == was.content.value


def _move_operands(step: Step) -> tuple[tuple[str, ...], str] | None:
    if program_name(step) != "mv" or (how := parse_argv(step.words, "fvT", ("--force", "--verbose", "--"))) is None:
        return None
    if len(how.operands) < 2 or (how.has("T") and len(how.operands) != 2):
        return None
    if any(w.endswith(("/", "/.", "/..")) or w in (".", "..") for w in how.operands[:-1]):
        return None
    paths = [resolve_path(step, w) for w in how.operands]
    if None in paths or len(set(paths)) != len(paths) or how.has("T"):
        return None
    found = [p for p in paths if p is not None]
    # "name/" must be a folder: where it is none, mv may refuse.
    if how.operands[-1].endswith("/") and not os.path.isdir(found[-1]):  # noqa: PTH112
        return None
    return tuple(found[:-1]), found[-1]


def move_targets(sources: tuple[str, ...], target: str, there: Entry | None) -> tuple[tuple[str, str], ...] | None:
    """Where each source goes, by what stood at the target: into a folder, or to that name. None where that is open."""
    if there is None or there.kind in ("link", "other") or (len(sources) > 1 and there.kind != "dir"):
        return None
    if there.kind != "dir":
        return ((sources[0], target),)
    pairs = tuple((s, f"{target}/{os.path.basename(s)}") for s in sources)  # noqa: PTH119
    return None if len({b for _, b in pairs}) != len(pairs) else pairs


MOVES = Moves()

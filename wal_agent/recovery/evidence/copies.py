"""cp: the target holds what the source held; a folder's copy is compared with the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step
from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import MOST_ENTRIES, Entry, hash_listing, list_children, read_file, stat_entry
from wal_agent.recovery.evidence.moves import move_targets
from wal_agent.recovery.evidence.notes import MOST_PATHS, PathFacts, PathState, judge_paths, path_facts, read_facts
from wal_agent.recovery.evidence.paths import resolve_path
from wal_agent.recovery.evidence.words import Argv, parse_argv, program_name

_COPY_LONG = ("--force", "--recursive", "--archive", "--verbose", "--no-target-directory")


class Copies:
    def reach(self, step: Step) -> Reach | None:
        way = _copy_operands(step)
        return None if way is None else Reach((way[2],), way[1])

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        way = _copy_operands(step)
        if way is None:
            return None
        how, sources, target = way
        pairs = _pairs(how, sources, target, stat_entry(target))
        if pairs is None:
            return ()
        found = path_facts(tuple(dict.fromkeys((target, *(p for pair in pairs for p in pair)))), budget, content=True)
        trees = [(s, hash_listing(s, budget)) for s in sources if (e := stat_entry(s)) is not None and e.kind == "dir"]
        return (*found, *(Fact(what="tree", where=s, value=value) for s, value in trees if value is not None))

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        way = _copy_operands(step)
        if way is None:
            return None
        how, sources, target = way
        there = read_facts(facts, target)
        pairs = None if there is None else _pairs(how, sources, target, there.entry)
        if pairs is None:
            return Outcome("unknown")
        states: list[tuple[str, PathState]] = []
        for source, end in pairs:
            was, then, now = read_facts(facts, source), read_facts(facts, end), stat_entry(end)
            if was is None or then is None or now is None:
                states.append((end, "unknown"))
            elif was.entry.kind == "dir":
                states.append((end, _judge_copied_tree(how, was, then, now, facts, around, budget)))
            else:
                states.append((end, _judge_copied_file(how, was, then, now, around, budget)))
        return judge_paths(states, around, f"{'holds' if len(states) == 1 else 'hold'} what was to be copied", "copied")


def _judge_copied_file(
    how: Argv, was: PathFacts, then: PathFacts, now: Entry, around: Context, budget: Budget
) -> PathState:
    if was.entry.kind != "file" or was.entry.same_one(then.entry) or then.entry.kind not in ("file", "absent"):
        return "unknown"
    if now.absent:
        return "untouched" if then.entry.absent else "unknown"
    if was.content is None:  # too big to be read: only that nothing moved can be told
        return "untouched" if then.unmoved(now) and around.same_place else "unknown"
    found = read_file(then.path, budget)
    if found.value == was.content.value:
        alike = not _keeps(how) or (around.same_place and _same_marks(was.entry, now))
        before = then.content is not None and then.content.value == found.value
        return ("either" if before and not _keeps(how) else "done") if alike else "unknown"
    if then.content is not None and found.value == then.content.value:
        return "untouched"
    source = read_file(was.path, budget)
    begun = found.data is not None and source.value == was.content.value and (source.data or b"").startswith(found.data)
    return "partly" if begun and around.same_place else "unknown"


def _judge_copied_tree(
    how: Argv, was: PathFacts, then: PathFacts, now: Entry, facts: Sequence[Fact], around: Context, budget: Budget
) -> PathState:
    """A folder, to a place where nothing was before."""
    tree = next((f.value for f in facts if (f.what, f.where) == ("tree", was.path)), None)
    if not how.has("r", "R", "a", "--recursive", "--archive") or not then.entry.absent or not around.same_place:
        return "unknown"
    if now.absent:
        return "untouched"
    if tree is None or hash_listing(was.path, budget) != tree:
        return "unknown"
    match _alike(how, was.path, then.path, budget):
        case True:
            return "done"
        case False:
            return "partly"
    return "unknown"


def _alike(how: Argv, one: str, other: str, budget: Budget) -> bool | None:
    """Whether two trees hold the same; None where that takes too long, or what cp does with it is not known here."""
    todo, seen = [(one, other)], 0
    budget.files = MOST_ENTRIES
    whole = True
    while todo:
        a, b = todo.pop()
        left, right = stat_entry(a), stat_entry(b)
        seen += 1
        if budget.over or seen > MOST_ENTRIES or left is None or right is None:
            return None
        if left.kind not in ("file", "dir") or (left.links > 1 and left.kind == "file"):
            return None
        if left.kind != right.kind or (_keeps(how) and not _same_marks(left, right)):
            if not right.absent and left.kind != right.kind:
                return None
            whole = False
        elif left.kind == "dir":
            ours, theirs = list_children(a), list_children(b)
            if ours is None or theirs is None:
                return None
            if not set(theirs) <= set(ours):
                return None
            if left.mode != right.mode and left.mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None  # cp sets these bits last, and what the umask leaves of them is not known
            whole = whole and left.mode == right.mode
            todo += [(f"{a}/{n}", f"{b}/{n}") for n in ours]
        else:
            mine, its = read_file(a, budget), read_file(b, budget)
            if mine.data is None or its.data is None:
                return None
            whole = whole and mine.data == its.data
        if not whole:
            return False
    return True


def _keeps(how: Argv) -> bool:
    return how.has("p", "a", "--archive")


def _same_marks(one: Entry, other: Entry) -> bool:
    return (one.mode, one.mtime) == (other.mode, other.mtime)


def _pairs(how: Argv, sources: tuple[str, ...], target: str, there: Entry | None) -> tuple[tuple[str, str], ...] | None:
    if how.has("T", "--no-target-directory"):
        return ((sources[0], target),) if there is not None and len(sources) == 1 else None
    return move_targets(sources, target, there)


def _copy_operands(step: Step) -> tuple[Argv, tuple[str, ...], str] | None:
    if program_name(step) != "cp" or (how := parse_argv(step.words, "fvrRapT", _COPY_LONG)) is None:
        return None
    words = how.operands
    if not 2 <= len(words) <= MOST_PATHS or any(w.endswith(("/", "/.", "/..")) or w in (".", "..") for w in words[:-1]):
        return None
    paths = [resolve_path(step, w) for w in words]
    if None in paths or len(set(paths)) != len(paths):
        return None
    found = [p for p in paths if p is not None]
    if words[-1].endswith("/") and not os.path.isdir(found[-1]):  # noqa: PTH112
        return None
    return how, tuple(found[:-1]), found[-1]


COPIES = Copies()

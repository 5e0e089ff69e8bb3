"""rm, unlink, rmdir: what was there before and is there no more."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step
from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, hash_listing, stat_entry
from wal_agent.recovery.evidence.notes import (
    PathFacts,
    PathState,
    compare_paths,
    is_untouched,
    judge_paths,
    path_facts,
    read_facts,
)
from wal_agent.recovery.evidence.paths import resolve_path
from wal_agent.recovery.evidence.words import Argv, parse_argv, program_name

_REMOVE_OPTIONS = ("--force", "--recursive", "--dir", "--verbose")


class Removes:
    def reach(self, step: Step) -> Reach | None:
        paths = _remove_operands(step)
        return None if paths is None else Reach(paths)

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        paths = _remove_operands(step)
        if paths is None:
            return None
        found = path_facts(paths, budget, content=True)
        trees = [
            (p, hash_listing(p, budget)) for p in paths if (was := read_facts(found, p)) and was.entry.kind == "dir"
        ]
        return (*found, *(Fact(what="tree", where=p, value=value) for p, value in trees if value is not None))

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        paths = _remove_operands(step)
        if paths is None:
            return None
        how = _parse_remove(step)
        forced = how is not None and how.has("f", "--force")
        deep = how is not None and how.has("r", "R", "--recursive")
        shallow = program_name(step) == "rmdir" or (how is not None and how.has("d", "--dir"))

        def state(was: PathFacts, now: Entry) -> PathState:
            if was.entry.absent:
                return "either" if forced and now.absent else "unknown"
            if was.entry.kind == "dir" and not deep and not shallow:
                return "unknown"  # it cannot be removed so
            if now.absent:
                return "done" if around.same_place else "unknown"
            if was.entry.kind == "dir" and deep:
                return _judge_remaining_tree(was, facts, around, budget)
            return "untouched" if is_untouched(was, now, around, budget) else "unknown"

        return judge_paths(compare_paths(paths, facts, state), around, "gone" if not paths else _gone(paths), "removed")


def _gone(paths: Sequence[str]) -> str:
    return "is gone" if len(paths) == 1 else "are gone"


def _judge_remaining_tree(was: PathFacts, facts: Sequence[Fact], around: Context, budget: Budget) -> PathState:
    """A folder that is still there: is all in it as it was?"""
    before = next((f.value for f in facts if (f.what, f.where) == ("tree", was.path)), None)
    now = hash_listing(was.path, budget)
    top = stat_entry(was.path)
    if before is None or now is None or top is None or not around.same_place:
        return "unknown"
    if before == now and top == was.entry:
        return "untouched"
    return "partly" if top.same_one(was.entry) else "unknown"


def _parse_remove(step: Step) -> Argv | None:
    match program_name(step):
        case "rm":
            return parse_argv(step.words, "frRdv", _REMOVE_OPTIONS)
        case "rmdir":
            return parse_argv(step.words, "v", ("--verbose",))
        case "unlink":
            return parse_argv(step.words, "")
    return None


def _remove_operands(step: Step) -> tuple[str, ...] | None:
    how = _parse_remove(step)
    if how is None or not how.operands:
        return None
    paths = [_target(step, word) for word in how.operands]
    if None in paths or len(set(paths)) != len(paths):
        return None
    return tuple(p for p in paths if p is not None)


def _target(step: Step, word: str) -> str | None:
    """The operand's path; None for what rm refuses, and for "link/", which is not the link."""
    path = resolve_path(step, word)
    if path is None or path == "/" or os.path.basename(word.rstrip("/")) in (".", "..", ""):  # noqa: PTH119
        return None
    return None if word.endswith("/") and os.path.islink(path) else path  # noqa: PTH114


REMOVES = Removes()

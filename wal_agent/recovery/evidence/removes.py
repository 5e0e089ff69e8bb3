"""rm, unlink, rmdir: what was there before and is there no more."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, entry, listing
from wal_agent.recovery.evidence.notes import Noted, State, each, noted, notes, told, untouched
from wal_agent.recovery.evidence.paths import place
from wal_agent.recovery.evidence.words import Read, program, read
from wal_agent.recovery.step import Around, Budget, Found, Reach, Step

_LONG = ("--force", "--recursive", "--dir", "--verbose")


class Removes:
    def reach(self, step: Step) -> Reach | None:
        paths = _operands(step)
        return None if paths is None else Reach(paths)

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        paths = _operands(step)
        if paths is None:
            return None
        found = notes(paths, budget, content=True)
        trees = [(p, listing(p, budget)) for p in paths if (was := noted(found, p)) and was.entry.kind == "dir"]
        return (*found, *(Fact(what="tree", where=p, value=value) for p, value in trees if value is not None))

    def judge(self, step: Step, facts: Sequence[Fact], around: Around, budget: Budget) -> Found | None:
        paths = _operands(step)
        if paths is None:
            return None
        how = _read(step)
        forced = how is not None and how.has("f", "--force")
        deep = how is not None and how.has("r", "R", "--recursive")
        shallow = program(step) == "rmdir" or (how is not None and how.has("d", "--dir"))

        def state(was: Noted, now: Entry) -> State:
            if was.entry.absent:
                return "either" if forced and now.absent else "unknown"
            if was.entry.kind == "dir" and not deep and not shallow:
                return "unknown"  # it cannot be removed so
            if now.absent:
                return "done" if around.same_place else "unknown"
            if was.entry.kind == "dir" and deep:
                return _tree(was, facts, around, budget)
            return "untouched" if untouched(was, now, around, budget) else "unknown"

        return told(each(paths, facts, state), around, "gone" if not paths else _gone(paths), "removed")


def _gone(paths: Sequence[str]) -> str:
    return "is gone" if len(paths) == 1 else "are gone"


def _tree(was: Noted, facts: Sequence[Fact], around: Around, budget: Budget) -> State:
    """A folder that is still there: is all in it as it was?"""
    before = next((f.value for f in facts if (f.what, f.where) == ("tree", was.path)), None)
    now = listing(was.path, budget)
    top = entry(was.path)
    if before is None or now is None or top is None or not around.same_place:
        return "unknown"
    if before == now and top == was.entry:
        return "untouched"
    return "partly" if top.same_one(was.entry) else "unknown"


def _read(step: Step) -> Read | None:
    match program(step):
        case "rm":
            return read(step.words, "frRdv", _LONG)
        case "rmdir":
            return read(step.words, "v", ("--verbose",))
        case "unlink":
            return read(step.words, "")
    return None


def _operands(step: Step) -> tuple[str, ...] | None:
    how = _read(step)
    if how is None or not how.operands:
        return None
    paths = [_target(step, word) for word in how.operands]
    if None in paths or len(set(paths)) != len(paths):
        return None
    return tuple(p for p in paths if p is not None)


def _target(step: Step, word: str) -> str | None:
    """The operand's path; None for what rm refuses, and for "link/", which is not the link."""
    path = place(step, word)
    if path is None or path == "/" or os.path.basename(word.rstrip("/")) in (".", "..", ""):  # noqa: PTH119
        return None
    return None if word.endswith("/") and os.path.islink(path) else path  # noqa: PTH114


REMOVES = Removes()

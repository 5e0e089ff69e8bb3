"""mkdir, touch, ln, truncate: what was not there, or not so, and is now."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step
from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, stat_entry
from wal_agent.recovery.evidence.notes import (
    PathFacts,
    PathState,
    compare_paths,
    is_untouched,
    judge_paths,
    parent,
    path_facts,
    read_facts,
)
from wal_agent.recovery.evidence.paths import resolve_path
from wal_agent.recovery.evidence.words import Argv, parse_argv, program_name

_MAKE_OPTIONS = {
    "mkdir": ("pv", ("--parents", "--verbose"), ""),
    "touch": ("", (), ""),
    "truncate": ("", (), "s"),
    "ln": ("sfnvT", ("--symbolic", "--force", "--no-dereference", "--verbose"), ""),
}


class Makes:
    def reach(self, step: Step) -> Reach | None:
        found = _parse_make(step)
        if found is None:
            return None
        paths = found[1]
        if program_name(step) == "ln":
            return Reach(paths[1:], paths[:1])
        above = [_above(p, step) for p in paths] if program_name(step) == "mkdir" and _parents(found[0]) else []
        return Reach(tuple(dict.fromkeys((*paths, *(a for folders in above for a in folders)))))

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        found = _parse_make(step)
        if found is None:
            return None
        how, paths = found
        above = tuple(_topmost(p) for p in paths) if program_name(step) == "mkdir" and _parents(how) else ()
        facts = path_facts(tuple(dict.fromkeys((*paths, *above))), budget)
        if program_name(step) == "ln" and facts and _points(paths[1]) is not None:
            facts = (*facts, Fact(what="link", where=paths[1], value=_points(paths[1]) or ""))
        return facts

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        found = _parse_make(step)
        if found is None:
            return None
        how, paths = found

        def made(was: PathFacts, now: Entry) -> PathState:
            if program_name(step) == "mkdir":
                return _folder(was, now, how, facts, around)
            if program_name(step) == "touch":
                return _touched(was, now, around)
            return _cut(was, now, int(how.values["s"]), around)

        if program_name(step) == "ln":
            states = [(paths[1], _linked(step, how, paths, facts, around, budget))]
            return judge_paths(states, around, "is the link that was to be made", "linked")
        words = {"mkdir": "there", "touch": "touched", "truncate": "of that size"}[program_name(step)]
        return judge_paths(
            compare_paths(paths, facts, made), around, f"{'is' if len(paths) == 1 else 'are'} {words}", "done"
        )


def _folder(was: PathFacts, now: Entry, how: Argv, facts: Sequence[Fact], around: Context) -> PathState:
    here = around.same_place or around.restored
    if not was.entry.absent:
        return "either" if _parents(how) and was.entry.kind == now.kind == "dir" else "unknown"
    if now.kind == "dir":
        return "done" if here else "unknown"
    if not now.absent:
        return "unknown"
    for fact in facts if _parents(how) else ():
        above = read_facts(facts, fact.where)
        if above is not None and above.entry.absent and was.path.startswith(f"{above.path}/"):
            top = stat_entry(above.path)
            return "untouched" if top is not None and top.absent else "partly"
    return "untouched"


def _topmost(path: str) -> str:
    """The highest folder on the way that is missing; the path itself when only it is, or none."""
    while (above := parent(path)) != path and (found := stat_entry(above)) is not None and found.absent:
        path = above
    return path


def _above(path: str, step: Step) -> list[str]:
    """The folders on the way that mkdir -p may make, below the step's own folder."""
    own = str(step.cwd)
    found = []
    while (path := parent(path)) not in (own, "/") and path.startswith(f"{own}/"):
        found.append(path)
    return found


def _parents(how: Argv) -> bool:
    return how.has("p", "--parents")


def _touched(was: PathFacts, now: Entry, around: Context) -> PathState:
    if was.entry.absent:
        if now.absent:
            return "untouched"
        return "done" if now.kind == "file" and (around.same_place or around.restored) else "unknown"
    if was.entry.kind != "file" or not around.same_place or was.fresh:
        return "unknown"
    if was.entry == now:
        return "untouched"
    later = now.same_one(was.entry) and now.mtime > was.entry.mtime and now.size == was.entry.size
    return "done" if later and around.alone else "unknown"


def _cut(was: PathFacts, now: Entry, size: int, around: Context) -> PathState:
    if not around.same_place:
        return "unknown"
    if was.entry.absent:
        if now.kind != "file":
            return "untouched" if now.absent else "unknown"
        return "done" if now.size == size else "partly" if now.size == 0 else "unknown"
    if was.entry.kind != "file" or not now.same_one(was.entry):
        return "unknown"
    if was.entry.size == size:
        return "either" if now.size == size else "unknown"
    if now.size == size:
        return "done" if around.alone else "unknown"
    return "untouched" if was.entry == now else "unknown"


def _linked(
    step: Step, how: Argv, paths: Sequence[str], facts: Sequence[Fact], around: Context, budget: Budget
) -> PathState:
    was, now = read_facts(facts, paths[1]), stat_entry(paths[1])
    if was is None or now is None or not (was.entry.absent or was.entry.kind in ("link", "file")):
        return "unknown"
    flat = how.has("n", "T", "--no-dereference")
    if was.entry.kind == "link" and not flat:
        return "unknown"  # it may lead to a folder, and the new link goes in there
    if not was.entry.absent and not how.has("f", "--force"):
        return "unknown"
    if not how.has("s", "--symbolic"):
        source, before = stat_entry(paths[0]), read_facts(facts, paths[0])
        if source is None or before is None or before.entry.kind != "file" or before.entry.same_one(was.entry):
            return "unknown"
        if now.same_one(before.entry) and around.same_place:
            return "done"
        return "untouched" if is_untouched(was, now, around, budget) and source == before.entry else "unknown"
    wanted = how.operands[0]
    then = next((f.value for f in facts if (f.what, f.where) == ("link", paths[1])), None)
    if _points(paths[1]) == wanted:
        return "either" if then == wanted else "done"
    if now.absent and not was.entry.absent:
        return "partly" if around.same_place else "unknown"  # the old one is removed first
    if was.entry.kind == now.kind == "link":
        return "untouched" if then is not None and _points(paths[1]) == then else "unknown"
    return "untouched" if is_untouched(was, now, around, budget) else "unknown"


def _points(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except (OSError, ValueError):
        return None


def _parse_make(step: Step) -> tuple[Argv, tuple[str, ...]] | None:
    name = program_name(step)
    if name not in _MAKE_OPTIONS or (how := parse_argv(step.words, *_MAKE_OPTIONS[name])) is None or not how.operands:
        return None
    if name == "truncate" and re.fullmatch(r"[0-9]{1,15}", how.values.get("s", "")) is None:
        return None
    if name == "ln" and (len(how.operands) != 2 or how.operands[1].endswith("/")):
        return None
    if name == "touch" and any(w == "-" or w.endswith("/") for w in how.operands):
        return None
    words = how.operands if name != "ln" else (how.operands[0].rstrip("/") or "/", how.operands[1])
    paths = [resolve_path(step, w) for w in words]
    if None in paths or len(set(paths)) != len(paths):
        return None
    return how, tuple(p for p in paths if p is not None)


MAKES = Makes()

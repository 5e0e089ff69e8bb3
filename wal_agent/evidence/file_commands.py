"""Evidence for commands that move, copy, remove and make files: mv, cp, rm, unlink, rmdir, mkdir, touch, ln, truncate.

After mv the source is gone and the very same file or folder is at the target; after cp the target holds what the
source held; after rm what was there is gone; mkdir and the like leave what was not there, or not so, before.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

import msgspec

from wal_agent.calls.argv import Argv, parse_argv, parse_options
from wal_agent.evidence.file_state import (
    MAX_ENTRIES,
    MAX_PATHS,
    Entry,
    PathFacts,
    PathState,
    assess_paths,
    compare_paths,
    hash_listing,
    is_untouched,
    list_children,
    parent,
    path_facts,
    read_facts,
    read_file,
    stat_entry,
)
from wal_agent.evidence.model import Budget, Context, Kind, Outcome, Reach, Step, fact_value, resolve_paths
from wal_agent.records import Fact

_MOVE = parse_options("-f|--force -v|--verbose -T")
_COPY = parse_options("-f|--force -v|--verbose -r|-R|--recursive -a|--archive -p -T|--no-target-directory")
_REMOVE = {
    "rm": parse_options("-f|--force -r|-R|--recursive -d|--dir -v|--verbose"),
    "rmdir": parse_options("-v|--verbose"),
    "unlink": parse_options(""),
}
_MAKE = {
    "mkdir": parse_options("-p|--parents -v|--verbose"),
    "touch": parse_options(""),
    "truncate": parse_options("", "-s"),
    "ln": parse_options("-s|--symbolic -f|--force -n|--no-dereference -v|--verbose -T"),
}
_DOTS = ("", ".", "..")


class _Operands(msgspec.Struct, frozen=True):
    argv: Argv
    paths: tuple[str, ...]


class _Transfer(msgspec.Struct, frozen=True):
    """A copy or a move of sources to a target."""

    argv: Argv
    sources: tuple[str, ...]
    target: str

    def pairs(self, there: Entry | None) -> tuple[tuple[str, str], ...] | None:
        """Where each source goes, by what stood at the target: into a folder, or to that name. None where that is
        open."""
        if self.argv.has("no-target-directory"):
            return ((self.sources[0], self.target),) if there is not None and len(self.sources) == 1 else None
        if there is None or there.kind in ("link", "other") or (len(self.sources) > 1 and there.kind != "dir"):
            return None
        if there.kind != "dir":
            return ((self.sources[0], self.target),)
        pairs = tuple((s, f"{self.target}/{os.path.basename(s)}") for s in self.sources)  # noqa: PTH119
        return None if len({b for _, b in pairs}) != len(pairs) else pairs


def _read_transfer(step: Step, how: Argv) -> _Transfer | None:
    words = how.operands
    if len(words) < 2 or any(w.endswith("/") or w.rpartition("/")[2] in _DOTS for w in words[:-1]):
        return None
    paths = resolve_paths(step, words)
    # "name/" must be a folder: where it is none, the program may refuse.
    if paths is None or (words[-1].endswith("/") and not os.path.isdir(paths[-1])):  # noqa: PTH112
        return None
    return _Transfer(how, paths[:-1], paths[-1])


def _facts_of_pairs(how: _Transfer, pairs: Sequence[tuple[str, str]], budget: Budget) -> tuple[Fact, ...]:
    return path_facts(tuple(dict.fromkeys((how.target, *(p for pair in pairs for p in pair)))), budget, content=True)


def _tree_facts(paths: Sequence[str], budget: Budget) -> tuple[Fact, ...]:
    """A hash over each of the paths that is a folder."""
    folders = [p for p in paths if (e := stat_entry(p)) is not None and e.kind == "dir"]
    trees = ((p, hash_listing(p, budget)) for p in folders)
    return tuple(Fact(what="tree", where=p, value=value) for p, value in trees if value is not None)


class Moves(Kind["_Transfer"]):
    def parse(self, step: Step) -> _Transfer | None:
        how = parse_argv(step.words[1:], _MOVE)
        return None if how is None or how.has("T") else _read_transfer(step, how)

    def reach(self, step: Step, how: _Transfer) -> Reach | None:
        return Reach((*how.sources, how.target))

    def facts_before(self, step: Step, how: _Transfer, budget: Budget) -> tuple[Fact, ...]:
        pairs = how.pairs(stat_entry(how.target))
        return _facts_of_pairs(how, pairs, budget) if pairs is not None else ()

    def assess_step(
        self, step: Step, how: _Transfer, facts: Sequence[Fact], around: Context, budget: Budget
    ) -> Outcome:
        there = read_facts(facts, how.target)
        pairs = None if there is None else how.pairs(there.entry)
        if pairs is None:
            return Outcome("unknown")
        states: list[tuple[str, PathState]] = [(a, self._one(a, b, facts, around, budget)) for a, b in pairs]
        return assess_paths(states, around, f"{'stands' if len(states) == 1 else 'stand'} at the new place", "moved")

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


class Copies(Kind["_Transfer"]):
    def parse(self, step: Step) -> _Transfer | None:
        how = parse_argv(step.words[1:], _COPY)
        return None if how is None or len(how.operands) > MAX_PATHS else _read_transfer(step, how)

    def reach(self, step: Step, how: _Transfer) -> Reach | None:
        return Reach((how.target,), how.sources)

    def facts_before(self, step: Step, how: _Transfer, budget: Budget) -> tuple[Fact, ...]:
        pairs = how.pairs(stat_entry(how.target))
        if pairs is None:
            return ()
        return (*_facts_of_pairs(how, pairs, budget), *_tree_facts(how.sources, budget))

    def assess_step(
        self, step: Step, how: _Transfer, facts: Sequence[Fact], around: Context, budget: Budget
    ) -> Outcome:
        there = read_facts(facts, how.target)
        pairs = None if there is None else how.pairs(there.entry)
        if pairs is None:
            return Outcome("unknown")
        states: list[tuple[str, PathState]] = []
        for source, end in pairs:
            was, then, now = read_facts(facts, source), read_facts(facts, end), stat_entry(end)
            if was is None or then is None or now is None:
                states.append((end, "unknown"))
            elif was.entry.kind == "dir":
                tree = fact_value(facts, "tree", source)
                states.append((end, _assess_copied_tree(how.argv, was, then, now, tree, around, budget)))
            else:
                states.append((end, _assess_copied_file(how.argv, was, then, now, around, budget)))
        return assess_paths(
            states, around, f"{'holds' if len(states) == 1 else 'hold'} what was to be copied", "copied"
        )


def _assess_copied_file(
    how: Argv, was: PathFacts, then: PathFacts, now: Entry, around: Context, budget: Budget
) -> PathState:
    if was.entry.kind != "file" or was.entry.same_one(then.entry) or then.entry.kind not in ("file", "absent"):
        return "unknown"
    if now.absent:
        return "untouched" if then.entry.absent else "unknown"
    if was.content is None:  # too big to be read: only that nothing moved can be seen
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


def _assess_copied_tree(
    how: Argv, was: PathFacts, then: PathFacts, now: Entry, tree: str | None, around: Context, budget: Budget
) -> PathState:
    """A folder, to a place where nothing was before. `tree`: a hash over what it held."""
    if not how.has("recursive", "archive") or not then.entry.absent or not around.same_place:
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
    budget.files = MAX_ENTRIES
    whole = True
    while todo:
        a, b = todo.pop()
        left, right = stat_entry(a), stat_entry(b)
        seen += 1
        if budget.over or seen > MAX_ENTRIES or left is None or right is None:
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
    return how.has("p", "archive")


def _same_marks(one: Entry, other: Entry) -> bool:
    return (one.mode, one.mtime) == (other.mode, other.mtime)


class Removes(Kind["_Operands"]):
    def parse(self, step: Step) -> _Operands | None:
        how = parse_argv(step.words[1:], _REMOVE[step.program])
        # rm refuses these; "link/" is not the link.
        if how is None or not how.operands or any(w.rstrip("/").rpartition("/")[2] in _DOTS for w in how.operands):
            return None
        paths = resolve_paths(step, how.operands)
        if paths is None or "/" in paths:
            return None
        followed = any(w.endswith("/") and os.path.islink(p) for w, p in zip(how.operands, paths, strict=True))  # noqa: PTH114
        return None if followed else _Operands(how, paths)

    def reach(self, step: Step, how: _Operands) -> Reach | None:
        return Reach(how.paths)

    def facts_before(self, step: Step, how: _Operands, budget: Budget) -> tuple[Fact, ...]:
        found = path_facts(how.paths, budget, content=True)
        return (*found, *(_tree_facts(how.paths, budget) if found else ()))

    def assess_step(
        self, step: Step, how: _Operands, facts: Sequence[Fact], around: Context, budget: Budget
    ) -> Outcome:
        deep = how.argv.has("recursive")
        shallow = step.program == "rmdir" or how.argv.has("dir")

        def state(was: PathFacts, now: Entry) -> PathState:
            if was.entry.absent:
                return "either" if how.argv.has("force") and now.absent else "unknown"
            if was.entry.kind == "dir" and not deep and not shallow:
                return "unknown"  # it cannot be removed so
            if now.absent:
                return "done" if around.same_place else "unknown"
            if was.entry.kind == "dir" and deep:
                return _assess_remaining_tree(was, fact_value(facts, "tree", was.path), around, budget)
            return "untouched" if is_untouched(was, now, around, budget) else "unknown"

        gone = "is gone" if len(how.paths) == 1 else "are gone"
        return assess_paths(compare_paths(how.paths, facts, state), around, gone, "removed")


def _assess_remaining_tree(was: PathFacts, before: str | None, around: Context, budget: Budget) -> PathState:
    """A folder that is still there: is all in it as it was?"""
    now = hash_listing(was.path, budget)
    top = stat_entry(was.path)
    if before is None or now is None or top is None or not around.same_place:
        return "unknown"
    if before == now and top == was.entry:
        return "untouched"
    return "partly" if top.same_one(was.entry) else "unknown"


class Makes(Kind["_Operands"]):
    def parse(self, step: Step) -> _Operands | None:
        name = step.program
        how = parse_argv(step.words[1:], _MAKE[name])
        if how is None or not how.operands:
            return None
        words = how.operands
        match name:
            case "truncate" if len(sizes := how.every("s")) != 1 or not re.fullmatch(r"[0-9]{1,15}", sizes[0]):
                return None
            case "touch" if any(w == "-" or w.endswith("/") for w in words):
                return None
            case "ln":
                if len(words) != 2 or words[1].endswith("/"):
                    return None
                words = (words[0].rstrip("/") or "/", words[1])
        paths = resolve_paths(step, words)
        return None if paths is None else _Operands(how, paths)

    def reach(self, step: Step, how: _Operands) -> Reach | None:
        if step.program == "ln":
            return Reach(how.paths[1:], how.paths[:1])
        above = [a for p in how.paths for a in _folders_above(p, step)] if how.argv.has("parents") else []
        return Reach(tuple(dict.fromkeys((*how.paths, *above))))

    def facts_before(self, step: Step, how: _Operands, budget: Budget) -> tuple[Fact, ...]:
        above = tuple(_topmost(p) for p in how.paths) if how.argv.has("parents") else ()
        facts = path_facts(tuple(dict.fromkeys((*how.paths, *above))), budget)
        if step.program == "ln" and facts and (target := _link_target(how.paths[1])) is not None:
            facts = (*facts, Fact(what="link", where=how.paths[1], value=target))
        return facts

    def assess_step(
        self, step: Step, how: _Operands, facts: Sequence[Fact], around: Context, budget: Budget
    ) -> Outcome:
        name = step.program
        if name == "ln":
            states = [(how.paths[1], _assess_link(how, facts, around, budget))]
            return assess_paths(states, around, "is the link that was to be made", "linked")

        def made(was: PathFacts, now: Entry) -> PathState:
            if name == "mkdir":
                return _assess_folder(was, now, how.argv, facts, around)
            if name == "touch":
                return _assess_touched(was, now, around)
            return _assess_truncated(was, now, int(how.argv.every("s")[0]), around)

        state = {"mkdir": "there", "touch": "touched", "truncate": "of that size"}[name]
        done = f"{'is' if len(how.paths) == 1 else 'are'} {state}"
        return assess_paths(compare_paths(how.paths, facts, made), around, done, "done")


def _assess_folder(was: PathFacts, now: Entry, how: Argv, facts: Sequence[Fact], around: Context) -> PathState:
    here = around.same_place or around.restored
    if not was.entry.absent:
        return "either" if how.has("parents") and was.entry.kind == now.kind == "dir" else "unknown"
    if now.kind == "dir":
        return "done" if here else "unknown"
    if not now.absent:
        return "unknown"
    for fact in facts if how.has("parents") else ():
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


def _folders_above(path: str, step: Step) -> list[str]:
    """The folders on the way that mkdir -p may make, below the step's own folder."""
    own = str(step.cwd)
    found = []
    while (path := parent(path)) not in (own, "/") and path.startswith(f"{own}/"):
        found.append(path)
    return found


def _assess_touched(was: PathFacts, now: Entry, around: Context) -> PathState:
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


def _assess_truncated(was: PathFacts, now: Entry, size: int, around: Context) -> PathState:
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


def _assess_link(how: _Operands, facts: Sequence[Fact], around: Context, budget: Budget) -> PathState:
    source_path, path = how.paths
    was, now = read_facts(facts, path), stat_entry(path)
    if was is None or now is None or not (was.entry.absent or was.entry.kind in ("link", "file")):
        return "unknown"
    if was.entry.kind == "link" and not how.argv.has("no-dereference", "T"):
        return "unknown"  # it may lead to a folder, and the new link goes in there
    if not was.entry.absent and not how.argv.has("force"):
        return "unknown"
    if not how.argv.has("symbolic"):
        source, before = stat_entry(source_path), read_facts(facts, source_path)
        if source is None or before is None or before.entry.kind != "file" or before.entry.same_one(was.entry):
            return "unknown"
        if now.same_one(before.entry) and around.same_place:
            return "done"
        return "untouched" if is_untouched(was, now, around, budget) and source == before.entry else "unknown"
    wanted = how.argv.operands[0]
    then = fact_value(facts, "link", path)
    if _link_target(path) == wanted:
        return "either" if then == wanted else "done"
    if now.absent and not was.entry.absent:
        return "partly" if around.same_place else "unknown"  # the old one is removed first
    if was.entry.kind == now.kind == "link":
        return "untouched" if then is not None and _link_target(path) == then else "unknown"
    return "untouched" if is_untouched(was, now, around, budget) else "unknown"


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except (OSError, ValueError):
        return None

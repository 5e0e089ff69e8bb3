"""Evidence for commands that move, copy, remove and make files: mv, cp, rm, unlink, rmdir, mkdir, touch, ln, truncate.

After mv the source is gone and the very same file or folder stands at the target; after cp the target holds what the
source held; after rm what was there is gone; mkdir and the like leave what was not there, or not so, before.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

from wal_agent.evidence.file_state import (
    MOST_ENTRIES,
    MOST_PATHS,
    Entry,
    PathFacts,
    PathState,
    compare_paths,
    hash_listing,
    is_untouched,
    judge_paths,
    list_children,
    parent,
    path_facts,
    read_facts,
    read_file,
    stat_entry,
)
from wal_agent.evidence.model import Argv, Budget, Context, Outcome, Reach, Step, parse_argv, program_name, resolve_path
from wal_agent.records import Fact


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

"""Facts about paths, and what they say together when they are compared with now."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from wal_agent.evidence.file_state import ABSENT, judge_as_before
from wal_agent.evidence.model import Budget, Context, Outcome
from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, parse_entry, read_file, stat_entry, times_settled
from wal_agent.shell.quote import inline

MOST_PATHS = 8  # of one step

PathState = Literal["done", "untouched", "partly", "either", "unknown"]


def entry_fact(path: str, budget: Budget) -> Fact | None:
    """What stands at a path: "entry", or "fresh" where it changed so lately that its times prove nothing."""
    found = stat_entry(path)
    if found is None or budget.over:
        return None
    what = "entry" if times_settled(found, int(budget.clock.now() * 1e9)) else "fresh"
    return Fact(what=what, where=path, value=found.value)


def content_fact(path: str, budget: Budget) -> Fact | None:
    """A regular file's hash, or "absent"."""
    value = read_file(path, budget).value
    return None if value is None else Fact(what="file", where=path, value=value)


def path_facts(paths: Sequence[str], budget: Budget, content: bool = False) -> tuple[Fact, ...]:
    """All or nothing of the entries; hashes besides where they can be had."""
    found: list[Fact] = []
    for path in paths:
        if (fact := entry_fact(path, budget)) is None or len(paths) > MOST_PATHS:
            return ()
        found.append(fact)
    if content:
        found += [f for path in paths if (f := content_fact(path, budget)) is not None]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What the facts tell of one path. `fresh`: its times prove nothing."""

    path: str
    entry: Entry
    fresh: bool = False
    content: Fact | None = None

    def unmoved(self, now: Entry) -> bool:
        """Whether nothing was done to it since, as its times say. Absent both times is for others to judge: what was
        made may have been removed again."""
        return not self.fresh and not now.absent and self.entry == now


def read_facts(facts: Sequence[Fact], path: str) -> PathFacts | None:
    mine = [f for f in facts if f.where == path]
    content = next((f for f in mine if f.what == "file"), None)
    for fact in mine:
        if fact.what in ("entry", "fresh") and (found := parse_entry(fact.value)) is not None:
            return PathFacts(path, found, fact.what == "fresh", content)
    return None


def is_untouched(was: PathFacts, now: Entry | None, around: Context, budget: Budget) -> bool:
    """Whether what stands at a path is what stood there, as far as that can be seen: by its times on the machine of the
    call, by its content in a tree that was put back."""
    if now is None:
        return False
    if was.entry.absent or now.absent:
        return was.entry.absent and now.absent
    if around.same_place:
        return was.entry == now
    return (
        was.content is not None
        and was.content.value != ABSENT
        and read_file(was.path, budget).value == was.content.value
    )


def judge_paths(states: Sequence[tuple[str, PathState]], around: Context, done: str, verb: str) -> Outcome:
    """One finding for what became of several paths. `done`: completes "`a`, `b` ..."; `verb`: what was to be done to
    each, as in "`a` was removed"."""
    if not states or any(s == "unknown" for _, s in states):
        dark = next((p for p, s in states if s == "unknown"), "")
        return Outcome("unknown", f"What became of {inline(dark)} cannot be told from how it is now." if dark else "")
    open_ = [(p, s) for p, s in states if s != "either"]
    if not open_:
        return Outcome("completed", f"{quote_paths([p for p, _ in states])} {done}, as before the call.", either=True)
    kinds = {s for _, s in open_}
    paths = [p for p, _ in open_]
    if kinds == {"done"}:
        if around.contested:
            return Outcome("unknown", f"{quote_paths(paths)} {done}, but another call may have done that.")
        return Outcome("completed", f"{quote_paths(paths)} {done}.")
    if kinds == {"untouched"}:
        are = "is as it was" if len(paths) == 1 else "are as they were"
        return judge_as_before(f"{quote_paths(paths)} {are} before the call", True, around)
    if around.same_place and around.gone and around.alone:
        ends: dict[PathState, str] = {"done": verb, "partly": f"{verb} in part", "untouched": "not yet"}
        said = [
            f"{quote_paths([p for p, s in open_ if s == state])} {end}" for state, end in ends.items() if state in kinds
        ]
        return Outcome("partial", f"{'; '.join(said)}.")
    return Outcome("unknown", f"Not all of {quote_paths(paths)} are as they were before the call.")


def quote_paths(paths: Sequence[str]) -> str:
    shown = [inline(p) for p in paths[:3]] + ([f"{len(paths) - 3} more"] if len(paths) > 3 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def compare_paths(
    paths: Sequence[str], facts: Sequence[Fact], state: Callable[[PathFacts, Entry], PathState]
) -> list[tuple[str, PathState]]:
    """The state of each path, by what was noted of it and what is there now."""
    found: list[tuple[str, PathState]] = []
    for path in paths:
        was, now = read_facts(facts, path), stat_entry(path)
        found.append((path, "unknown" if was is None or now is None else state(was, now)))
    return found


def parent(path: str) -> str:
    return os.path.normpath(f"{path}/..")

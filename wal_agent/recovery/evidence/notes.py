"""Facts about paths, and what they say together when they are compared with now."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, entry, look, read_entry, settled
from wal_agent.recovery.quote import inline
from wal_agent.recovery.step import Around, Budget, Found
from wal_agent.recovery.verdict import ABSENT, as_before

MOST_PATHS = 8  # of one step

State = Literal["done", "untouched", "partly", "either", "unknown"]


def note(path: str, budget: Budget) -> Fact | None:
    """What stands at a path: "entry", or "fresh" where it changed so lately that its times prove nothing."""
    found = entry(path)
    if found is None or budget.over:
        return None
    what = "entry" if settled(found, int(budget.clock.now() * 1e9)) else "fresh"
    return Fact(what=what, where=path, value=found.value)


def note_content(path: str, budget: Budget) -> Fact | None:
    """A regular file's hash, or "absent"."""
    value = look(path, budget).value
    return None if value is None else Fact(what="file", where=path, value=value)


def notes(paths: Sequence[str], budget: Budget, content: bool = False) -> tuple[Fact, ...]:
    """All or nothing of the entries; hashes besides where they can be had."""
    found: list[Fact] = []
    for path in paths:
        if (fact := note(path, budget)) is None or len(paths) > MOST_PATHS:
            return ()
        found.append(fact)
    if content:
        found += [f for path in paths if (f := note_content(path, budget)) is not None]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Noted:
    """What the facts tell of one path. `fresh`: its times prove nothing."""

    path: str
    entry: Entry
    fresh: bool = False
    content: Fact | None = None

    def unmoved(self, now: Entry) -> bool:
        """Whether nothing was done to it since, as its times say. Absent both times is for others to judge: what was
        made may have been removed again."""
        return not self.fresh and not now.absent and self.entry == now


def noted(facts: Sequence[Fact], path: str) -> Noted | None:
    mine = [f for f in facts if f.where == path]
    content = next((f for f in mine if f.what == "file"), None)
    for fact in mine:
        if fact.what in ("entry", "fresh") and (found := read_entry(fact.value)) is not None:
            return Noted(path, found, fact.what == "fresh", content)
    return None


def untouched(was: Noted, now: Entry | None, around: Around, budget: Budget) -> bool:
    """Whether what stands at a path is what stood there, as far as that can be seen: by its times on the machine of the
    call, by its content in a tree that was put back."""
    if now is None:
        return False
    if was.entry.absent or now.absent:
        return was.entry.absent and now.absent
    if around.same_place:
        return was.entry == now
    return was.content is not None and was.content.value != ABSENT and look(was.path, budget).value == was.content.value


def told(states: Sequence[tuple[str, State]], around: Around, done: str, verb: str) -> Found:
    """One finding for what became of several paths. `done`: completes "`a`, `b` ..."; `verb`: what was to be done to
    each, as in "`a` was removed"."""
    if not states or any(s == "unknown" for _, s in states):
        dark = next((p for p, s in states if s == "unknown"), "")
        return Found("unknown", f"What became of {inline(dark)} cannot be told from how it is now." if dark else "")
    open_ = [(p, s) for p, s in states if s != "either"]
    if not open_:
        return Found("completed", f"{names([p for p, _ in states])} {done}, as before the call.", either=True)
    kinds = {s for _, s in open_}
    paths = [p for p, _ in open_]
    if kinds == {"done"}:
        if around.contested:
            return Found("unknown", f"{names(paths)} {done}, but another call may have done that.")
        return Found("completed", f"{names(paths)} {done}.")
    if kinds == {"untouched"}:
        are = "is as it was" if len(paths) == 1 else "are as they were"
        return as_before(f"{names(paths)} {are} before the call", True, around)
    if around.same_place and around.gone and around.alone:
        ends: dict[State, str] = {"done": verb, "partly": f"{verb} in part", "untouched": "not yet"}
        said = [f"{names([p for p, s in open_ if s == state])} {end}" for state, end in ends.items() if state in kinds]
        return Found("partial", f"{'; '.join(said)}.")
    return Found("unknown", f"Not all of {names(paths)} are as they were before the call.")


def names(paths: Sequence[str]) -> str:
    shown = [inline(p) for p in paths[:3]] + ([f"{len(paths) - 3} more"] if len(paths) > 3 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def each(
    paths: Sequence[str], facts: Sequence[Fact], state: Callable[[Noted, Entry], State]
) -> list[tuple[str, State]]:
    """The state of each path, by what was noted of it and what is there now."""
    found: list[tuple[str, State]] = []
    for path in paths:
        was, now = noted(facts, path), entry(path)
        found.append((path, "unknown" if was is None or now is None else state(was, now)))
    return found


def parent(path: str) -> str:
    return os.path.normpath(f"{path}/..")

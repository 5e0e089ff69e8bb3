"""Commands whose last write is the index: add, rm, mv. What proves that they were done is what the index lists now,
beside that it listed something else before."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wal_agent.recovery.evidence.git_case import Case
from wal_agent.recovery.evidence.git_files import Unreadable
from wal_agent.recovery.evidence.git_index import Entry, below, entries, staged
from wal_agent.recovery.quote import inline
from wal_agent.recovery.step import Found

_MAGIC = frozenset("*?[\\:")
_MOST_PATHS = 64


def judge(c: Case) -> Found | None:
    then, now = c.then.listed, c.now.listed
    paths = _paths(c)
    if not then or not now or then == now or now == "absent" or paths is None:
        return None
    try:
        all = entries(c.repo, c.budget)
    except Unreadable:
        return None
    if c.command.verb == "add":
        return _added(c, all, paths)
    if c.command.verb == "mv":
        return _renamed(c, all, paths)
    return _removed(c, all, paths)


def _paths(c: Case) -> tuple[str, ...] | None:
    """The operands as paths of the worktree; None for patterns and what leads out of it."""
    named = (*c.command.operands, *(c.command.paths or ()))
    found = []
    for name in named[:_MOST_PATHS]:
        path = os.path.relpath(os.path.normpath(c.cwd / name), c.repo.tree)
        if _MAGIC & set(name) or not name or path == ".." or path.startswith("../"):
            return None
        found.append("" if path == "." else path)
    return tuple(found) if len(named) <= _MOST_PATHS else None


def _added(c: Case, all: Sequence[Entry], paths: tuple[str, ...]) -> Found | None:
    everything = c.command.has("all", "update")
    if c.command.has("intent-to-add", "ignore-errors") or not (paths or everything):
        return None
    for path in paths or ("",):
        under = below(all, path)
        if (not under and path) or not all_staged(c, under):
            return None
    if not c.command.has("update") and c.untracked(paths) is not False:
        return None
    return Found("completed", "The index lists what this call was to add, as it is in the working tree.")


def all_staged(c: Case, under: Sequence[Entry]) -> bool:
    return not c.budget.over and all(staged(c.repo, entry) for entry in under)


def _removed(c: Case, all: Sequence[Entry], paths: tuple[str, ...]) -> Found | None:
    if not paths or "" in paths or any(below(all, path) for path in paths):
        return None
    if not c.command.has("cached") and any(os.path.lexists(c.repo.tree / path) for path in paths):
        return None
    return Found("completed", f"The index lists {inline(paths[0])}{' and the others' if paths[1:] else ''} no more.")


def _renamed(c: Case, all: Sequence[Entry], paths: tuple[str, ...]) -> Found | None:
    if len(paths) != 2 or "" in paths:
        return None
    old, new = paths
    if below(all, inside := f"{new}/{old.rpartition('/')[2]}"):
        new = inside
    if below(all, old) or not below(all, new) or os.path.lexists(c.repo.tree / old):
        return None
    return Found("completed", f"The index lists {inline(new)}, and {inline(old)} no more.")

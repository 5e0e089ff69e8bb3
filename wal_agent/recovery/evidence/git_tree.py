"""Commands whose last write is the index: add, rm, mv. What proves that they were done is what the index lists now,
beside that it listed something else before."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wal_agent.evidence.git_repo import UnreadableRepo
from wal_agent.evidence.model import Outcome
from wal_agent.recovery.evidence.git_case import Comparison
from wal_agent.recovery.evidence.git_index import IndexEntry, entries_below, is_staged, read_index
from wal_agent.shell.quote import inline

_MAGIC = frozenset("*?[\\:")
_MOST_PATHS = 64


def check_index_command(c: Comparison) -> Outcome | None:
    then, now = c.then.listed, c.now.listed
    paths = _paths(c)
    if not then or not now or then == now or now == "absent" or paths is None:
        return None
    try:
        all = read_index(c.repo, c.budget)
    except UnreadableRepo:
        return None
    if c.command.verb == "add":
        return _added(c, all, paths)
    if c.command.verb == "mv":
        return _renamed(c, all, paths)
    return _removed(c, all, paths)


def _paths(c: Comparison) -> tuple[str, ...] | None:
    """The operands as paths of the worktree; None for patterns and what leads out of it."""
    named = (*c.command.operands, *(c.command.paths or ()))
    found = []
    for name in named[:_MOST_PATHS]:
        path = os.path.relpath(os.path.normpath(c.cwd / name), c.repo.tree)
        if _MAGIC & set(name) or not name or path == ".." or path.startswith("../"):
            return None
        found.append("" if path == "." else path)
    return tuple(found) if len(named) <= _MOST_PATHS else None


def _added(c: Comparison, all: Sequence[IndexEntry], paths: tuple[str, ...]) -> Outcome | None:
    everything = c.command.has("all", "update")
    if c.command.has("intent-to-add", "ignore-errors") or not (paths or everything):
        return None
    for path in paths or ("",):
        under = entries_below(all, path)
        if (not under and path) or not all_staged(c, under):
            return None
    if not c.command.has("update") and c.untracked(paths) is not False:
        return None
    return Outcome("completed", "The index lists what this call was to add, as it is in the working tree.")


def all_staged(c: Comparison, under: Sequence[IndexEntry]) -> bool:
    return not c.budget.over and all(is_staged(c.repo, entry) for entry in under)


def _removed(c: Comparison, all: Sequence[IndexEntry], paths: tuple[str, ...]) -> Outcome | None:
    if not paths or "" in paths or any(entries_below(all, path) for path in paths):
        return None
    if not c.command.has("cached") and any(os.path.lexists(c.repo.tree / path) for path in paths):
        return None
    return Outcome("completed", f"The index lists {inline(paths[0])}{' and the others' if paths[1:] else ''} no more.")


def _renamed(c: Comparison, all: Sequence[IndexEntry], paths: tuple[str, ...]) -> Outcome | None:
    if len(paths) != 2 or "" in paths:
        return None
    old, new = paths
    if entries_below(all, inside := f"{new}/{old.rpartition('/')[2]}"):
        new = inside
    if entries_below(all, old) or not entries_below(all, new) or os.path.lexists(c.repo.tree / old):
        return None
    return Outcome("completed", f"The index lists {inline(new)}, and {inline(old)} no more.")

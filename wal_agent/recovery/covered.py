"""Which paths of a workspace are what a capture says they are: their contents, or that nothing is there.

Evidence rests on this, so what is not sure is not covered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from wal_agent.capture.candidates import FULL, IGNORED
from wal_agent.capture.git import GitFailed, GitMissing
from wal_agent.capture.location import find_location
from wal_agent.capture.scan import IGNORE_FILE
from wal_agent.capture.shadow import Shadow
from wal_agent.errors import Damaged
from wal_agent.records import Workspace
from wal_agent.recovery.restore_tree import FILE_MODES, Tree, list_tree, parent_paths
from wal_agent.sanitize import shorten


def coverage_check(shadow: Shadow, folder: Path, captured: Workspace) -> Callable[[str], bool]:
    """Whether an absolute path is of the tree that was put back into `folder`, and would be in it if it were there."""
    if captured.pending is not None:  # any file may be older than the capture
        return lambda path: False
    try:
        tree = list_tree(shadow, shadow.contents(captured.commit).work)
    except (Damaged, GitMissing):
        return lambda path: False
    return lambda path: _covers(shadow, folder, captured, tree, path)


def _covers(shadow: Shadow, folder: Path, captured: Workspace, tree: Tree, path: str) -> bool:
    at = Path(os.path.normpath(path))
    if not at.is_absolute() or at == folder or not at.is_relative_to(folder):
        return False
    name = str(at.relative_to(folder))
    if any(parent in tree or (folder / parent).is_symlink() for parent in parent_paths(name)):
        return False
    if name in tree:
        return tree[name].mode in FILE_MODES
    return (
        _nothing_left_out(captured, name) and not (folder / IGNORE_FILE).exists() and not _ignored(shadow, folder, name)
    )


def _nothing_left_out(captured: Workspace, name: str) -> bool:
    """Nothing but what is ignored can have been left out at this path. What is ignored stands last in the list."""
    lines = [line.rpartition(": ") for line in captured.left_out]
    if any(why == FULL for _, _, why in lines) or (captured.left_out_more and lines and lines[-1][2] != IGNORED):
        return False
    paths = {*parent_paths(name), name}
    return not any(left in {shorten(path, 160) for path in paths} for left, _, _ in lines)


def _ignored(shadow: Shadow, folder: Path, name: str) -> bool:
    """By the rules of the folder as it is now; also where that cannot be told."""
    try:
        place = find_location(shadow.git, folder)
        at = shadow.at(*place.alternates, work_tree=place.top)
        path = f"./{place.prefix}/{name}" if place.prefix else f"./{name}"
        words = (
            "check-ignore",
            "--no-index",
            "-z",
            "--stdin",
        )  # it knows no literal paths; "./" leaves no room for magic
        return bool(shadow.git.run(*words, at=at, input=os.fsencode(path) + b"\0", ok=(0, 1), literal=False))
    except (GitFailed, GitMissing):
        return True

"""Tell whether a repository inside a workspace is that folder's own, or leads to another one of this person's.

An archive, unlike a clone, may bring a `.git` that names a folder beside the workspace, or has links into one: what no
remote has of that repository would go into the bucket, and a restore would write into it. Only who can write there can
have it name this folder.
"""

from __future__ import annotations

import stat
from pathlib import Path

from wal_agent.capture.glance import repository_entries
from wal_agent.capture.repository import LINKED, Location, named_worktree
from wal_agent.safefs import real_path

MAX_ENTRIES = 20_000  # of a repository, in which links are looked for


def is_linked(place: Location, around: Location) -> bool:
    """Whether there is a worktree at `place` that is linked to the repository `around`, as both say."""
    if place.git_dir is None or place.common is None or around.common is None or place.prefix:
        return False
    common, git_dir = real_path(around.common), real_path(place.git_dir)
    ours = (real_path(place.common), git_dir.parent) == (common, common / LINKED)
    return ours and named_worktree(git_dir) == place.top


def is_own(place: Location, workspace: Path, around: Location) -> bool:
    """Whether the repository at `place` is of its folder in `workspace` (a real path), which lies `around`: all that it
    consists of is in there, or in the repository around, or it is a worktree of one elsewhere that says so."""
    if place.git_dir is None or place.common is None or place.prefix:
        return True
    git_dir, common = real_path(place.git_dir), real_path(place.common)
    homes = (workspace, *([around.common] if around.common is not None else []))
    if around.git_dir is not None and git_dir == real_path(around.git_dir):
        return False
    if not all(any(each.is_relative_to(home) for home in homes) for each in (git_dir, common)):
        return git_dir.parent == common / LINKED and named_worktree(git_dir) == place.top
    for count, (path, info) in enumerate(repository_entries(place)):
        leads = real_path(path) if stat.S_ISLNK(info.st_mode) else None
        if count >= MAX_ENTRIES or (leads and not any(leads.is_relative_to(home) for home in homes)):
            return False
    return True

"""Tell whether a repository inside a workspace is that folder's own, or leads to another one of this person's.

An archive, unlike a clone, may bring a `.git` that names a folder beside the workspace, or has links into one: what no
remote has of that repository would go into the bucket. Only who can write there can have it name this folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from wal_agent.capture.glance import repository_entries
from wal_agent.capture.repository import Location, named_worktree

MOST_ENTRIES = 20_000  # of a repository, in which links are looked for


def is_own(place: Location, homes: Collection[Path]) -> bool:
    """`homes`: real paths of the folders in which all that it consists of must lie, unless it is a worktree of a
    repository elsewhere that says so."""
    if place.git_dir is None or place.common is None:
        return True
    git_dir, common = place.git_dir.resolve(), place.common.resolve()
    if not all(any(each.is_relative_to(home) for home in homes) for each in (git_dir, common)):
        return git_dir.parent == common / "worktrees" and named_worktree(git_dir) == place.top
    for count, (path, info) in enumerate(repository_entries(place)):
        leads = Path(os.path.realpath(path)) if stat.S_ISLNK(info.st_mode) else None
        if count >= MOST_ENTRIES or (leads and not any(leads.is_relative_to(home) for home in homes)):
            return False
    return True

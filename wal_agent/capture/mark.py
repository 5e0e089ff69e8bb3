"""Marks a workspace folder with the captures that were made of it, or put back into it, in an extended attribute.

Our own repository says the same, but stands in the state folder of one machine; a workspace on a shared or persistent
volume outlives that. Where a file system has no such attributes nothing is marked, and our own repository alone counts.
No file of the user's is changed by it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NAME = "user.wal-agent.captures"
MOST = 4


def mark(folder: Path, commits: Sequence[str]) -> None:
    """Say that the newest captures of this folder are `commits`; none: that it stands for no capture."""
    with suppress(OSError, AttributeError):
        os.setxattr(folder, NAME, " ".join(commits[:MOST]).encode(), follow_symlinks=False)


def marked(folder: Path) -> tuple[str, ...]:
    """The captures that this folder is, or has grown out of."""
    with suppress(OSError, AttributeError):
        return tuple(os.getxattr(folder, NAME, follow_symlinks=False).decode("ascii", "replace").split()[:MOST])
    return ()

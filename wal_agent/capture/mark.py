"""Marks a workspace folder with the captures that jobs made of it, or put back into it, in an extended attribute.

Our own repository says the same, but stands in the state folder of one machine; a workspace on a shared or persistent
volume outlives that. Where a file system has no such attributes nothing is marked, and our own repository alone counts.
No file of the user's is changed by it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MARK_NAME = "user.wal-agent.captures"
MAX_MARKS = 8  # of one job
MAX_MARKED_JOBS = 6


def mark_folder(folder: Path, commits: Sequence[str], job: str = "") -> None:
    """Say that the newest captures of this folder by `job` are `commits`; none: that it stands for no capture of any
    job's."""
    entries = {
        _key(job): tuple(commits[:MAX_MARKS]),
        **{k: v for k, v in _read_all_marks(folder).items() if k != _key(job)},
    }
    text = (
        " ".join(f"{key}={','.join(found)}" for key, found in list(entries.items())[:MAX_MARKED_JOBS])
        if commits
        else ""
    )
    with suppress(OSError, AttributeError):
        os.setxattr(folder, MARK_NAME, text.encode(), follow_symlinks=False)


def read_marks(folder: Path, job: str | None = None) -> tuple[str, ...]:
    """The captures that this folder is, or has grown out of, the newest first; of any job's, or of one's."""
    found = _read_all_marks(folder)
    return tuple(c for each in found.values() for c in each) if job is None else found.get(_key(job), ())


def _read_all_marks(folder: Path) -> dict[str, tuple[str, ...]]:
    text = ""
    with suppress(OSError, AttributeError):
        text = os.getxattr(folder, MARK_NAME, follow_symlinks=False).decode("ascii", "replace")
    entries = (word.partition("=") for word in text.split()[:MAX_MARKED_JOBS])
    return {key: tuple(commits.split(",")[:MAX_MARKS]) for key, _, commits in entries if commits}


def _key(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:8]

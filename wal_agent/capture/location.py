"""Where a workspace lies, in which of the user's git repositories, and which captures its folder is marked with.

The mark is an extended attribute of the folder: the captures that jobs made of it, or put back into it. Our own
repository says the same, but is in the state folder of one machine; a workspace on a shared or persistent volume
outlives that. Where a file system has no such attributes nothing is marked, and our own repository alone counts. No
file of the user's is changed by it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from wal_agent.capture.git import Git, GitDirs, GitFailed


@dataclass(frozen=True, slots=True)
class Location:
    """Where a workspace lies: `prefix` is its place below `top`, posix, "" for the top itself. `git_dir` None: in no
    repository, or ignored by the one around it."""

    top: Path
    prefix: str = ""
    git_dir: Path | None = None
    common: Path | None = None
    object_format: str = "sha1"

    @property
    def alternates(self) -> tuple[Path, ...]:
        return (self.common / "objects",) if self.common is not None else ()

    @property
    def at(self) -> GitDirs:
        """For git's questions to that repository."""
        assert self.git_dir is not None
        return GitDirs(self.git_dir, work_tree=self.top, cwd=self.top)


def find_location(git: Git, workspace: Path) -> Location:
    """`workspace`: a real path."""
    plain = Location(workspace)
    asked = ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    try:
        said = git.text("rev-parse", *asked, cwd=workspace).split("\n")
        if len(said) != len(asked):  # a name with a newline in it
            said = [git.text("rev-parse", one, cwd=workspace) for one in asked]
        top = Path(said[0]).resolve()
        prefix = workspace.relative_to(top).as_posix()
        place = Location(top, "" if prefix == "." else prefix, Path(said[1]), (workspace / said[2]).resolve())
        found = git.text("rev-parse", "--show-object-format", at=place.at)
        if place.prefix and _ignores(git, place):
            return plain  # by the rules of the repository around it all of it would be left out
    except (GitFailed, ValueError, OSError):
        return plain
    return replace(place, object_format=found if found == "sha256" else "sha1")


def _ignores(git: Git, place: Location) -> bool:
    said = git.run("check-ignore", "--no-index", f"./{place.prefix}", at=place.at, ok=(0, 1), literal=False)
    return bool(said)


MARK_NAME = "user.wal-agent.captures"
MAX_MARKS = 8  # of one job
MAX_MARKED_JOBS = 6


def mark_folder(folder: Path, commits: Sequence[str], job: str = "") -> None:
    """Mark the folder with `commits`, the newest captures of it by `job`; with none: it is no capture of any job's."""
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

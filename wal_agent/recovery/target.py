"""Where a captured working tree would be put back, and whether it is. Only looks.

The folder that the newest capture came from is the truth and stays as it is; a folder that looks like it and is another
one is not.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wal_agent.capture.git import Git, GitFailed, GitMissing
from wal_agent.capture.location import MARK_NAME, find_location, read_marks
from wal_agent.capture.shadow import Shadow, is_object_id
from wal_agent.errors import ConfigError
from wal_agent.records import Repository, Workspace
from wal_agent.recovery.begun import is_requested, read_marker
from wal_agent.recovery.restore_target import STAMP


@dataclass(frozen=True, slots=True)
class LocalTree:
    """The workspace folder here, as a look tells. `known`: the newest capture was made from this very folder, or was
    put back into it. `empty`: nothing is in it. `repository`: there is one that the tree belongs into, or `.git` is
    something that git cannot read."""

    known: bool
    empty: bool
    repository: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """The folder stays as it is. `home`: it is the user's home folder or above it, where nothing is put back."""

    why: Literal["not_saved", "newest", "home"]


@dataclass(frozen=True, slots=True)
class PutBack:
    """Make the folder's files those of the capture. `make_repository`: the lost one again, as there is none."""

    make_repository: bool


def decide_restore(captured: Workspace | None, here: LocalTree) -> Keep | PutBack:
    """Pure. What changed in the newest capture's own folder after it is newer than the log, and stands; but a folder
    that is empty now is another one under the same name."""
    if captured is None:
        return Keep("not_saved")
    if here.known and not (here.empty and captured.files):
        return Keep("newest")
    lost = captured.repository
    return PutBack(lost is not None and not lost.prefix and not here.repository)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Where a tree is put back: `folder`, a real path; our own things in `state_dir`. `env`: the user's, for git.
    `private`: folders that are never captured, and so never saved nor replaced (`state_dir` always). `job`: whose."""

    folder: Path
    state_dir: Path
    env: Mapping[str, str]
    private: tuple[Path, ...] = ()
    job: str = ""

    def shadow(self) -> Shadow:
        return Shadow.of(self.state_dir, self.folder, Git(self.env), self.job)

    def kept(self, now: float) -> Path:
        """The folder for what this restore replaces."""
        shadow = self.shadow().folder
        return shadow.with_name(f"{shadow.name}-kept") / time.strftime(STAMP, time.gmtime(now))


def inspect_target(target: RestoreTarget, captured: Workspace | None) -> LocalTree:
    """Reads only."""
    try:
        with os.scandir(target.folder) as entries:
            empty = next(entries, None) is None
    except FileNotFoundError:
        empty = True
    if captured is None:
        return LocalTree(False, empty, False)
    shadow = target.shadow()
    try:
        known = is_object_id(captured.commit) and _is_known_folder(shadow, target, captured.commit)
        return LocalTree(known, empty, _has_repository(shadow.git, target.folder, captured.repository))
    except GitMissing:
        raise ConfigError(
            "A working tree is saved for this job, and there is no git here to put it back with.", "Install git."
        ) from None


def _is_known_folder(shadow: Shadow, target: RestoreTarget, commit: str) -> bool:
    """It was made here, also where we were killed before `SAVED` said so; or it was put back here to the end. A folder
    that could be marked and is not is another one of the same name."""
    if read_marker(shadow) is not None or is_requested(shadow, target.job, commit):
        return False
    if commit in read_marks(target.folder):
        return True
    return not _can_be_marked(target.folder) and shadow.has(commit)


def _can_be_marked(folder: Path) -> bool:
    """Whether `mark` works here, as far as can be told without changing anything."""
    try:
        os.getxattr(folder, MARK_NAME, follow_symlinks=False)
    except AttributeError:
        return False
    except OSError as error:
        if error.errno != errno.ENODATA:
            return False
    info = folder.stat()
    ours = not info.st_mode & stat.S_ISVTX or os.geteuid() in (0, info.st_uid)
    return ours and os.access(folder, os.W_OK)


def _has_repository(git: Git, folder: Path, lost: Repository | None) -> bool:
    """A repository around the folder that has no file in it is none for a tree that stood at the top of its own."""
    if os.path.lexists(folder / ".git"):
        return True
    place = find_location(git, folder)
    if place.git_dir is None or lost is None or lost.prefix or not place.prefix:
        return place.git_dir is not None
    try:
        return bool(git.run("ls-files", "-z", "--", place.prefix, at=place.at))
    except GitFailed:
        return True

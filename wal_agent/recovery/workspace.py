"""Puts the working tree back (DESIGN 7.3): files as they were captured, on the machine that the job goes on on.

The folder that the newest capture came from is the truth and stays as it is. Anywhere else what is there is kept first,
then its files are made those of the capture; of the user's `.git` nothing is changed, and where there is none, one like
the lost one is made. A crash in between is found by `RESTORING`, and all of it is done again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wal_agent.capture.git import At, Git, GitFailed, GitMissing
from wal_agent.capture.mark import mark, marked
from wal_agent.capture.place import Place, find
from wal_agent.capture.shadow import Contents, Shadow, is_id
from wal_agent.clock import SystemClock
from wal_agent.errors import ConfigError, Damaged
from wal_agent.failpoints import failpoint
from wal_agent.plainfile import read_plain
from wal_agent.records import Repository, Workspace
from wal_agent.recovery import moves
from wal_agent.recovery.aside import move_aside
from wal_agent.recovery.damage import offered
from wal_agent.recovery.kept import KEEP, Here, Kept, save_here
from wal_agent.recovery.packs import bring, check
from wal_agent.recovery.rebuild import rebuild, sweep
from wal_agent.recovery.worktree import NO_CHANGES, Changes, Tree, changes, listed, make_equal, size_of
from wal_agent.shown import shown
from wal_agent.wal.blobs import Blobs

LOCKED = 60.0  # seconds
PUT_BACK = "put-back"  # file in the shadow: the capture that was put back last, and the note of who did it
RESTORING = "restoring"  # file in the shadow: the capture whose restore has begun and has not come to its end


@dataclass(frozen=True, slots=True)
class LocalTree:
    """The workspace folder here, as a look tells. `known`: the newest capture was made from this very folder, or was
    put back into it. `empty`: nothing is in it. `repository`: one is around it."""

    known: bool
    empty: bool
    repository: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """The folder stays as it is."""

    why: Literal["not_saved", "newest"]


@dataclass(frozen=True, slots=True)
class PutBack:
    """Make the folder's files those of the capture. `make_repository`: the lost one again, as there is none."""

    make_repository: bool


def what_to_do(captured: Workspace | None, here: LocalTree) -> Keep | PutBack:
    """Pure. What changed in the newest capture's own folder after it is newer than the log, and stands; but a folder
    that is empty now is another one under the same name."""
    if captured is None:
        return Keep("not_saved")
    if here.known and not (here.empty and captured.files):
        return Keep("newest")
    lost = captured.repository
    return PutBack(lost is not None and not lost.prefix and not here.repository)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tree is put back: `folder`, a real path; our own things in `state_dir`. `env`: the user's, for git.
    `private`: folders that are never captured, and so never saved nor replaced (`state_dir` always)."""

    folder: Path
    state_dir: Path
    env: Mapping[str, str]
    private: tuple[Path, ...] = ()

    def shadow(self) -> Shadow:
        return Shadow.of(self.state_dir, self.folder, Git(self.env))

    def kept(self, now: float) -> Path:
        """The folder for what this restore replaces."""
        shadow = self.shadow().folder
        return shadow.with_name(f"{shadow.name}-kept") / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))


@dataclass(frozen=True, slots=True)
class Done:
    """What was done with the working tree. `kept`: where what was here is. `files_kept`: files of it differed from what
    any commit here holds. `aside`: what stood in the way, under its new name. `repository`: around the folder before.
    `offers`: `kept` has the commit that the captured tree stood on, which the repository here lacks."""

    decided: Keep | PutBack
    captured: Workspace | None = None
    changes: Changes = NO_CHANGES
    kept: Kept | None = None
    files_kept: bool = False
    aside: tuple[str, ...] = ()
    repository: Repository | None = None
    offers: bool = False
    tree: Tree | None = None  # what was put back

    @property
    def put_back(self) -> bool:
        return isinstance(self.decided, PutBack)


def put_back_note(target: Target, captured: Workspace) -> str:
    """The `note` of the restore that put `captured` back here as the newest; "" where it is not known to be one."""
    data = read_plain(target.shadow().folder / PUT_BACK)
    commit, _, note = ("" if data is None else data.decode("utf-8", "replace")).partition(" ")
    return note if commit == captured.commit else ""


def look(target: Target, captured: Workspace | None) -> LocalTree:
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
        known = is_id(captured.commit) and _known(shadow, target.folder, captured.commit)
        return LocalTree(known, empty, find(shadow.git, target.folder).git_dir is not None)
    except GitMissing:
        raise ConfigError(
            "A working tree is saved for this job, and there is no git here to put it back with.", "Install git."
        ) from None


def _known(shadow: Shadow, folder: Path, commit: str) -> bool:
    """It was made here, also where we were killed before `SAVED` said so; or it was put back here to the end."""
    if _restoring(shadow) == commit:
        return False
    return commit in marked(folder) or bool(shadow.ref(f"{commit}^{{tree}}"))


def _restoring(shadow: Shadow) -> str:
    data = read_plain(shadow.folder / RESTORING)
    return "" if data is None else data.decode("ascii", "replace").strip()


def put_back(target: Target, captured: Workspace, blobs: Blobs, decided: PutBack, now: float, note: str = "") -> Done:
    """Make the files in the target's folder those of `captured`. `now`: seconds since 1970. `note`: see put_back_note.

    Damaged, with the way out: what the log has is no whole tree, and nothing was changed. ConfigError: this machine
    cannot take it. BucketError."""
    shadow = target.shadow()
    with _alone(shadow, target.folder):
        try:
            return _Restore(target, shadow, captured, decided, now).go(blobs, note)
        except Damaged as error:
            raise offered(error) from error
        except (GitFailed, OSError) as error:
            raise ConfigError(f"The working tree could not be put back: {shown(str(error), 400)}") from error
        except GitMissing:
            raise ConfigError("There is no git here to put the working tree back with.", "Install git.") from None


@contextmanager
def _alone(shadow: Shadow, folder: Path) -> Iterator[None]:
    """Under the shadow's lock. A git of a run that was killed may hold it for a moment."""
    patience = SystemClock().boot() + LOCKED
    while True:
        with shadow.locked() as mine:
            if mine:
                yield
                return
        if SystemClock().boot() > patience:
            raise ConfigError(f"Another wal-agent is at work on {folder}.", "Wait for its end.")
        time.sleep(0.1)


class _Restore:
    """One restore, step by step. Under the shadow's lock."""

    def __init__(self, target: Target, shadow: Shadow, captured: Workspace, decided: PutBack, now: float) -> None:
        self.target, self.shadow, self.captured, self.decided, self.now = target, shadow, captured, decided, now
        self.folder = target.folder
        self._private = (*target.private, target.state_dir)

    def go(self, blobs: Blobs, note: str) -> Done:
        shadow, captured = self.shadow, self.captured
        place = self._place()
        sweep(self.folder)
        check(captured)
        (shadow.folder / RESTORING).write_text(captured.commit)
        bring(shadow, captured, blobs)
        contents = shadow.contents(captured.commit)
        tree = listed(shadow, contents.work)
        self._room(size_of(tree))
        here = self._save_here(place)
        old = listed(shadow, here.contents.work, *place.alternates) if here else {}
        done = self._keep(place, here, contents, changes(old, tree))
        mark(self.folder, ())
        aside = move_aside(self.folder, old, tree, self.now)
        make_equal(shadow, self.folder, here.contents.work if here else "", contents.work, *place.alternates)
        if self.decided.make_repository:
            rebuild(shadow, contents, self.folder, captured.repository.identity if captured.repository else ())
        failpoint("restore.after_tree")
        shadow.save(captured.commit)
        mark(self.folder, (captured.commit,))
        (shadow.folder / PUT_BACK).write_text(f"{captured.commit} {note}")
        (shadow.folder / RESTORING).unlink()
        return replace(done, aside=aside, tree=tree)

    def _keep(self, place: Place, here: Here | None, contents: Contents, found: Changes) -> Done:
        """What is replaced is kept, where no commit of the user's has it; so are the commits that the captured tree
        stood on, where the repository here lacks them."""
        files = here is not None and found.any and not here.clean
        head = contents.state.head
        offers = bool(head) and not self.decided.make_repository and not self._has(place, head)
        kept = None
        if files or offers:
            kept = self._new_kept()
            local = here.contents.commit if here is not None and files else ""
            kept.make(self.shadow, place.alternates, local, head if offers else "", contents.state.shallow)
        repository = here.repository if here else None
        return Done(self.decided, self.captured, found, kept, files, (), repository, offers)

    def _new_kept(self) -> Kept:
        folder = self.target.kept(self.now)
        moves.prune(folder.parent, KEEP - 1)
        n = 1
        while folder.exists():
            n += 1
            folder = folder.with_name(f"{folder.name.partition('-')[0]}-{n}")
        return Kept(folder)

    def _has(self, place: Place, commit: str) -> bool:
        if place.git_dir is None:
            return False
        try:
            self.shadow.git.run("cat-file", "-e", f"{commit}^{{commit}}", at=At(place.git_dir))
        except GitFailed:
            return False
        return True

    def _place(self) -> Place:
        self.folder.mkdir(parents=True, exist_ok=True)
        place = find(self.shadow.git, self.folder)
        format = "sha256" if len(self.captured.commit) == 64 else "sha1"
        if place.git_dir is not None and place.object_format != format:
            raise ConfigError(
                f"The working tree was saved from a repository of format {format}; the one here has "
                f"{place.object_format}.",
                "Start in an empty folder.",
            )
        self.shadow.ensure(format)
        return place

    def _save_here(self, place: Place) -> Here | None:
        if not any(self.folder.iterdir()):
            return None
        return save_here(self.shadow, self.folder, place, self.target.env, self._private, self.now)

    def _room(self, size: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise ConfigError(f"The working tree has {size} bytes, and {free} are free in {self.folder}.", "Make room.")

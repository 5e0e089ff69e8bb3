"""Puts the working tree back (DESIGN 7.3): files as they were captured, on the machine that the job goes on on.

The folder that the newest capture came from is the truth and stays as it is. Anywhere else what is there is kept first,
then its files are made those of the capture; of the user's `.git` nothing is changed, and where there is none, one like
the lost one is made. A crash in between is found by its note (begun.py), and all of it is done again; what was here
before the first try is not saved over.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wal_agent.capture.git import At, Git, GitFailed, GitMissing
from wal_agent.capture.mark import NAME, mark, marked
from wal_agent.capture.place import Place, find
from wal_agent.capture.shadow import Contents, Shadow, is_id
from wal_agent.clock import SystemClock
from wal_agent.errors import ConfigError, Damaged
from wal_agent.failpoints import failpoint
from wal_agent.plainfile import read_plain
from wal_agent.records import Repository, Workspace
from wal_agent.recovery.aside import move_aside
from wal_agent.recovery.begun import Begun, end, is_wanted, read_begun, write_begun
from wal_agent.recovery.damage import offered
from wal_agent.recovery.kept import STAMP, Here, Kept, prune, save_here
from wal_agent.recovery.packs import bring, check
from wal_agent.recovery.rebuild import rebuild, sweep
from wal_agent.recovery.worktree import (
    NO_CHANGES,
    Changes,
    Moved,
    Tree,
    above,
    changes,
    listed,
    make_equal,
    size_of,
)
from wal_agent.shown import shown
from wal_agent.wal.blobs import Blobs

LOCKED = 60.0  # seconds
PUT_BACK = "put-back"  # file in the shadow: the capture that was put back last, and the note of who did it
TRIES = 3  # times that what is here is saved, where it changes meanwhile


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
    `private`: folders that are never captured, and so never saved nor replaced (`state_dir` always). `job`: whose."""

    folder: Path
    state_dir: Path
    env: Mapping[str, str]
    private: tuple[Path, ...] = ()
    job: str = ""

    def shadow(self) -> Shadow:
        return Shadow.of(self.state_dir, self.folder, Git(self.env))

    def kept(self, now: float) -> Path:
        """The folder for what this restore replaces."""
        shadow = self.shadow().folder
        return shadow.with_name(f"{shadow.name}-kept") / time.strftime(STAMP, time.gmtime(now))


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
        known = is_id(captured.commit) and _known(shadow, target, captured.commit)
        return LocalTree(known, empty, _has_repository(shadow.git, target.folder, captured.repository))
    except GitMissing:
        raise ConfigError(
            "A working tree is saved for this job, and there is no git here to put it back with.", "Install git."
        ) from None


def _known(shadow: Shadow, target: Target, commit: str) -> bool:
    """It was made here, also where we were killed before `SAVED` said so; or it was put back here to the end. A folder
    that could be marked and is not is another one of the same name."""
    if read_begun(shadow) is not None or is_wanted(shadow, target.job, commit):
        return False
    if commit in marked(target.folder):
        return True
    return not _can_be_marked(target.folder) and bool(shadow.ref(f"{commit}^{{tree}}"))


def _can_be_marked(folder: Path) -> bool:
    """Whether `mark` works here, as far as can be told without changing anything."""
    try:
        os.getxattr(folder, NAME, follow_symlinks=False)
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
    place = find(git, folder)
    if place.git_dir is None or lost is None or lost.prefix or not place.prefix:
        return place.git_dir is not None
    try:
        return bool(git.run("ls-files", "-z", "--", place.prefix, at=place.at))
    except GitFailed:
        return True


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
        self.begun = Begun(captured.commit)
        self._private = (*target.private, target.state_dir)

    def go(self, blobs: Blobs, note: str) -> Done:
        shadow, captured = self.shadow, self.captured
        place = self._place()
        sweep(self.folder)
        check(captured)
        before = read_begun(shadow)
        self.begun = replace(before, commit=captured.commit) if before else Begun(captured.commit)
        write_begun(shadow, self.begun)
        bring(shadow, captured, blobs)
        contents = shadow.contents(captured.commit)
        tree = listed(shadow, contents.work)
        self._room(size_of(tree))
        done = self._replace(place, contents, tree)
        if self.decided.make_repository:
            rebuild(shadow, contents, self.folder, captured.repository.identity if captured.repository else ())
        failpoint("restore.after_tree")
        shadow.save(captured.commit)
        mark(self.folder, (captured.commit,))
        (shadow.folder / PUT_BACK).write_text(f"{captured.commit} {note}")
        end(shadow, self.target.job)
        prune(self.target.kept(self.now).parent, self.now)
        return done

    def _replace(self, place: Place, contents: Contents, tree: Tree) -> Done:
        """Save what is here, and put the tree over it; again where it is not what was saved any more."""
        aside: tuple[str, ...] = ()
        for _ in range(TRIES):
            here = self._save_here(place)
            old = listed(self.shadow, here.contents.work, *place.alternates) if here else {}
            leave = _left_out(old, tree, contents)
            old = {path: entry for path, entry in old.items() if path not in leave}
            done = self._keep(place, here, contents, old, tree)
            mark(self.folder, ())
            way = move_aside(self.folder, old, tree, self.now)
            aside += way.moved
            was = here.contents.work if here else ""
            try:
                make_equal(self.shadow, self.folder, was, contents.work, leave, way.same, *place.alternates)
            except Moved as error:
                moved = str(error)
                continue
            return replace(done, aside=aside, tree=tree)
        raise ConfigError(
            f"Files in {self.folder} change while the working tree is put back: {moved}", "Stop what writes there."
        )

    def _keep(self, place: Place, here: Here | None, contents: Contents, old: Tree, tree: Tree) -> Done:
        """What is replaced is kept, where no commit of the user's and no save of a restore that was cut has it; so are
        the commits that the captured tree stood on, where the repository here lacks them."""
        shadow, found = self.shadow, changes(old, tree)
        kept = Kept(self.target.kept(self.now).with_name(self.begun.kept)) if self.begun.kept else None
        if kept is not None and not kept.folder.is_dir():
            kept = None
        saves = kept.trees(shadow) if kept else []
        files = here is not None and found.any and not here.clean and _is_more(old, tree, saves)
        head = contents.state.head
        offers = bool(head) and not self.decided.make_repository and not self._has(place, head)
        if files or offers:
            kept = kept or self._new_kept()
            local = here.contents.commit if here is not None and files else ""
            kept.make(shadow, place.alternates, local, head if offers else "", contents.state.shallow)
            self.begun = replace(self.begun, kept=kept.folder.name)
            write_begun(shadow, self.begun)
        repository = here.repository if here and not self.decided.make_repository else None
        return Done(self.decided, self.captured, found, kept, bool(saves) or files, (), repository, offers)

    def _new_kept(self) -> Kept:
        folder = self.target.kept(self.now)
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


def _is_more(here: Tree, tree: Tree, saves: Sequence[Tree]) -> bool:
    """Whether something here is not of a save; where a restore was cut, part of it is the captured tree already."""
    return not saves or any(all(of.get(path) != entry for of in (tree, *saves)) for path, entry in here.items())


def _left_out(here: Tree, tree: Tree, contents: Contents) -> frozenset[str]:
    """What the capture could not hold, though it was there: it stays as it is here."""
    out = {os.fsdecode(path) for path in contents.state.left_out}
    if not out:
        return frozenset()
    return frozenset(
        path for path in here.keys() - tree.keys() if path in out or any(parent in out for parent in above(path))
    )

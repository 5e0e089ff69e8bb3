"""Restore the working tree (RECOVERY.md): files as they were captured, on the machine that the job goes on on.

The folder that the newest capture came from is the truth and is not changed. Anywhere else what is there is backed up
first, then its files are made those of the capture. The user's `.git` is not changed; where there is none, one like the
lost one is made (rebuild_git). The repositories inside follow, each by its own capture. A crash in between is found by
its marker (restore_target), and the restore runs again; what was here before the first try is not saved over.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent.budget import FOREIGN
from wal_agent.capture.belongs import is_own
from wal_agent.capture.git import GitBounds, GitDirs, GitFailed, GitMissing
from wal_agent.capture.repository import Location, find_location, mark_folder
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.clock import SystemClock
from wal_agent.errors import BucketError, ConfigError, Damaged, Exhausted, WalAgentError
from wal_agent.failpoints import failpoint
from wal_agent.limits import failed
from wal_agent.records import Repository, Workspace
from wal_agent.recovery.rebuild_git import (
    check_git_state,
    known_commits,
    link_worktree,
    rebase_commands,
    rebuild_git,
    remove_half_built,
)
from wal_agent.recovery.restore_git import GitPutBack, put_back_git
from wal_agent.recovery.restore_target import (
    Keep,
    KeptFiles,
    PutBack,
    RestoreBackup,
    RestoreMarker,
    RestoreTarget,
    SavedHere,
    clear_markers,
    decide_restore,
    drop_old_backups,
    inspect_target,
    read_marker,
    save_here,
    write_marker,
)
from wal_agent.recovery.restore_tree import (
    ASIDE_MARK,
    NESTED_REPOSITORY,
    NO_CHANGES,
    ChangedMeanwhile,
    Changes,
    Tree,
    TreeEntry,
    check_packs,
    checkout_tree,
    count_changes,
    fetch_packs,
    filtered_files,
    list_tree,
    move_aside,
    parent_paths,
    restrict_modes,
    tree_size,
)
from wal_agent.safefs import read_plain
from wal_agent.text import shorten
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.damage import with_hint

LOCK_TIMEOUT = 60.0  # seconds
RESTORE_NOTE = "put-back"  # file in the shadow: the capture that was put back last, and its restore's note
MAX_HUSKS = 400  # they are named to git in its arguments
TRIES = 3  # saves of what is here, where it changes meanwhile
NOTHING_INSIDE: Mapping[str, Workspace] = {}
Announce = Callable[[Sequence[str], RestoreBackup], None]


class RestoredInside(msgspec.Struct, frozen=True):
    """What became of a repository inside. `why`: it was not put back, in a sentence."""

    folder: str
    done: TreeResult | None = None
    why: str = ""


class TreeResult(msgspec.Struct, frozen=True):
    """What was done with the working tree. `kept`: the backup. `files_kept`: it has files that no commit here has.
    `stays`: how many files here the capture did not cover, so that they are as they were.
    `aside`: the new names of what was in the way. `repository`: around the folder before. `offers`: `kept` has the
    captured tree's base commit, which the repository here lacks; `git`: what else of the repository. `unread`: git
    cannot read the `.git` here, so no repository was made. `runs`: commands that the rebase in the repository that was
    made would run when it goes on."""

    decided: Keep | PutBack
    captured: Workspace | None = None
    changes: Changes = NO_CHANGES
    kept: RestoreBackup | None = None
    files_kept: bool = False
    stays: int = 0
    aside: tuple[str, ...] = ()
    repository: Repository | None = None
    offers: bool = False
    git: GitPutBack = GitPutBack()
    tree: Tree | None = None  # what was put back
    unread: bool = False
    runs: tuple[str, ...] = ()
    inside: tuple[RestoredInside, ...] = ()

    @property
    def put_back(self) -> bool:
        return isinstance(self.decided, PutBack)


def read_note(target: RestoreTarget, captured: Workspace) -> str:
    """Return the `note` of the restore that put `captured` back here last; "" for none."""
    data = read_plain(target.shadow().folder / RESTORE_NOTE) or b""
    commit, _, note = data.decode("utf-8", "replace").partition(" ")
    return note if commit == captured.commit else ""


def restore_files(
    target: RestoreTarget,
    captured: Workspace,
    blobs: Blobs,
    decided: PutBack,
    now: float,
    note: str = "",
    announce: Announce = lambda names, kept: None,
    inside: Mapping[str, Workspace] = NOTHING_INSIDE,
) -> TreeResult:
    """Make the files in the target's folder those of `captured`, and then those of the repositories `inside`, by their
    folders. `now`: seconds since 1970. `note`: for `read_note`. `announce` gets the files here that
    no commit has, and where they are kept now, before they are replaced.

    Damaged, with a hint: the log has no whole tree, and nothing was changed. ConfigError: this machine cannot take it.
    BucketError."""
    shadow = target.shadow()
    with _lock_shadow(shadow, target.folder):
        try:
            return _Restore(target, shadow, captured, decided, now, announce).go(blobs, note, inside)
        except Damaged as error:
            raise with_hint(error) from error
        except (GitFailed, OSError) as error:
            raise _failed("The working tree could not be put back", error) from error
        except GitMissing:
            raise ConfigError("There is no git here to put the working tree back with.", "Install git.") from None


def target_inside(target: RestoreTarget, name: str, most: int = FOREIGN.files) -> RestoreTarget:
    """Of the repository inside at `name`. ConfigError: no such folder is read or put back, or its `.git` leads to
    another repository."""
    found, git = target.inside(name, most), target.shadow().git
    around = find_location(git, target.folder)
    if not is_own(find_location(git, found.folder), target.folder, around):
        raise ConfigError(f"The .git there leads to another repository: {found.folder}.")
    return found


def _failed(what: str, error: GitFailed | Damaged | OSError) -> WalAgentError:
    if isinstance(error, OSError):
        return failed(what, error)
    return ConfigError(f"{what}: {shorten(str(error), 400)}")


@contextmanager
def _lock_shadow(shadow: Shadow, folder: Path) -> Iterator[None]:
    """Hold the shadow's lock. A git of a run that was killed may hold it for a moment."""
    deadline = SystemClock().boot() + LOCK_TIMEOUT
    while True:
        with shadow.locked() as acquired:
            if acquired:
                yield
                return
        if SystemClock().boot() > deadline:
            raise ConfigError(f"Another wal-agent is at work on {folder}.", "Wait for its end.")
        time.sleep(0.1)


class _Restore:
    """One restore, step by step. Under the shadow's lock."""

    def __init__(
        self,
        target: RestoreTarget,
        shadow: Shadow,
        captured: Workspace,
        decided: PutBack,
        now: float,
        announce: Announce,
    ) -> None:
        self.announce = announce
        self.target, self.shadow, self.captured, self.decided, self.now = target, shadow, captured, decided, now
        self.folder = target.folder
        self.begun = RestoreMarker(captured.commit)
        self.git = GitPutBack()
        self._fresh = False  # nothing in the shadow is of an earlier run

    def go(self, blobs: Blobs, note: str, inside: Mapping[str, Workspace]) -> TreeResult:
        shadow, captured = self.shadow, self.captured
        place = self._place()
        remove_half_built(self.folder)
        check_packs(captured)
        before = read_marker(shadow)
        self.begun = replace(before, commit=captured.commit) if before else RestoreMarker(captured.commit)
        write_marker(shadow, self.begun)
        contents, tree = self._brought(blobs)
        check_git_state(contents)
        if contents.index and self.decided.make_repository:
            list_tree(shadow, contents.index, whole=not contents.state.missing, most=self._most())
        self._room(tree_size(tree), len(tree))
        with self._closed(bool(contents.state.private)):
            done = self._replace(place, contents, tree)
            restrict_modes(self.folder, tree, contents.state.private)
        if self.decided.make_repository:
            self._make_repository(contents)
        done = replace(done, inside=tuple(self._restore_inside(blobs, inside)))
        failpoint("restore.after_tree")
        shadow.save(captured.commit)
        mark_folder(self.folder, (captured.commit,), self.target.job)
        (shadow.folder / RESTORE_NOTE).write_text(f"{captured.commit} {note}")
        clear_markers(shadow, self.target.job)
        drop_old_backups(self.target.kept(self.now).parent, self.now)
        return done

    def _make_repository(self, contents: Contents) -> None:
        lost, around = self.captured.repository, self.target.around
        linked = lost is not None and lost.linked and around is not None
        if not (linked and around is not None and link_worktree(self.shadow, contents, self.folder, around)):
            rebuild_git(self.shadow, contents, self.folder, lost.identity if lost is not None else ())

    def _restore_inside(self, blobs: Blobs, inside: Mapping[str, Workspace]) -> Iterator[RestoredInside]:
        """The repositories inside, each as a workspace of its own. One that cannot be put back stops no other. All of
        them together have what files their packs can hold: a hundred of small ones would name a million."""
        room = FOREIGN.of_tree(pack.size for each in inside.values() for pack in each.packs)
        for folder, captured in sorted(inside.items()):
            try:
                target = target_inside(self.target, folder, room)
                here = inspect_target(target, captured)
                decided = decide_restore(captured, replace(here, known=here.known and not self.decided.asked))
                if isinstance(decided, PutBack):
                    done = restore_files(target, captured, blobs, decided, self.now, announce=self.announce)
                    room -= len(done.tree or ())
                    yield RestoredInside(folder, done)
            except BucketError:
                raise
            except (WalAgentError, OSError) as error:
                yield RestoredInside(folder, why=str(error))

    def _brought(self, blobs: Blobs) -> tuple[Contents, Tree]:
        """Fetch the packs; return the capture and its files. A shadow that an earlier run left broken is made again."""
        shadow, captured = self.shadow, self.captured
        try:
            fetch_packs(shadow, captured, blobs)
            contents = shadow.contents(captured.commit)
            return contents, list_tree(shadow, contents.work, most=self._most())
        except (GitFailed, Damaged, OSError):
            if self._fresh:
                raise
        shadow.wipe()
        self._fresh = shadow.ensure(object_format(captured))
        return self._brought(blobs)

    def _most(self) -> int:
        """Files that a tree of this capture can have."""
        return min(self.target.most, FOREIGN.of_tree(pack.size for pack in self.captured.packs))

    @contextmanager
    def _closed(self, close: bool) -> Iterator[None]:
        """Keep others out of the folder while files in it lack their final rights."""
        if not close and not self.begun.mode:
            yield
            return
        mode = self.begun.mode or stat.S_IMODE(self.folder.stat().st_mode)
        self.begun = replace(self.begun, mode=mode)
        write_marker(self.shadow, self.begun)
        try:
            with suppress(OSError):  # another user's
                self.folder.chmod(mode & 0o700)
            yield
        finally:
            with suppress(OSError):
                self.folder.chmod(mode)

    def _replace(self, place: Location, contents: Contents, tree: Tree) -> TreeResult:
        """Save what is here, and put the tree over it; again where what is here changes meanwhile."""
        aside: tuple[str, ...] = ()
        for _ in range(TRIES):
            here = self._save_here(place)
            old = list_tree(self.shadow, here.contents.work, *place.alternates) if here else {}
            leave = left_out_here(old, tree, contents.state.left_out)
            old = {path: entry for path, entry in old.items() if path not in leave}
            done = self._keep(place, here, contents, old, tree)
            mark_folder(self.folder, ())
            moved, same = move_aside(self.folder, old, tree, self.now)
            aside += moved
            was = here.contents.work if here else ""
            nested = [path for path in tree if self._lacks_repository(path, tree)][:MAX_HUSKS]
            try:
                checkout_tree(self.shadow, self.folder, was, contents.work, leave, same, *place.alternates)
            except ChangedMeanwhile as error:
                changed = str(error)
                continue
            self._remove_husks(nested, contents)
            stays = sum(ASIDE_MARK not in path for path in leave)
            return replace(done, aside=aside, stays=stays, tree=tree)
        what = f"Files in {self.folder} change while the working tree is put back: {changed}"
        raise ConfigError(what, "Stop what writes there.")

    def _lacks_repository(self, path: str, tree: Tree) -> bool:
        return tree[path].mode == NESTED_REPOSITORY and not os.path.lexists(self.folder / path)

    def _remove_husks(self, nested: Sequence[str], contents: Contents) -> None:
        """Remove the empty folders that git makes for repositories inside, which are not saved: git in one of them
        would act on the repository around. A submodule has one in each clone."""
        around = self.captured.repository
        prefix = f"{around.prefix}/" if around is not None and around.prefix else ""
        submodules: set[str] = set()
        if nested and contents.index:
            words = ("ls-tree", "-z", "--full-tree", contents.index, "--", *(prefix + path for path in nested))
            try:
                listed = self.shadow.git.run(*words, at=self.shadow.at(), within=GitBounds(foreign=True)).split(b"\0")[
                    :-1
                ]
            except (GitFailed, OSError):
                return
            submodules = {os.fsdecode(line.partition(b"\t")[2]).removeprefix(prefix) for line in listed}
        for path in nested:
            if path not in submodules:
                with suppress(OSError):  # not empty
                    (self.folder / path).rmdir()
                    for parent in reversed([*parent_paths(path)]):
                        (self.folder / parent).rmdir()

    def _keep(self, place: Location, here: SavedHere | None, contents: Contents, old: Tree, tree: Tree) -> TreeResult:
        """Back up what is replaced, unless a commit of the user's or the save of a restore that was cut off has it; and
        the captured tree's base commits, where the repository here lacks them."""
        shadow, found = self.shadow, count_changes(old, tree)
        kept = RestoreBackup(self.target.kept(self.now).with_name(self.begun.kept)) if self.begun.kept else None
        kept = kept if kept and kept.folder.is_dir() else None
        saves = kept.trees(shadow) if kept else []
        files = here is not None and found.any and not here.clean and _has_unsaved(old, tree, saves)
        head = contents.state.head
        made = self.decided.make_repository
        offers = {"HEAD": head} if head in contents.state.commits and not made and not self._has(place, head) else {}
        if here is not None and not made:
            self.git = self.git.then(put_back_git(shadow, place, here, contents, known_commits(shadow, contents)))
            offers |= self.git.offered
        if files or offers:
            kept = kept or new_backup(self.target, self.now)
            local = here.contents.commit if here is not None and files else ""
            kept.make(shadow, place.alternates, local, offers, contents.state.shallow)
            if here is not None and files and (names := uncommitted_files(shadow, place, here, old, tree)):
                kept.note_uncommitted(names)
                self.announce(names, kept)
            self.begun = replace(self.begun, kept=kept.folder.name)
            write_marker(shadow, self.begun)
        lost = self.captured.repository
        return TreeResult(
            self.decided,
            self.captured,
            found,
            kept,
            files_kept=bool(saves) or files,
            repository=here.repository if here and not made else None,
            offers="HEAD" in offers,
            git=self.git,
            unread=lost is not None and not lost.prefix and not made and place.git_dir is None,
            runs=rebase_commands(contents) if made else (),
        )

    def _has(self, place: Location, commit: str) -> bool:
        if place.git_dir is None:
            return False
        try:
            self.shadow.git.run("cat-file", "-e", f"{commit}^{{commit}}", at=GitDirs(place.git_dir))
        except GitFailed:
            return False
        return True

    def _place(self) -> Location:
        self.folder.mkdir(parents=True, exist_ok=True)
        place = find_location(self.shadow.git, self.folder)
        format = object_format(self.captured)
        require_format(place, format)
        self._fresh = self.shadow.ensure(format)
        return place

    def _save_here(self, place: Location) -> SavedHere | None:
        return save_folder(self.target, self.shadow, place, self.now)

    def _room(self, size: int, files: int) -> None:
        place = os.statvfs(self.folder)
        if place.f_files and files > place.f_favail:  # 0: a file system without such a limit
            what = f"The working tree has {files} files, and {self.folder} can take {place.f_favail} more."
            raise Exhausted(what, "Make room there.")
        free = shutil.disk_usage(self.folder).free
        if size > free:
            what = f"The working tree has {size} bytes, and {free} are free in {self.folder}."
            raise Exhausted(what, "Make room there.")


def restore_kept(target: RestoreTarget, kept: KeptFiles, now: float) -> tuple[Changes, RestoreBackup | None]:
    """Make the files in the target's folder those of `kept`: how they differed, and the backup of what was there, None
    where nothing would have been lost. ConfigError: this machine cannot take it; nothing is lost."""
    shadow = target.shadow()
    with _lock_shadow(shadow, target.folder):
        try:
            return _swap(target, shadow, kept, now)
        except (GitFailed, Damaged, OSError) as error:
            raise _failed("The files could not be brought back", error) from error
        except GitMissing:
            raise ConfigError("There is no git here to bring the files back with.", "Install git.") from None


def _swap(target: RestoreTarget, shadow: Shadow, kept: KeptFiles, now: float) -> tuple[Changes, RestoreBackup | None]:
    if read_marker(shadow) is not None:
        raise ConfigError(f"A restore of {target.folder} was cut off.", "Start its job again first: wal-agent run")
    place = find_location(shadow.git, target.folder)
    work = kept.backup.tree_id(shadow.git, kept.save)
    format = "sha256" if len(work) == 64 else "sha1"
    require_format(place, format)
    shadow.ensure(format)
    packs = shadow.objects / "pack"  # later captures rest on these objects
    packs.mkdir(parents=True, exist_ok=True)
    for pack in sorted((kept.backup.folder / "objects" / "pack").iterdir(), reverse=True):  # .pack before .idx
        if not (packs / pack.name).exists():
            shutil.copyfile(pack, packs / pack.name)
    tree = list_tree(shadow, work)
    backup: RestoreBackup | None = None
    for _ in range(TRIES):
        here = save_folder(target, shadow, place, now)
        old = list_tree(shadow, here.contents.work, *place.alternates) if here else {}
        leave = left_out_here(old, tree)
        old = {path: entry for path, entry in old.items() if path not in leave}
        found = count_changes(old, tree)
        if here is not None and found.any and not here.clean:
            backup = backup or new_backup(target, now)
            backup.make(shadow, place.alternates, here.contents.commit, {}, ())
            backup.note_uncommitted(uncommitted_files(shadow, place, here, old, tree))
        _, same = move_aside(target.folder, old, tree, now)
        try:
            was = here.contents.work if here else ""
            checkout_tree(shadow, target.folder, was, work, leave, same, *place.alternates)
        except ChangedMeanwhile:
            continue
        return found, backup
    raise ConfigError(f"Files in {target.folder} change meanwhile.", "Stop what writes there.")


def uncommitted_files(shadow: Shadow, place: Location, here: SavedHere, old: Tree, tree: Tree) -> list[str]:
    """Return the files of the folder that no commit at HEAD has and that `tree` replaces. GitFailed."""
    committed: Tree = {}
    if here.committed:
        with suppress(Damaged):  # then all of them count
            committed = list_tree(shadow, here.committed, *place.alternates, whole=False)

    def differs(entry: TreeEntry, other: TreeEntry | None) -> bool:
        return other is None or (entry.mode, entry.id) != (other.mode, other.id)

    found = {p: e for p, e in old.items() if differs(e, committed.get(p)) and differs(e, tree.get(p))}
    return sorted(found.keys() - filtered_files(shadow, found, committed, *place.alternates))


def new_backup(target: RestoreTarget, now: float) -> RestoreBackup:
    folder = target.kept(now)
    n = 1
    while folder.exists():
        n += 1
        folder = folder.with_name(f"{folder.name.partition('-')[0]}-{n}")
    return RestoreBackup(folder)


def save_folder(target: RestoreTarget, shadow: Shadow, place: Location, now: float) -> SavedHere | None:
    """Save what is in the target's folder; None for an empty one. GitFailed."""
    if not any(target.folder.iterdir()):
        return None
    return save_here(shadow, target.folder, place, target.env, (*target.private, target.state_dir), now)


def require_format(place: Location, format: str) -> None:
    """ConfigError: the repository here is of another object format."""
    if place.git_dir is not None and place.object_format != format:
        what = f"The working tree was saved from a repository of format {format}; the one here has "
        raise ConfigError(f"{what}{place.object_format}.", "Start in an empty folder.")


def object_format(captured: Workspace) -> str:
    return "sha256" if len(captured.commit) == 64 else "sha1"


def _has_unsaved(here: Tree, tree: Tree, saves: Sequence[Tree]) -> bool:
    """Whether no save has something here; after a restore that was cut off, part of it is the captured tree already."""
    return not saves or any(all(of.get(path) != entry for of in (tree, *saves)) for path, entry in here.items())


def left_out_here(here: Tree, tree: Tree, left_out: Iterable[bytes] = ()) -> frozenset[str]:
    """Return what is not changed here: what the capture does not cover, and what a restore moved aside."""
    out = {os.fsdecode(path) for path in left_out}
    absent = here.keys() - tree.keys()
    return frozenset(p for p in absent if ASIDE_MARK in p or (out and not out.isdisjoint((p, *parent_paths(p)))))

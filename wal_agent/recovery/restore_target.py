"""Decide whether a captured working tree is restored here, mark restores in progress, and back up what they replace.

The folder that the newest capture came from is the truth and is not changed; another folder that looks like it is no
such folder. Markers beside the shadow of a workspace outlive it; each is one small file that is replaced whole.

A backup is a small bare repository for each restore, whole in itself, which plain git commands read. Its branch `local`
is the files of the folder as they were; `local-2` and so on are what appeared there while the restore ran, or before it
was run again. Its HEAD, if any, is the user's commit that the captured tree was based on, for a clone that lacks it.
"""

from __future__ import annotations

import calendar
import errno
import hashlib
import os
import shlex
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.budget import FOREIGN
from wal_agent.capture.candidates import BROUGHT_IN, Caps
from wal_agent.capture.git import Git, GitDirs, GitFailed, GitMissing
from wal_agent.capture.repository import MARK_NAME, Location, RepositoryReader, find_location, read_marks
from wal_agent.capture.scan import Scanner
from wal_agent.capture.shadow import ATTRIBUTES, Contents, Shadow, is_object_id
from wal_agent.errors import ConfigError, Newer
from wal_agent.records import Repository, Workspace
from wal_agent.recovery.restore_tree import Tree, list_tree, sync_filesystem
from wal_agent.safefs import read_plain, real_path, swap_file
from wal_agent.text import printable
from wal_agent.wal.lease import find_format

MAX_MARKER = 4096  # bytes
MARKER_FORMAT = 1
MAX_NOTED = 20  # names of files without a commit, beside each save
KEEP_BACKUPS = 5  # restores; older ones are dropped behind MIN_BACKUP_AGE
MIN_BACKUP_AGE = 14 * 86400.0  # seconds
STAMP = "%Y%m%dT%H%M%SZ"
LOCAL = "local"
OFFERED = "refs/saved/"

_AS_IS = ATTRIBUTES.rstrip() + " -export-ignore -export-subst\n"


class RestoreMarker(msgspec.Struct, frozen=True):
    """A restore of `commit` in progress. `kept`: name of the folder with what was here before the first of the restores
    that were cut off, "" while there is none. `mode`: the workspace's, while it is closed to others, else 0."""

    commit: str
    kept: str = ""
    mode: int = 0
    format: int = MARKER_FORMAT


_MARKER_DECODER = msgspec_compat.of_json(RestoreMarker)


def read_marker(shadow: Shadow) -> RestoreMarker | None:
    """Read the marker of a restore that was cut off here, of any capture: the folder may have parts of several.
    Newer."""
    data = read_plain(_marker_path(shadow), MAX_MARKER)
    if data is None:
        return None
    if (newer := find_format(data)) > MARKER_FORMAT:
        raise Newer.of(f"The note {_marker_path(shadow)}", f"format {newer}")
    try:
        found = _MARKER_DECODER.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return RestoreMarker("")
    return found if Path(found.kept).name == found.kept else RestoreMarker(found.commit)


def write_marker(shadow: Shadow, begun: RestoreMarker) -> None:
    swap_file(_marker_path(shadow), msgspec.json.encode(begun))


def clear_markers(shadow: Shadow, job: str) -> None:
    """Note that the restore for `job` is complete."""
    _marker_path(shadow).unlink(missing_ok=True)
    _request_path(shadow, job).unlink(missing_ok=True)


def request_restore(shadow: Shadow, job: str, commit: str) -> None:
    """Request that `commit` is restored here for `job`, though this folder may have had it once."""
    swap_file(_request_path(shadow, job), commit.encode())


def is_requested(shadow: Shadow, job: str, commit: str) -> bool:
    return read_plain(_request_path(shadow, job), MAX_MARKER) == commit.encode()


def _marker_path(shadow: Shadow) -> Path:
    return shadow.folder.with_name(f"{shadow.folder.name}-restoring")


def _request_path(shadow: Shadow, job: str) -> Path:
    return shadow.folder.with_name(f"{shadow.folder.name}-wanted-{hashlib.sha256(job.encode()).hexdigest()[:16]}")


class SavedHere(msgspec.Struct, frozen=True):
    """The files in the folder, saved in the shadow, and the repository around them. `committed`: the tree that its HEAD
    has of the folder, "" for none."""

    contents: Contents
    repository: Repository | None
    committed: str

    @property
    def clean(self) -> bool:
        return self.committed == self.contents.work


def save_here(
    shadow: Shadow, workspace: Path, place: Location, env: Mapping[str, str], private: tuple[Path, ...], now: float
) -> SavedHere:
    """Save the folder as a commit in the shadow, as a capture would. Under its lock. GitFailed."""
    surroundings = RepositoryReader(shadow)
    around = surroundings.read(place)
    scanned = Scanner(shadow, workspace, env, private, Caps()).scan(place, surroundings.index_stamp, 0)
    made = shadow.commit(scanned.work, around.index, around.state, now, *place.alternates)
    found = ""
    if around.repository is not None and around.repository.head:
        of = f"{around.repository.head}:{place.prefix}"
        found = shadow.git.text("rev-parse", "-q", "--verify", of, at=shadow.at(*place.alternates), ok=(0, 1, 128))
    return SavedHere(made, around.repository, found if is_object_id(found) else "")


class _Uncommitted(msgspec.Struct, frozen=True):
    count: int
    names: tuple[str, ...]


_UNCOMMITTED_DECODER = msgspec_compat.of_json(_Uncommitted)


class RestoreBackup(msgspec.Struct, frozen=True):
    """One restore's repository of what it replaced."""

    folder: Path

    def make(
        self, shadow: Shadow, alternates: tuple[Path, ...], local: str, offers: Mapping[str, str], cut: tuple[str, ...]
    ) -> None:
        """Make it, or add to it. `local`: commit to keep whole, "" for none. `offers`: commits to offer, by name, HEAD
        among them; `cut`: commits that the shadow has without their parents. GitFailed, OSError."""
        git = shadow.git
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        chosen = ["--object-format=sha256"] if len(next(iter((local, *offers.values())))) == 64 else []
        git.run("init", "-q", "--bare", "--template=", *chosen, ".", cwd=self.folder)
        (self.folder / "info").mkdir(exist_ok=True)
        (self.folder / "info" / "attributes").write_text(_AS_IS)
        pack = self.folder / "objects" / "pack" / "pack"
        pack.parent.mkdir(exist_ok=True)
        words = ("pack-objects", "-q", "--revs", "--delta-base-offset", str(pack))
        if local:
            git.run(*words, at=shadow.at(*alternates), input=f"{local}\n".encode())
            n = len(self.saves) + 1
            git.run("update-ref", f"refs/heads/{LOCAL}{f'-{n}' if n > 1 else ''}", local, at=self._at)
        if offers:
            asked = "".join(f"--shallow {id}\n" for id in cut) + "".join(f"{id}\n" for id in offers.values())
            git.run(*words, at=shadow.at(), input=asked.encode())
            self._offer(shadow, alternates, offers, cut)
        sync_filesystem(self.folder)

    def _offer(
        self, shadow: Shadow, alternates: tuple[Path, ...], offers: Mapping[str, str], cut: tuple[str, ...]
    ) -> None:
        """Let `git fetch` get these: with their history where the clone here has that, else shallow."""
        borrowed = self.folder / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(exist_ok=True)
        borrowed.write_text("".join(f"{path}\n" for path in alternates if "\n" not in str(path)))
        for name, id in offers.items():
            with suppress(GitFailed):  # no name of a ref
                at = ("--no-deref", "HEAD") if name == "HEAD" else (f"{OFFERED}{name}",)
                shadow.git.run("update-ref", *at, id, at=self._at)
        try:
            shadow.git.run("rev-list", "--count", *offers.values(), at=self._at)
        except GitFailed:
            borrowed.unlink()
            (self.folder / "shallow").write_text("".join(f"{id}\n" for id in cut))

    @property
    def _at(self) -> GitDirs:
        return GitDirs(self.folder, cwd=self.folder)

    @property
    def saves(self) -> tuple[str, ...]:
        """Its branches, the first save first."""
        found = [path.name for path in (self.folder / "refs" / "heads").glob(f"{LOCAL}*")]
        return tuple(sorted(found, key=lambda name: (len(name), name)))

    def trees(self, shadow: Shadow) -> list[Tree]:
        """The files of each save. GitFailed, Damaged."""
        ids = [shadow.git.text("rev-parse", "--verify", f"refs/heads/{name}:work", at=self._at) for name in self.saves]
        return [list_tree(shadow, id, self.folder / "objects") for id in ids]

    def note_uncommitted(self, names: Sequence[str]) -> None:
        """Note which files of the newest save no commit had. OSError."""
        note = msgspec.json.encode(_Uncommitted(len(names), tuple(map(printable, names[:MAX_NOTED]))))
        self._note_path(self.saves[-1]).write_bytes(note)

    def uncommitted(self, save: str) -> tuple[int, tuple[str, ...]]:
        """How many files of a save no commit had, and the first of them."""
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = _UNCOMMITTED_DECODER.decode(read_plain(self._note_path(save), MAX_MARKER * MAX_NOTED) or b"")
            return found.count, found.names
        return 0, ()

    def _note_path(self, save: str) -> Path:
        return self.folder / f"not-committed-{save}"

    def count_files(self, git: Git, save: str) -> int:
        """GitFailed."""
        return git.run("ls-tree", "-r", "-z", "--name-only", f"{save}:work", at=self._at).count(b"\0")

    def tree_id(self, git: Git, save: str) -> str:
        """The tree of a save. GitFailed."""
        return git.text("rev-parse", "--verify", f"refs/heads/{save}:work", at=self._at)

    @property
    def get_files(self) -> str:
        """The command that writes the files that were here into a new folder, one for each save."""
        archive = f"git --git-dir={shlex.quote(str(self.folder))} archive"
        into = {name: name.replace(LOCAL, "before", 1) for name in self.saves or (LOCAL,)}
        return " && ".join(f"mkdir {to} && {archive} {name}:work | tar -x -C {to}" for name, to in into.items())

    @property
    def get_commits(self) -> str:
        """The command that fetches what is offered into the repository here."""
        more = " --update-shallow" if (self.folder / "shallow").exists() else ""
        refs = ["HEAD"] if self._heads else []
        refs += [f"'{OFFERED}*:refs/wal-agent/*'"] if (self.folder / OFFERED).is_dir() else []
        return f"git fetch{more} {shlex.quote(str(self.folder))} {' '.join(refs)}"

    @property
    def _heads(self) -> bool:
        """Whether a commit is offered as HEAD."""
        return not (read_plain(self.folder / "HEAD", MAX_MARKER) or b"ref:").startswith(b"ref:")


class KeptFiles(msgspec.Struct, frozen=True):
    """The files that were in a folder before a restore: a `save` of a backup, made at `time` (seconds since 1970)."""

    backup: RestoreBackup
    save: str
    time: float

    @property
    def name(self) -> str:
        """For people; newer restores do not change it."""
        return self.backup.folder.name + self.save.removeprefix(LOCAL).replace("-", "+")


def list_kept(target: RestoreTarget) -> list[KeptFiles]:
    """List what restores replaced in the folder, the newest first."""
    found: list[KeptFiles] = []
    with suppress(FileNotFoundError):
        for folder in target.kept(0.0).parent.iterdir():
            with suppress(ValueError):  # somebody else's
                moment = calendar.timegm(time.strptime(folder.name[:16], STAMP))
                backup = RestoreBackup(folder)
                found += [KeptFiles(backup, save, float(moment)) for save in backup.saves]
    return sorted(found, key=lambda kept: (kept.time, len(kept.name), kept.name), reverse=True)


def drop_old_backups(folder: Path, now: float) -> None:
    """Drop backups that are neither among the newest nor young. Only after a complete restore: the backups of others
    may be the only copy that a report names."""
    with suppress(OSError):
        for old in sorted(folder.iterdir())[:-KEEP_BACKUPS]:
            with suppress(ValueError):  # somebody else's
                if now - calendar.timegm(time.strptime(old.name[:16], STAMP)) > MIN_BACKUP_AGE:
                    shutil.rmtree(old, ignore_errors=True)


class LocalTree(msgspec.Struct, frozen=True):
    """The state of the workspace folder. `known`: the newest capture was made from this very folder, or was put back
    into it. `repository`: there is one that the tree belongs into, or `.git` is something that git cannot read."""

    known: bool
    empty: bool
    repository: bool


class Keep(msgspec.Struct, frozen=True):
    """Do not change the folder. `home`: it is the user's home folder or above it, where nothing is put back."""

    why: Literal["not_saved", "newest", "home"]


class PutBack(msgspec.Struct, frozen=True):
    """Make the folder's files those of the capture. `make_repository`: and the lost repository, as there is none.
    `asked`: by a person, so those of the repositories inside too where they are newer."""

    make_repository: bool
    asked: bool = False


def decide_restore(captured: Workspace | None, here: LocalTree) -> Keep | PutBack:
    """Decide whether to restore. Pure. What changed in the newest capture's own folder since is newer than the log, and
    is kept; but a folder that is empty now is another one under the same name."""
    if captured is None:
        return Keep("not_saved")
    if here.known and not (here.empty and captured.files):
        return Keep("newest")
    lost = captured.repository
    return PutBack(lost is not None and not lost.prefix and not here.repository)


class RestoreTarget(msgspec.Struct, frozen=True):
    """Where a tree is put back: `folder`, a real path. `state_dir`: wal-agent's own. `env`: the user's, for git.
    `private`: folders that are never captured, so never saved nor replaced (`state_dir` always). `around`: the
    workspace, where `folder` is of a repository inside it. `most`: files that the tree may have."""

    folder: Path
    state_dir: Path
    env: Mapping[str, str]
    private: tuple[Path, ...] = ()
    job: str = ""
    around: Path | None = None
    most: int = FOREIGN.files

    def inside(self, name: str, most: int = FOREIGN.files) -> RestoreTarget:
        """Of a repository inside. ConfigError: a folder of this name is not put back."""
        check_inside_name(name)
        place = self.folder
        for part in name.split("/"):
            place = place / part
            if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
                raise ConfigError(f"{place} is not a folder here.")
        if any(place.is_relative_to(real_path(each)) for each in (*self.private, self.state_dir)):
            raise ConfigError(f"{place} is never captured.")
        return msgspec.structs.replace(self, folder=place, around=self.folder, most=most)

    def is_outside(self, name: str) -> bool:
        """Whether a linked worktree with this name in the log lies outside of the workspace here, or nowhere."""
        return name.startswith(f"{BROUGHT_IN}/") and name.isprintable() and not os.path.lexists(self.folder / name)

    def shadow(self) -> Shadow:
        return Shadow.of(self.state_dir, self.folder, Git(self.env), self.job)

    def kept(self, now: float) -> Path:
        """The folder for what this restore replaces."""
        shadow = self.shadow().folder
        return shadow.with_name(f"{shadow.name}-kept") / time.strftime(STAMP, time.gmtime(now))


def inspect_target(target: RestoreTarget, captured: Workspace | None) -> LocalTree:
    """Inspect the folder of `target`. Reads only."""
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
        return LocalTree(known, empty, _has_repository(shadow.git, target, captured.repository))
    except GitMissing:
        raise ConfigError(
            "A working tree is saved for this job, and there is no git here to put it back with.", "Install git."
        ) from None


def _is_known_folder(shadow: Shadow, target: RestoreTarget, commit: str) -> bool:
    """Whether the capture was made here (even if wal-agent was killed before it noted that), or put back here
    completely. A folder that could be marked and is not is another one of the same name."""
    if read_marker(shadow) is not None or is_requested(shadow, target.job, commit):
        return False
    if commit in read_marks(target.folder):
        return True
    return not _can_be_marked(target.folder) and shadow.has(commit)


def _can_be_marked(folder: Path) -> bool:
    """Whether `mark` works here, as far as is known without changing anything."""
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


def check_inside_name(name: str) -> None:
    """ConfigError: no repository inside lies in a folder of this name."""
    if not name.isprintable() or not all(map(is_folder_name, name.split("/"))):
        raise ConfigError(f"{printable(name)} is no name of a folder inside.")


def is_folder_name(part: str) -> bool:
    """Whether a repository inside may lie in a folder of this name; git's own folder has some spellings."""
    return part not in ("", ".", "..") and not part.lower().startswith((".git", "git~"))


def _has_repository(git: Git, target: RestoreTarget, lost: Repository | None) -> bool:
    """Whether there is a repository for the tree. One around the folder without a file in it is none for a tree that
    was at the top of its own."""
    folder = target.folder
    if os.path.lexists(folder / ".git") or target.around is not None:
        return os.path.lexists(folder / ".git")
    place = find_location(git, folder)
    if place.git_dir is None or lost is None or lost.prefix or not place.prefix:
        return place.git_dir is not None
    try:
        return bool(git.run("ls-files", "-z", "--", place.prefix, at=place.at))
    except GitFailed:
        return True

"""What a restore of the working tree replaces is kept first: a small bare repository for each restore, whole in itself,
out of which plain git commands get it back.

Its branch `local` is the files of the folder as they were; `local-2` and so on are what came to be there while the
restore went on, or before it was done again. Its HEAD, where there is one, is the user's commit that the captured tree
stood on, for a clone that lacks it.
"""

from __future__ import annotations

import calendar
import shlex
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.capture.candidates import Caps
from wal_agent.capture.git import GitDirs, GitFailed
from wal_agent.capture.location import Location
from wal_agent.capture.repository import RepositoryReader
from wal_agent.capture.scan import Scanner
from wal_agent.capture.shadow import ATTRIBUTES, Contents, Shadow
from wal_agent.records import Repository
from wal_agent.recovery.restore_tree import Tree, list_tree, sync_filesystem

KEEP_BACKUPS = 5  # restores; older ones are dropped where they are older than YOUNG as well
MIN_BACKUP_AGE = 14 * 86400.0  # seconds
STAMP = "%Y%m%dT%H%M%SZ"
LOCAL = "local"
_AS_IS = ATTRIBUTES.rstrip() + " -export-ignore -export-subst\n"


@dataclass(frozen=True, slots=True)
class SavedHere:
    """The files that are in the folder, saved in the shadow, and the repository around them. `clean`: its HEAD holds
    the very same files."""

    contents: Contents
    repository: Repository | None
    clean: bool


def save_here(
    shadow: Shadow, workspace: Path, place: Location, env: Mapping[str, str], private: tuple[Path, ...], now: float
) -> SavedHere:
    """Save the folder as a commit in the shadow, as a capture would. Under its lock. GitFailed."""
    surroundings = RepositoryReader(shadow)
    around = surroundings.look(place)
    scanned = Scanner(shadow, workspace, env, private, Caps()).scan(place, surroundings.index_stamp, 0)
    made = shadow.commit(scanned.work, around.index, around.state, now, *place.alternates)
    clean = False
    if around.repository is not None and around.repository.head:
        of = f"{around.repository.head}:{place.prefix}"
        found = shadow.git.text("rev-parse", "-q", "--verify", of, at=shadow.at(*place.alternates), ok=(0, 1, 128))
        clean = found == made.work
    return SavedHere(made, around.repository, clean)


@dataclass(frozen=True, slots=True)
class RestoreBackup:
    """One restore's repository of what it replaced."""

    folder: Path

    def make(self, shadow: Shadow, alternates: tuple[Path, ...], local: str, head: str, cut: tuple[str, ...]) -> None:
        """Make it, or add to it. `local`: commit to keep whole, "" for none. `head`: commit to offer, "" for none;
        `cut`: commits that the shadow has without their parents. GitFailed, OSError."""
        git, at = shadow.git, GitDirs(self.folder, cwd=self.folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        chosen = ["--object-format=sha256"] if len(local or head) == 64 else []
        git.run("init", "-q", "--bare", "--template=", *chosen, ".", cwd=self.folder)
        (self.folder / "info").mkdir(exist_ok=True)
        (self.folder / "info" / "attributes").write_text(_AS_IS)
        pack = self.folder / "objects" / "pack" / "pack"
        pack.parent.mkdir(exist_ok=True)
        words = ("pack-objects", "-q", "--revs", "--delta-base-offset", str(pack))
        if local:
            git.run(*words, at=shadow.at(*alternates), input=f"{local}\n".encode())
            n = len(self.saves) + 1
            git.run("update-ref", f"refs/heads/{LOCAL}{f'-{n}' if n > 1 else ''}", local, at=at)
        if head:
            asked = "".join(f"--shallow {id}\n" for id in cut) + f"{head}\n"
            git.run(*words, at=shadow.at(), input=asked.encode())
            self._offer(shadow, alternates, head, cut)
        sync_filesystem(self.folder)

    def _offer(self, shadow: Shadow, alternates: tuple[Path, ...], head: str, cut: tuple[str, ...]) -> None:
        """Where the clone here has the history behind the commits, they are fetched as what they are; else shallow."""
        git, at = shadow.git, GitDirs(self.folder, cwd=self.folder)
        (self.folder / "objects" / "info").mkdir(exist_ok=True)
        borrowed = "".join(f"{path}\n" for path in alternates if "\n" not in str(path))
        (self.folder / "objects" / "info" / "alternates").write_text(borrowed)
        git.run("update-ref", "--no-deref", "HEAD", head, at=at)
        try:
            git.run("rev-list", "--count", head, at=at)
        except GitFailed:
            (self.folder / "objects" / "info" / "alternates").unlink()
            (self.folder / "shallow").write_text("".join(f"{id}\n" for id in cut))

    @property
    def saves(self) -> tuple[str, ...]:
        """Its branches, the first save first."""
        found = [path.name for path in (self.folder / "refs" / "heads").glob(f"{LOCAL}*")]
        return tuple(sorted(found, key=lambda name: (len(name), name)))

    def trees(self, shadow: Shadow) -> list[Tree]:
        """The files of each save. GitFailed, Damaged."""
        git, at = shadow.git, GitDirs(self.folder, cwd=self.folder)
        ids = [git.text("rev-parse", "--verify", f"refs/heads/{name}:work", at=at) for name in self.saves]
        return [list_tree(shadow, id, self.folder / "objects") for id in ids]

    @property
    def shallow(self) -> bool:
        return (self.folder / "shallow").exists()

    @property
    def get_files(self) -> str:
        """The command that writes the files that were here into a new folder, one for each save."""
        archive = f"git --git-dir={shlex.quote(str(self.folder))} archive"
        into = {name: name.replace(LOCAL, "before", 1) for name in self.saves or (LOCAL,)}
        return " && ".join(f"mkdir {to} && {archive} {name}:work | tar -x -C {to}" for name, to in into.items())

    @property
    def get_commits(self) -> str:
        """The command that brings the commit that the captured tree stood on into the repository here."""
        more = " --update-shallow" if self.shallow else ""
        return f"git fetch{more} {shlex.quote(str(self.folder))} HEAD"


def drop_old_backups(folder: Path, now: float) -> None:
    """Drop what restores before the newest `KEEP` kept, where it is not young. Only after a restore that came to its
    end: what the others kept may be the only copy that is told of."""
    with suppress(OSError):
        for old in sorted(folder.iterdir())[:-KEEP_BACKUPS]:
            with suppress(ValueError):  # somebody else's
                if now - calendar.timegm(time.strptime(old.name[:16], STAMP)) > MIN_BACKUP_AGE:
                    shutil.rmtree(old, ignore_errors=True)

"""What a restore of the working tree replaces is kept first: a small bare repository for each restore, whole in itself,
out of which plain git commands get it back.

Its branch `local` is the files of the folder as they were; its HEAD, where there is one, is the user's commit that the
captured tree stood on, for a clone that lacks it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wal_agent.capture.candidates import Caps
from wal_agent.capture.git import At, GitFailed
from wal_agent.capture.place import Place
from wal_agent.capture.repository import Surroundings
from wal_agent.capture.scan import Scanner
from wal_agent.capture.shadow import ATTRIBUTES, Contents, Shadow
from wal_agent.records import Repository

KEEP = 5  # restores
LOCAL = "refs/heads/local"
_AS_IS = ATTRIBUTES.rstrip() + " -export-ignore -export-subst\n"


@dataclass(frozen=True, slots=True)
class Here:
    """The files that are in the folder, saved in the shadow, and the repository around them. `clean`: its HEAD holds
    the very same files."""

    contents: Contents
    repository: Repository | None
    clean: bool


def save_here(
    shadow: Shadow, workspace: Path, place: Place, env: Mapping[str, str], private: tuple[Path, ...], now: float
) -> Here:
    """Save the folder as a commit in the shadow, as a capture would. Under its lock. GitFailed."""
    surroundings = Surroundings(shadow)
    around = surroundings.look(place)
    scanned = Scanner(shadow, workspace, env, private, Caps()).scan(place, surroundings.index_stamp, 0)
    made = shadow.commit(scanned.work, around.index, around.state, now, *place.alternates)
    clean = False
    if around.repository is not None and around.repository.head:
        of = f"{around.repository.head}:{place.prefix}"
        found = shadow.git.text("rev-parse", "-q", "--verify", of, at=shadow.at(*place.alternates), ok=(0, 1, 128))
        clean = found == made.work
    return Here(made, around.repository, clean)


@dataclass(frozen=True, slots=True)
class Kept:
    """One restore's repository of what it replaced."""

    folder: Path

    def make(self, shadow: Shadow, alternates: tuple[Path, ...], local: str, head: str, cut: tuple[str, ...]) -> None:
        """`local`: commit to keep whole, "" for none. `head`: commit to offer, "" for none; `cut`: commits
        that the shadow has without their parents. GitFailed, OSError."""
        git, at = shadow.git, At(self.folder, cwd=self.folder)
        self.folder.mkdir(mode=0o700, parents=True)
        chosen = ["--object-format=sha256"] if len(local or head) == 64 else []
        git.run("init", "-q", "--bare", "--template=", *chosen, ".", cwd=self.folder)
        (self.folder / "info").mkdir(exist_ok=True)
        (self.folder / "info" / "attributes").write_text(_AS_IS)
        pack = self.folder / "objects" / "pack" / "pack"
        pack.parent.mkdir(exist_ok=True)
        words = ("pack-objects", "-q", "--revs", "--delta-base-offset", str(pack))
        if local:
            git.run(*words, at=shadow.at(*alternates), input=f"{local}\n".encode())
            git.run("update-ref", LOCAL, local, at=at)
        if head:
            asked = "".join(f"--shallow {id}\n" for id in cut) + f"{head}\n"
            git.run(*words, at=shadow.at(), input=asked.encode())
            self._offer(shadow, alternates, head, cut)

    def _offer(self, shadow: Shadow, alternates: tuple[Path, ...], head: str, cut: tuple[str, ...]) -> None:
        """Where the clone here has the history behind the commits, they are fetched as what they are; else shallow."""
        git, at = shadow.git, At(self.folder, cwd=self.folder)
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
    def shallow(self) -> bool:
        return (self.folder / "shallow").exists()

    @property
    def get_files(self) -> str:
        """The command that writes the files that were here into a new folder."""
        return f"mkdir before && git --git-dir={shlex.quote(str(self.folder))} archive local:work | tar -x -C before"

    @property
    def get_commits(self) -> str:
        """The command that brings the commit that the captured tree stood on into the repository here."""
        more = " --update-shallow" if self.shallow else ""
        return f"git fetch{more} {shlex.quote(str(self.folder))} HEAD"

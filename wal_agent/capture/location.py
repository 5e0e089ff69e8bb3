"""Where a workspace lies: in which of the user's git repositories, and where in it."""

from __future__ import annotations

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

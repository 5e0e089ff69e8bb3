"""Puts a session back where its agent looks for it: exactly, all or nothing, and never outside (I4).

The exact copies are made first and stay in a folder of ours, with what they replace. What the agent resumes is a child of
the exact main file: reconciled, and with the notice told. A crash at any point leaves either the old files or the new
ones, and the next restore begins again from the log.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.agents.base import Agent, Env, LoggedCall, Reconciled
from wal_agent.errors import ConfigError, Damaged
from wal_agent.failpoints import failpoint
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.files import write_file
from wal_agent.wal.state import FileState

KEEP = 5  # folders of earlier restores
STAGED = ".wal-agent-staged-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session goes: the agent's folder on this machine, and `kept`, a new folder of ours for the exact copies and
    for what is replaced."""

    agent: Agent
    session: str
    workspace: Path
    env: Env
    kept: Path

    def path(self, name: str) -> Path:
        """The destination of a logical file; Damaged for a name that is not the agent's."""
        try:
            return self.agent.restore_path(name, self.session, self.workspace, self.env)
        except ValueError as error:
            raise Damaged(f"The log names a session file that cannot be restored: {error}.") from error


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put back. `extended`: logical files of which this machine had more than the log, whose bytes were kept."""

    files: tuple[str, ...]
    size: int
    reconciled: Reconciled
    extended: tuple[str, ...]
    kept: Path


def restore(
    place: Place,
    files: Mapping[str, FileState],
    blobs: Blobs,
    calls: Sequence[LoggedCall],
    notice: Callable[[Reconciled], str],
) -> Restored:
    """Put back all `files`. `notice` writes the prompt once it is known what was put back. Damaged: the log's bytes do not
    hold; ConfigError: this machine's folders are not safe to write into. Nothing of the agent's is changed then."""
    failpoint("restore.before_stage")
    exact = _exact(place, files, blobs)
    main = place.agent.main_file
    extended = tuple(name for name, path in exact.items() if _take_longer(place, name, path, files[name]))
    data = exact[main].read_bytes()
    reconciled = place.agent.reconcile(data, place.session, place.workspace, calls)
    told = place.agent.tell(reconciled.data, place.session, place.workspace, notice(reconciled))
    staged = {name: _stage(place, name, path.read_bytes()) for name, path in exact.items() if name != main}
    staged[main] = _stage(place, main, reconciled.data if told is None else told)
    _move_in(place, staged)
    sizes = sum(path.stat().st_size for path in exact.values())
    return Restored(tuple(sorted(files)), sizes, reconciled, extended, place.kept)


def plant(place: Place, prompt: str) -> None:
    """A new session that holds only `prompt`, for a task whose own session was never saved."""
    data = place.agent.tell(b"", place.session, place.workspace, prompt)
    if data is not None:
        place.kept.mkdir(mode=0o700, parents=True)
        _move_in(place, {place.agent.main_file: _stage(place, place.agent.main_file, data)})


def prune(folder: Path) -> None:
    """Drop the folders of all but the newest restores; their names sort by time."""
    with suppress(OSError):
        for old in sorted(folder.iterdir())[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)


# ---- the exact copies


def _exact(place: Place, files: Mapping[str, FileState], blobs: Blobs) -> dict[str, Path]:
    """Every file, byte for byte as captured and checked, in our own folder."""
    folder = place.kept / "exact"
    folder.mkdir(mode=0o700, parents=True)
    made: dict[str, Path] = {}
    for name, file in files.items():
        place.path(name)  # refuses a name that would lead elsewhere, before anything is written under it
        target = folder.joinpath(*name.split("/"))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(blobs, file, target)
        made[name] = target
    return made


def _take_longer(place: Place, name: str, exact: Path, file: FileState) -> bool:
    """Where this machine's copy is the log's and more, it holds what was not captured any more: take its bytes."""
    main = name == place.agent.main_file
    here = place.agent.existing(place.session, place.workspace, place.env) if main else [place.path(name)]
    for path in here:
        data = _read_plain(path)
        if data is not None and len(data) > file.size and hashlib.sha256(data[: file.size]).hexdigest() == file.sha256:
            exact.write_bytes(data)
            return True
    return False


def _read_plain(path: Path) -> bytes | None:
    """A regular file's bytes, links not followed; None for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(fd).st_mode) else None


# ---- into the agent's folder


def _stage(place: Place, name: str, data: bytes) -> Path:
    """The file beside its destination, fsynced, under a name that the agent does not look at."""
    target = place.path(name)
    _make_parents(target.parent, place.agent.folder(place.env))
    staged = target.with_name(STAGED + hashlib.sha256(name.encode()).hexdigest()[:16])
    staged.unlink(missing_ok=True)
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    return staged


def _make_parents(folder: Path, root: Path) -> None:
    """Create the folders below `root`, refusing a link or a file among them: a restore never leaves the agent's folder."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    at = root
    for part in folder.relative_to(root).parts:
        at = at / part
        with suppress(FileExistsError):
            at.mkdir(mode=0o700)
        if not stat.S_ISDIR(at.lstat().st_mode):
            raise ConfigError(f"{at} is not a folder, so the session cannot be restored there.", "Move it away, then start again.")


def _move_in(place: Place, staged: Mapping[str, Path]) -> None:
    """Copy what is in the way into our folder, rename the staged files into place, then remove what would confuse the
    resume. All is staged before; each step can be done again."""
    failpoint("restore.staged")
    main = place.path(place.agent.main_file)
    confusing = place.agent.existing(place.session, place.workspace, place.env)
    for path in {*confusing, *(place.path(name) for name in staged)}:
        _keep(path, place.kept / "replaced")
    for name, path in sorted(staged.items()):
        path.rename(place.path(name))
        failpoint("restore.between_moves")
    for path in confusing:
        if path != main:
            path.unlink(missing_ok=True)
    for folder in {place.path(name).parent for name in staged}:
        _sync(folder)
    failpoint("restore.after_moves")


def _keep(path: Path, folder: Path) -> None:
    data = _read_plain(path)
    if data is None:
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    copy = folder / path.name
    fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

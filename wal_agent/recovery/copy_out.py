"""What a job had saved as of a place in its log, written into a folder of a person's: `session/` and `workspace/`.

The bucket, the job and all other files stay as they are; nothing in the folder is followed out of it (I4).
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.bucket.base import Bucket
from wal_agent.errors import ConfigError, Damaged, UsageError
from wal_agent.recovery.export import write_session_files
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Replay

SESSION, WORKSPACE = "session", "workspace"
STAGED = ".wal-agent-restore-"


@dataclass(frozen=True, slots=True)
class Exported:
    """`files`: name and bytes of the session's files. `tree_files`: of the working tree, None where none was saved.
    `short`: sentences on what could not be had. `replaced`: how many files were there before."""

    files: Mapping[str, int]
    tree_files: int | None
    short: tuple[str, ...]
    replaced: int


def export_job(
    found: Replay,
    bucket: Bucket,
    keys: Keys,
    blobs: Blobs,
    folder: Path,
    check: Callable[[str], object],
    env: Mapping[str, str],
    now: float,
    *,
    force: bool,
) -> Exported:
    """Write what `found` says into `folder` (absolute), which is new or empty, unless `force`: then files of the same
    names are replaced. `check` raises ValueError for a name that is no file of the agent's. `now`: seconds since 1970.

    UsageError: the folder is not to be had; ConfigError: the disk or git refuses; BucketError."""
    _make_folder(folder, force)
    with _staging_folder(folder) as stage:
        (stage / SESSION).mkdir(mode=0o700)
        done = write_session_files(found, bucket, keys, blobs, stage / SESSION, check)
        short = list(done.short)
        files: int | None = None
        try:
            files = _export_workspace(found, blobs, stage, env, now)
        except Damaged as error:
            short.append(f"the working tree cannot be had ({error.what})")
            shutil.rmtree(stage / WORKSPACE, ignore_errors=True)
        replaced = sum(
            _move_into(stage / part, folder / part) for part in (SESSION, WORKSPACE) if (stage / part).is_dir()
        )
    return Exported(done.files, files, tuple(short), replaced)


def _make_folder(folder: Path, force: bool) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if folder.is_symlink() or not folder.is_dir():
            raise UsageError(f"{folder} is there already and is not a folder.", "Name a new one.") from None
        if not force and next(folder.iterdir(), None) is not None:
            hint = "Name a new one, or replace what has the same name in it: --force"
            raise UsageError(f"{folder} is there already and is not an empty folder.", hint) from None
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made: {error.strerror}.", "Name another one.") from error


@contextmanager
def _staging_folder(folder: Path) -> Iterator[Path]:
    try:
        stage = Path(tempfile.mkdtemp(prefix=STAGED, dir=folder))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}.") from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _export_workspace(found: Replay, blobs: Blobs, stage: Path, env: Mapping[str, str], now: float) -> int | None:
    captured = found.state.workspace
    if captured is None:
        return None
    # Imported here: what reads no working tree needs no git.
    from wal_agent.recovery.restore_workspace import restore_files
    from wal_agent.recovery.target import Keep, RestoreTarget, decide_restore, inspect_target

    target = RestoreTarget(stage / WORKSPACE, stage / "state", env)
    decided = decide_restore(captured, inspect_target(target, captured))
    assert not isinstance(decided, Keep), "a folder that was made just now is nobody's"
    restore_files(target, captured, blobs, decided, now)
    return captured.files


def _move_into(source: Path, target: Path) -> int:
    """Move a folder's content, file by file where a folder is there; how many files were replaced."""
    if not os.path.lexists(target):
        source.rename(target)
        return 0
    if not stat.S_ISDIR(target.lstat().st_mode):
        raise ConfigError(f"{target} is not a folder.", "Move it away, or name another folder.")
    replaced = 0
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir() and not entry.is_symlink():
            replaced += _move_into(entry, place)
            continue
        replaced += os.path.lexists(place)
        if place.is_dir() and not place.is_symlink():
            raise ConfigError(f"{place} is a folder, and a file is to go there.", "Move it away.")
        with suppress(FileNotFoundError):
            entry.replace(place)
    return replaced

"""Write what a job had saved as of a point in its log into a person's folder: `session/` and `workspace/`.

A point is a record's number or a time. Of each session file the newest version is written whose every byte is there: an
older one where blobs are lost (I3, I4). The bucket, the job and all other files are not changed, and no link in the
folder is followed out of it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent.answers import JsonAnswer
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.errors import ConfigError, Damaged, UsageError
from wal_agent.limits import failed
from wal_agent.recovery import restore_session
from wal_agent.text import job_command, shorten
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs, create_file, write_base, write_file
from wal_agent.wal.damage import unknown_job_error
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import KnownEnd, Replay, check_end, replay, seq_at_time
from wal_agent.wal.state import FileState
from wal_agent.wal.store import JobStore

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_WAYS = "Give a record's number, as `wal-agent log` shows it, or a time: 14:02, 14:02:13 (local), 2026-11-22T14:02:13Z."
TRIES = 8  # versions of one file that are tried on one base
SESSION, WORKSPACE = "session", "workspace"
STAGED = ".wal-agent-restore-"

_BAD_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EINVAL)


def parse_point(text: str, now: float) -> int | float:
    """Parse a record's number (int) or a time (float, seconds since 1970).

    A time of day means the newest such time up to `now`, and a minute means its end. UsageError for anything else."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        if (number := int(text)) < 1:
            raise UsageError("Records are numbered from 1.", _WAYS)
        return number
    if match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part) if part else None for part in match.groups())
        today = datetime.fromtimestamp(now)
        began = today.replace(hour=hours or 0, minute=minutes or 0, second=seconds or 0, microsecond=0)
        ended = began.replace(second=59 if seconds is None else seconds, microsecond=999_999)
        return (ended if began <= today else ended - timedelta(days=1)).timestamp()
    try:
        when = datetime.fromisoformat(text)
        return when.timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{text[:60]!r} is neither a record number nor a time.", _WAYS) from None


def replay_at(bucket: Bucket, keys: Keys, key_id: str, at: str | None, now: float) -> Replay:
    """The log up to the place `at` (None: to its end), or as far as it is sound. Denied: the job is not encrypted with
    the key `key_id`; UsageError: there is no such place; Damaged: it cannot be found; BucketError."""
    try:
        seen = leases.read_lease(bucket, keys)
    except Damaged:
        seen = None  # what was saved is in the log
    if seen and (problem := wrong_key_error(keys.job, seen.doc.key, key_id)):
        raise problem
    if seen is None and next(iter(bucket.list(keys.log)), None) is None:
        raise unknown_job_error(bucket, keys)
    if at is None:
        return check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
    point, see_log = parse_point(at, now), f"See: {job_command('log', keys.job, bucket.url)}"
    upto = point if isinstance(point, int) else seq_at_time(bucket, keys, point)
    if upto < 1:
        raise UsageError(f"Job {keys.job} has no record of {at} or before.", see_log)
    found = replay(bucket, keys, upto)
    if isinstance(point, int) and found.seq < point:
        whole = check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
        if whole.damage is None and whole.seq < point:
            raise UsageError(f"Job {keys.job} has no record {point}; the last is {whole.seq}.", see_log)
    return found


def _write_session(
    found: Replay, bucket: Bucket, keys: Keys, blobs: Blobs, folder: Path, check: Callable[[str], object]
) -> tuple[dict[str, int], list[str]]:
    """Write the files of `found` into `folder`, which is empty.

    Returns name and bytes of each, and a sentence for each file whose newest version is not available. `check` raises
    ValueError for a name that is no file of the agent's. Raises ConfigError where the disk refuses."""
    written: dict[str, int] = {}
    short: list[str] = []
    for name, file in sorted(found.state.files.items()):
        try:
            check(name)
            target = folder.joinpath(*name.split("/"))
            restore_session.make_parents(target.parent, folder)
            written[name], why = _write_newest(found, file, name, bucket, keys, blobs, target)
        except (ValueError, Damaged, ConfigError) as error:
            why = f"cannot be had ({getattr(error, 'what', error)})"
        except OSError as error:
            if error.errno not in _BAD_NAME:
                raise failed(f"{folder} cannot be written", error) from error
            why = f"cannot be had ({error.strerror})"
        if why:
            short.append(f"{shorten(name, 100)} {shorten(why)}")
    return written, short


def _write_newest(
    found: Replay, file: FileState, name: str, bucket: Bucket, keys: Keys, blobs: Blobs, target: Path
) -> tuple[int, str]:
    """Write the newest whole version; return its size and what is wrong with newer ones. Damaged: there is none."""
    first: Damaged | None = None
    for at in _replays(found, bucket, keys):
        older = at.state.files.get(name)
        if older is None or older.session != file.session:
            continue
        for version in islice(_versions(older, blobs), TRIES):
            try:
                _write_version(blobs, version, target)
            except Damaged as error:
                first = first or error
            else:
                if version.sha256 == file.sha256:
                    return version.size, ""
                why = first.what if first else "what was saved later is damaged"
                return version.size, f"is of an earlier time, {version.size} bytes ({why})"
    raise first or Damaged("nothing of it is left")


def _replays(found: Replay, bucket: Bucket, keys: Keys) -> Iterator[Replay]:
    """Yield `found`, then the log up to right before each older snapshot, whose files rest on other chunks."""
    yield found
    while found.snapshot > 1:
        found = replay(bucket, keys, found.snapshot - 1)
        yield found


def _versions(file: FileState, blobs: Blobs) -> Iterator[FileState]:
    """Yield the file as of each capture since its base, from the newest with all bytes; then the base alone."""
    for count in range(_count_whole_layers(file, blobs), 0, -1):
        last = file.layers[count - 1]
        yield replace(file, layers=file.layers[:count], size=last.size, sha256=last.sha256)
    if file.chunks:  # its hash is known only where it has no deltas
        yield replace(file, layers=(), size=file.base_size, sha256="" if file.layers else file.sha256)


def _count_whole_layers(file: FileState, blobs: Blobs) -> int:
    """Count the deltas that have all their bytes, up to the first that lacks some."""
    for count, delta in enumerate(file.layers):
        try:
            for edit in delta.edits:
                blobs.fetch(edit.data)
        except Damaged:
            return count
    return len(file.layers)


def _write_version(blobs: Blobs, file: FileState, target: Path) -> None:
    if file.sha256:
        write_file(blobs, file, target)
        return
    try:  # each chunk has a hash of its own; that of the whole file is not known any more
        with create_file(target) as out:
            write_base(blobs, file, out)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


class Exported(msgspec.Struct, frozen=True):
    """`files`: name and bytes of the session's files. `tree_files`: of the working tree, None where none was saved.
    `short`: sentences on what could not be had. `replaced`: how many files were there before."""

    files: Mapping[str, int]
    tree_files: int | None
    short: tuple[str, ...]
    replaced: int


class Restore(JsonAnswer, frozen=True, kw_only=True):
    """`wal-agent restore`. `session_files`: their sizes by name; of the working tree, None where none had been saved,
    `tree_files` counts the files and `tree_holds` is the newest call whose changes it has."""

    record: int
    time: float
    folder: str
    session: str
    session_files: dict[str, int]
    tree_files: int | None
    tree_holds: int | None
    replaced: int
    open_calls: tuple[int, ...]


def export_job(
    found: Replay,
    store: JobStore,
    folder: Path,
    check: Callable[[str], object],
    env: Mapping[str, str],
    *,
    force: bool,
) -> Exported:
    """Write what `found` says into `folder` (absolute), which is new or empty, unless `force`: then files of the same
    names are replaced. `check` raises ValueError for a name that is no file of the agent's.

    UsageError: the folder is not to be had; ConfigError: the disk or git refuses; BucketError."""
    blobs = Blobs(store)
    _make_folder(folder, force)
    with _staging_folder(folder) as stage:
        (stage / SESSION).mkdir(mode=0o700)
        written, short = _write_session(found, store.bucket, store.keys, blobs, stage / SESSION, check)
        files: int | None = None
        try:
            files = _export_workspace(found, blobs, stage, env, store.clock.now())
        except Damaged as error:
            short.append(f"the working tree cannot be had ({error.what})")
            shutil.rmtree(stage / WORKSPACE, ignore_errors=True)
        replaced = sum(
            _move_into(stage / part, folder / part) for part in (SESSION, WORKSPACE) if (stage / part).is_dir()
        )
    return Exported(written, files, tuple(short), replaced)


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
    from wal_agent.recovery.restore_target import Keep, RestoreTarget, decide_restore, inspect_target
    from wal_agent.recovery.restore_workspace import restore_files

    target = RestoreTarget(stage / WORKSPACE, stage / "state", env)
    decided = decide_restore(captured, inspect_target(target, captured))
    assert not isinstance(decided, Keep), "a folder that was made just now is nobody's"
    restore_files(target, captured, blobs, decided, now, inside=found.state.inside)
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

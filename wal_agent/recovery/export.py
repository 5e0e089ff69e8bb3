"""What can still be had of a job's session, written into a new folder; the bucket and all other files stay as they are.

Of each file the newest version whose every byte is there: an older one where blobs are lost (I3, I4).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from wal_agent.bucket.base import Bucket
from wal_agent.errors import ConfigError, Damaged, UsageError
from wal_agent.recovery import moves
from wal_agent.sanitize import shorten
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.files import create_file, write_base, write_file
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Replay, replay
from wal_agent.wal.state import FileState

TRIES = 8  # versions of one file that are tried on one base
_BAD_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class SessionFiles:
    """`files`: name and bytes of what was written. `short`: sentences, one for each file of which the newest version
    could not be had."""

    files: Mapping[str, int]
    short: tuple[str, ...]


def new_folder(folder: Path) -> None:
    """Make it, 0700; an empty one that is there is taken. UsageError for anything else."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if folder.is_symlink() or not folder.is_dir() or next(folder.iterdir(), None) is not None:
            raise UsageError(f"{folder} is there already and is not an empty folder.", "Name a new one.") from None
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made: {error.strerror}.", "Name another one.") from error


def write_session_files(
    found: Replay, bucket: Bucket, keys: Keys, blobs: Blobs, folder: Path, check: Callable[[str], object]
) -> SessionFiles:
    """Write the files of `found` into `folder`, which is empty. `check` raises ValueError for a name that is no file of
    the agent's. ConfigError: the disk refuses."""
    written: dict[str, int] = {}
    short: list[str] = []
    for name, file in sorted(found.state.files.items()):
        try:
            check(name)
            target = folder.joinpath(*name.split("/"))
            moves.make_parents(target.parent, folder)
            written[name], why = _write_newest(found, file, name, bucket, keys, blobs, target)
        except (ValueError, Damaged, ConfigError) as error:
            why = f"cannot be had ({getattr(error, 'what', error)})"
        except OSError as error:
            if error.errno not in _BAD_NAME:
                raise ConfigError(f"{folder} cannot be written: {error.strerror}.", "Make room there.") from error
            why = f"cannot be had ({error.strerror})"
        if why:
            short.append(f"{shorten(name, 100)} {shorten(why)}")
    return SessionFiles(written, tuple(short))


def _write_newest(
    found: Replay, file: FileState, name: str, bucket: Bucket, keys: Keys, blobs: Blobs, target: Path
) -> tuple[int, str]:
    """Write the newest version that is whole: its size, and what is wrong with newer ones. Damaged: there is none."""
    first: Damaged | None = None
    for at in older_replays(found, bucket, keys):
        older = at.state.files.get(name)
        if older is None or older.session != file.session:
            continue
        for version in islice(file_versions(older, blobs), TRIES):
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


def older_replays(found: Replay, bucket: Bucket, keys: Keys) -> Iterator[Replay]:
    """`found`, and then what the log says up to right before each older snapshot, which stands on other chunks."""
    yield found
    while found.snapshot > 1:
        found = replay(bucket, keys, found.snapshot - 1)
        yield found


def file_versions(file: FileState, blobs: Blobs) -> Iterator[FileState]:
    """The file as of each capture since its base, the newest first whose bytes are all there; then the base alone."""
    for count in range(_count_whole_layers(file, blobs), 0, -1):
        last = file.layers[count - 1]
        yield keep_layers(file, count, last.size, last.sha256)
    if file.chunks:
        yield keep_layers(file, 0, file.base_size, file.sha256 if not file.layers else "")


def keep_layers(file: FileState, layers: int, size: int, sha256: str) -> FileState:
    """`file` with its first `layers` deltas only. `sha256` "": not known."""
    return FileState(
        session=file.session,
        size=size,
        sha256=sha256,
        base_size=file.base_size,
        chunks=file.chunks,
        layers=file.layers[:layers],
    )


def _count_whole_layers(file: FileState, blobs: Blobs) -> int:
    """How many deltas have all their bytes, up to the first that lacks some."""
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
    try:
        with create_file(
            target
        ) as out:  # each chunk has a hash of its own; the whole had one that is not known any more
            write_base(blobs, file, out)
    except BaseException:
        target.unlink(missing_ok=True)
        raise

"""Notes beside the shadow of a workspace, which outlive it: of a restore that has begun and has not come to its end,
and of a tree that is to be put back whatever the folder looks like.

Each is one small file that is replaced whole.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from wal_agent import msgspec_compat
from wal_agent.capture.shadow import Shadow
from wal_agent.errors import Newer
from wal_agent.safefs import read_plain
from wal_agent.wal.lease_doc import find_format

MAX_MARKER = 4096  # bytes of a note
MARKER_FORMAT = 1


@dataclass(frozen=True, slots=True)
class RestoreMarker:
    """A restore of `commit`. `kept`: name of the folder with what was here before the first of the restores that were
    cut, "" while there is none. `mode`: the workspace's own, where it was closed to others meanwhile, else 0."""

    commit: str
    kept: str = ""
    mode: int = 0
    format: int = MARKER_FORMAT


_MARKER_DECODER = msgspec_compat.of_json(RestoreMarker)


def read_marker(shadow: Shadow) -> RestoreMarker | None:
    """The restore that was cut here, whichever capture it was of: the folder may hold a part of each. Newer."""
    data = read_plain(_marker_path(shadow), MAX_MARKER)
    if data is None:
        return None
    if (newer := find_format(data)) > MARKER_FORMAT:
        raise Newer.of(f"The note {_marker_path(shadow)}", f"format {newer}")
    try:
        found = _MARKER_DECODER.decode(data)
    except (msgspec.DecodeError, ValueError):
        return RestoreMarker("")
    return found if Path(found.kept).name == found.kept else RestoreMarker(found.commit)


def write_marker(shadow: Shadow, begun: RestoreMarker) -> None:
    _write_marker_file(_marker_path(shadow), msgspec.json.encode(begun))


def clear_markers(shadow: Shadow, job: str) -> None:
    """The restore for `job` has come to its end."""
    _marker_path(shadow).unlink(missing_ok=True)
    _request_path(shadow, job).unlink(missing_ok=True)


def request_restore(shadow: Shadow, job: str, commit: str) -> None:
    """`job` needs `commit` put back here, though this folder may have had it once."""
    shadow.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_marker_file(_request_path(shadow, job), commit.encode())


def is_requested(shadow: Shadow, job: str, commit: str) -> bool:
    return read_plain(_request_path(shadow, job), MAX_MARKER) == commit.encode()


def _marker_path(shadow: Shadow) -> Path:
    return shadow.folder.with_name(f"{shadow.folder.name}-restoring")


def _request_path(shadow: Shadow, job: str) -> Path:
    return shadow.folder.with_name(f"{shadow.folder.name}-wanted-{hashlib.sha256(job.encode()).hexdigest()[:16]}")


def _write_marker_file(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    new.replace(path)

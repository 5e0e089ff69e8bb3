"""A captured file back on disk, byte for byte, from its chunks and deltas (I4). It holds only as many blobs in memory
as are fetched at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path

import msgspec

from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Damaged
from wal_agent.records import FileDelta
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.state import FileState

CHUNK = 1 << 20  # bytes of each chunk of a file but its last
MAX_FILE = 8 << 30  # bytes; a file that says more is damaged or hostile


def write_file(blobs: Blobs, file: FileState, target: Path) -> None:
    """Create `target` (0600; FileExistsError when something is there) with exactly the bytes of `file`, fsynced.

    Damaged: a blob is missing or wrong, an edit leaves the file, or size or hash do not hold; `target` is removed then.
    """
    out = create_file(target)
    file = drop_overwritten(file)
    try:
        with out:
            write_base(blobs, file, out)
            apply_layers(blobs, file, out)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def drop_overwritten(file: FileState) -> FileState:
    """Without what a later delta wrote over from beginning to end: a recovery's child, or a file written anew."""
    for n, delta in reversed([*enumerate(file.layers)]):
        if _is_whole(delta):
            return msgspec.structs.replace(file, base_size=0, chunks=(), layers=file.layers[n:])
    return file


def _is_whole(delta: FileDelta) -> bool:
    end = 0
    for edit in delta.edits:
        if edit.offset != end:
            return False
        end += edit.data.size
    return end == delta.size


def create_file(target: Path) -> BufferedRandom:
    """A new file for reading and writing, 0600, never through a link; FileExistsError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(target, flags, 0o600), "r+b")


def write_base(blobs: Blobs, file: FileState, out: BufferedRandom) -> None:
    """Write the chunks, from the file's beginning; Damaged."""
    if not 0 <= file.base_size <= MAX_FILE or len(file.chunks) != chunk_count(file.base_size):
        raise Damaged(f"A captured file is damaged: {len(file.chunks)} chunks cannot hold {file.base_size} bytes.")
    size = 0
    for name, data in zip(file.chunks, prefetch_map(blobs.get, file.chunks, blobs.parallel), strict=True):
        if len(data) != min(CHUNK, file.base_size - size):
            raise Damaged(f"A captured file is damaged: chunk {name} has {len(data)} bytes.")
        out.write(data)
        size += len(data)


def apply_layers(blobs: Blobs, file: FileState, out: BufferedRandom) -> set[int]:
    """Put the deltas onto the base in `out`, and check the whole; the numbers of the chunks that are no
    longer those of the base. Damaged."""
    size, touched = file.base_size, set[int]()
    datas = prefetch_map(blobs.fetch, [edit.data for delta in file.layers for edit in delta.edits], blobs.parallel)
    for delta in file.layers:
        size = _apply_delta(delta, datas, out, size, touched)
    out.seek(0)
    if size != file.size or hashlib.file_digest(out, "sha256").hexdigest() != file.sha256:
        raise Damaged(f"A captured file is damaged: its {size} bytes are not the {file.size} that were captured.")
    return touched


def _apply_delta(delta: FileDelta, datas: Iterator[bytes], out: BufferedRandom, size: int, touched: set[int]) -> int:
    """Put one delta, whose edits' bytes come next in `datas`, onto the `size` bytes in `out`; the new size."""
    for edit in delta.edits:
        end = edit.offset + edit.data.size
        # An edit behind the end would make a hole that was never captured (or a sparse bomb).
        if not 0 <= edit.offset <= size or not edit.offset <= end <= MAX_FILE:
            raise Damaged(f"Captured file {delta.path!r} is damaged: an edit at {edit.offset} leaves its {size} bytes.")
        out.seek(edit.offset)
        out.write(next(datas))
        if end > edit.offset:
            touched.update(range(edit.offset // CHUNK, chunk_count(end)))
        size = max(size, end)
    if not 0 <= delta.size <= size:
        raise Damaged(f"Captured file {delta.path!r} is damaged: {size} bytes cannot be cut to {delta.size}.")
    out.truncate(delta.size)
    if delta.size < size and delta.size % CHUNK:
        touched.add(delta.size // CHUNK)  # the new last chunk is shorter than it was
    return delta.size


def chunk_count(size: int) -> int:
    return -(-size // CHUNK)

"""A captured file back on disk, byte for byte, from its chunks and deltas (I4). The biggest blob bounds the memory."""

from __future__ import annotations

import hashlib
import os
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO

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
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "r+b") as out:
            size = write_base(blobs, file, out)
            for delta in file.layers:
                size = apply_delta(blobs, delta, out, size)[0]
            check_whole(out, size, file.size, file.sha256)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def write_base(blobs: Blobs, file: FileState, out: BinaryIO) -> int:
    """Write the chunks from the file's beginning; the number of bytes."""
    if not 0 <= file.base_size <= MAX_FILE or len(file.chunks) != chunk_count(file.base_size):
        raise Damaged(f"A captured file is damaged: {len(file.chunks)} chunks cannot hold {file.base_size} bytes.")
    size = 0
    for name in file.chunks:
        data = blobs.get(name)
        if len(data) != min(CHUNK, file.base_size - size):
            raise Damaged(f"A captured file is damaged: chunk {name} has {len(data)} bytes.")
        out.write(data)
        size += len(data)
    return size


def apply_delta(blobs: Blobs, delta: FileDelta, out: BinaryIO, size: int) -> tuple[int, set[int]]:
    """Apply one delta in place to the `size` bytes of `out`: the new size, and which chunks are no longer what they
    were. Damaged when an edit begins behind the end (a hole was never captured) or the size cannot come out."""
    touched: set[int] = set()
    for edit in delta.edits:
        if not 0 <= edit.offset <= size or not 0 <= edit.data.size <= MAX_FILE - edit.offset:
            raise Damaged(f"Captured file {delta.path!r} is damaged: an edit at {edit.offset} leaves its {size} bytes.")
        out.seek(edit.offset)
        out.write(blobs.fetch(edit.data))
        touched |= chunks_between(edit.offset, edit.offset + edit.data.size)
        size = max(size, edit.offset + edit.data.size)
    if not 0 <= delta.size <= size:
        raise Damaged(f"Captured file {delta.path!r} is damaged: {size} bytes cannot be cut to {delta.size}.")
    out.truncate(delta.size)
    if delta.size < size and delta.size % CHUNK:
        touched.add(delta.size // CHUNK)
    return delta.size, touched


def check_whole(out: BufferedRandom, size: int, want: int, sha256: str) -> None:
    """Damaged unless `out` has `want` bytes and the hash."""
    out.seek(0)
    if size != want or hashlib.file_digest(out, "sha256").hexdigest() != sha256:
        raise Damaged(f"A captured file is damaged: its {size} bytes are not the {want} with hash {sha256[:64]}.")


def chunk_count(size: int) -> int:
    return -(-size // CHUNK)


def chunks_between(start: int, end: int) -> set[int]:
    """Indices of the chunks that hold the bytes from `start` up to, not including, `end`."""
    return set(range(start // CHUNK, chunk_count(end))) if end > start else set()

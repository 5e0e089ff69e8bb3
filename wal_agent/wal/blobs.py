"""Store bulk bytes under their hash, and write captured files back from their chunks and deltas, byte for byte (I3,
I4).

A blob is durable before a record names it, and verified when it is read back. A name also says which run created it,
and in which of its rounds (one between two runs of its retention), so that a blob which somebody decided to delete is
never created, found there and named again: a delete may arrive late. Of a file only as many blobs are in memory as
are fetched at a time.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator
from io import BufferedRandom
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wal_agent.clock import Clock
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Conflict, Damaged, NotFound, Unavailable
from wal_agent.failpoints import failpoint
from wal_agent.records import FileDelta, Payload
from wal_agent.wal.keys import blob_epoch, blob_name, blob_sha256
from wal_agent.wal.state import FileState

if TYPE_CHECKING:
    from wal_agent.wal.store import JobStore

INLINE = 64 << 10  # bytes; more becomes a blob
CHUNK = 1 << 20  # bytes of each chunk of a file but its last
MAX_FILE = 8 << 30  # bytes; a file that says more is damaged or hostile


class Names:
    """The names that one run gives to blobs. Each is pinned when it is given: a record is about to name it."""

    def __init__(self, epoch: int, clock: Clock) -> None:
        self.epoch = epoch
        self._clock = clock
        self._round = 0
        self._pins: dict[str, float] = {}
        self._lock = threading.Lock()

    def give(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        with self._lock:
            name = blob_name(sha256, self.epoch, self._round)
            self._pins[name] = self._clock.boot()
        return name

    def next_round(self) -> None:
        """No name of the rounds before is given again; their pins can only go from now on."""
        with self._lock:
            self._round += 1

    def may_go(self, name: str) -> bool:
        """Whether `name` is one of a round that is over, and not pinned."""
        with self._lock:
            current = name == blob_name(blob_sha256(name), self.epoch, self._round)
            return blob_epoch(name) == self.epoch and not current and name not in self._pins

    def unpin(self, named: Collection[str], age: float) -> None:
        """Let go what was last given more than `age` seconds ago and is named now. What never comes to be named stays
        pinned: its record may still be on the way, however long that takes."""
        with self._lock:
            edge = self._clock.boot() - age
            for name in [name for name, at in self._pins.items() if at < edge and name in named]:
                del self._pins[name]


class Blobs:
    """A job's blobs. Threads may share it."""

    def __init__(self, store: JobStore, *, epoch: int = 0, parallel: int = 4) -> None:
        """`epoch`: of the run that puts; 0 can only read."""
        self._store, self._bucket, self._keys = store, store.bucket, store.keys
        self.parallel = parallel
        self._steady = store.steady
        self.names = Names(epoch, store.clock)

    def put(self, data: bytes, budget: float | None = None) -> str:
        """Store `data`; its name once it is durable. Unavailable after the budget (seconds in which it is tried again;
        the last request may outlast it); Denied."""
        name = self.names.give(data)
        patience = self._store.retries(budget)
        while True:
            try:
                self._bucket.put(self._keys.blob(name), data)
            except Conflict:
                break  # put by this run in this round: the same bytes, and durable
            except Unavailable as error:
                patience.pause(error)  # the content is in the name: sending again can do no harm
            else:
                break
        failpoint("blob.after_put")
        return name

    def put_payload(self, data: bytes, budget: float | None = None) -> Payload:
        """`data` as a record carries it: inline up to INLINE bytes, else a blob that is durable already."""
        if len(data) <= INLINE:
            return Payload(size=len(data), data=data)
        return Payload(size=len(data), blob=self.put(data, budget))

    def put_each(self, datas: Iterable[bytes]) -> list[str]:
        """`put` of each, several at a time; the names in order. Holds only as many of `datas` as are on their way."""
        return [*prefetch_map(self.put, datas, self.parallel)]

    def get(self, name: str) -> bytes:
        """The blob's bytes; Damaged when it is missing or is not what its name says; Unavailable after the budget."""
        try:
            data = self._steady.get(self._keys.blob(name)).data
        except (NotFound, ValueError) as error:
            raise Damaged(f"Blob {name[:64]} of job {self._keys.job} is missing.") from error
        if hashlib.sha256(data).hexdigest() != blob_sha256(name):
            raise Damaged(f"Blob {name} of job {self._keys.job} is damaged: its bytes have another hash.")
        return data

    def fetch(self, payload: Payload) -> bytes:
        """The payload's bytes; Damaged when it holds none, or others than it says."""
        if (payload.data is None) == (payload.blob is None):
            raise Damaged(f"A payload of job {self._keys.job} is damaged: it has not exactly one of data and blob.")
        data = payload.data if payload.blob is None else self.get(payload.blob)
        if data is None or len(data) != payload.size:
            raise Damaged(f"A payload of job {self._keys.job} is damaged: it has not the {payload.size} bytes it says.")
        return data


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

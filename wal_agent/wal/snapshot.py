"""Take snapshots in the background: the acknowledged state, its files compacted, and the hash of its segment (R5).

`Mirror` is a private copy of each captured file as of a place in the log, cut into chunks (I9): a snapshot of a file
that grew costs its new chunks only. The copy is in a private folder of this process and is built again from the log
whenever it does not fit: losing it costs time, never bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.errors import Conflict
from wal_agent.failpoints import failpoint
from wal_agent.wal import codec, reader
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.codec import Snapshot
from wal_agent.wal.files import CHUNK, apply_layers, chunk_count, create_file, write_base
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import FileState
from wal_agent.wal.write_queue import Acked
from wal_agent.wal.writer import Writer


class Mirror:
    """`folder` exists and belongs to this process alone. Not for two threads at once."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self._folder, self._blobs = folder, blobs
        self._copies: dict[str, tuple[str, ...]] = {}  # logical name -> chunks of what is on disk

    def compact(self, files: dict[str, FileState]) -> dict[str, FileState]:
        """The same files with all layers in chunks, which are durable. Damaged, Unavailable, Denied; OSError."""
        for gone in self._copies.keys() - files.keys():
            self._copies.pop(gone)
            self._at(gone).unlink(missing_ok=True)
        return {path: self._compact(path, file) if file.layers else file for path, file in files.items()}

    def _compact(self, path: str, file: FileState) -> FileState:
        known = self._copies.pop(path, None)  # not trusted again if something goes wrong below
        at = self._at(path)
        if known != file.chunks:
            at.unlink(missing_ok=True)
            with create_file(at) as out:
                write_base(self._blobs, file, out)
        with at.open("r+b") as out:
            touched = apply_layers(self._blobs, file, out)
            changed = [n for n in range(chunk_count(file.size)) if n in touched]
            names = dict(zip(changed, self._blobs.put_each(_chunks(out, changed)), strict=True))
        chunks = tuple(names.get(n) or file.chunks[n] for n in range(chunk_count(file.size)))
        self._copies[path] = chunks
        return msgspec.structs.replace(file, chunks=chunks, base_size=file.size, layers=())

    def _at(self, path: str) -> Path:
        # Logical names come from the log: hashed, they cannot leave the folder.
        return self._folder / hashlib.sha256(path.encode()).hexdigest()


def _chunks(out: BufferedRandom, numbers: list[int]) -> Iterator[bytes]:
    for number in numbers:
        out.seek(number * CHUNK)
        yield out.read(CHUNK)


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """Due after so many segments, or bytes of them, since the last snapshot."""

    segments: int = 200
    size: int = 8 << 20

    def due(self, segments: int, size: int) -> bool:
        return segments >= self.segments or (size >= self.size and segments > 0)


class Snapshots:
    """The snapshots of one run. `take_if_due` is called from one background thread, as often as one likes."""

    def __init__(
        self, bucket: Bucket, keys: Keys, writer: Writer, mirror: Mirror, policy: SnapshotPolicy | None = None
    ) -> None:
        self._bucket, self._keys, self._writer, self._mirror = bucket, keys, writer, mirror
        self._policy = policy or SnapshotPolicy()
        self._segments = self._size = 0  # of the writer's counts, at the last snapshot
        self._undecided: tuple[Acked, Snapshot] | None = None
        self.size = 0  # bytes of the last one that was stored

    def due(self) -> bool:
        acked = self._writer.acked
        return self._policy.due(acked.segments - self._segments, acked.size - self._size)

    def take_if_due(self) -> Snapshot | None:
        return self.take() if self.due() else None

    def take(self) -> Snapshot | None:
        """Store a snapshot and let the writer's memory rest on it; None when another one is stored at this seq.

        Unavailable: it may land late, which does no harm. The next call sends it again, and none is made before it is
        decided: so the writer's memory rests on the last snapshot of this run but one, at least (retention relies on
        it). Denied, Damaged; OSError."""
        acked, snapshot = self._undecided = self._undecided or self._made()
        data = codec.encode_snapshot(snapshot)
        failpoint("snapshot.before_put")
        try:
            self._bucket.put(self._keys.snapshot(acked.seq), data)
        except Conflict:
            # An own earlier try that landed late, or a fenced owner's. Its state is as good if it counts.
            found = reader.read_snapshot(self._bucket, self._keys, acked.seq)
            if found is None:
                self._undecided = None
                return None
            snapshot = found
        failpoint("snapshot.after_put")
        self._undecided, self.size = None, len(data)
        self._segments, self._size = acked.segments, acked.size
        # Only now: a chunk that no stored snapshot names is fair game for retention once it is a day old.
        self._writer.rebase(acked.state.files, snapshot.state.files)
        return snapshot

    def _made(self) -> tuple[Acked, Snapshot]:
        acked = covered(self._writer)
        files = self._mirror.compact(acked.state.files)
        state = msgspec.structs.replace(acked.state, files=files)
        made = Snapshot(format=1, job=self._keys.job, seq=acked.seq, hash=acked.hash, state=state, time=acked.time)
        return acked, made


def covered(writer: Writer) -> Acked:
    """R5: a snapshot covers acknowledged segments only; one that is still undecided may be another's in the end."""
    return writer.acked

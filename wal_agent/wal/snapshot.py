"""Taking a snapshot in the background: what was acknowledged, files compacted, the hash of its segment (R5)."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.errors import Conflict
from wal_agent.failpoints import failpoint
from wal_agent.wal import reader, snapshot_codec
from wal_agent.wal.keys import Keys
from wal_agent.wal.mirror import Mirror
from wal_agent.wal.snapshot_codec import Snapshot
from wal_agent.wal.writer import Acked, Writer


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
        """Store a snapshot and let the writer's memory stand on it; None when another one stands at this seq.

        Unavailable: it may land late, which does no harm. The next call sends it again, and none is made before it is
        decided: so the writer's memory stands on the last snapshot of this run but one, at least (retention relies on
        it). Denied, Damaged; OSError."""
        acked, snapshot = self._undecided = self._undecided or self._made()
        data = snapshot_codec.encode_snapshot(snapshot)
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

"""Which blobs are named, and by what. What was read once is remembered: snapshots and segments are never replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from wal_agent.ahead import ahead
from wal_agent.bucket.base import Bucket
from wal_agent.errors import NotFound
from wal_agent.records import Payload
from wal_agent.wal import reader
from wal_agent.wal import segment as codec
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import FileState, State


def referenced_blobs(value: object) -> Iterator[str]:
    """The blobs that a record, a state or anything made of such names."""
    match value:
        case Payload():
            if value.blob is not None:
                yield value.blob
        case msgspec.Struct():
            if isinstance(value, FileState):
                yield from value.chunks
            for field in value.__struct_fields__:
                yield from referenced_blobs(getattr(value, field))
        case dict():
            for item in value.values():
                yield from referenced_blobs(item)
        case tuple() | list():
            for item in value:
                yield from referenced_blobs(item)


@dataclass(frozen=True, slots=True)
class CheckedSnapshot:
    """What retention needs of a snapshot that counts. `state` has its epoch and openings only."""

    seq: int
    state: State
    names: frozenset[str]


class BlobRefs:
    """Not for two threads at once."""

    def __init__(self, bucket: Bucket, keys: Keys, parallel: int) -> None:
        self._bucket, self._keys, self._parallel = bucket, keys, parallel
        self._snapshots: dict[int, CheckedSnapshot] = {}
        self._segments: dict[int, frozenset[str]] = {}

    def newest_checked(self, seqs: Collection[int], count: int) -> list[CheckedSnapshot]:
        """Of the snapshots `seqs`, which are all that are stored, the newest `count` that count, newest first."""
        self._snapshots = {seq: known for seq, known in self._snapshots.items() if seq in seqs}
        found: list[CheckedSnapshot] = []
        for seq in sorted(seqs, reverse=True):
            if len(found) == count:
                break
            if (checked := self._checked(seq)) is not None:
                found.append(checked)
        return found

    def by_snapshots(self, seqs: Collection[int]) -> set[str]:
        """The blobs that those of the snapshots name that count."""
        return _union(known.names for seq in seqs if (known := self._checked(seq)) is not None)

    def by_segments(self, seqs: Collection[int]) -> set[str]:
        """The blobs that the segments name; one that is gone names none. Damaged: one cannot be read."""
        self._segments = {seq: names for seq, names in self._segments.items() if seq in seqs}
        new = [seq for seq in seqs if seq not in self._segments]
        for seq, names in zip(new, ahead(self._read, new, self._parallel), strict=True):
            self._segments[seq] = names
        return _union(self._segments.values())

    def _checked(self, seq: int) -> CheckedSnapshot | None:
        if seq not in self._snapshots and (read := reader.read_snapshot(self._bucket, self._keys, seq)) is not None:
            state = State(epoch=read.state.epoch, openings=read.state.openings, opened=read.state.opened)
            self._snapshots[seq] = CheckedSnapshot(seq, state, frozenset(referenced_blobs(read.state)))
        return self._snapshots.get(seq)

    def _read(self, seq: int) -> frozenset[str]:
        try:
            data = self._bucket.get(self._keys.segment(seq)).data
        except NotFound:
            return frozenset()
        return frozenset(referenced_blobs(codec.decode_segment(data, job=self._keys.job, seq=seq).records))


def _union(sets: Iterable[frozenset[str]]) -> set[str]:
    return set[str]().union(*sets)

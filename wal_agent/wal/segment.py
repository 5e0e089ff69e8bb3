"""A segment: an immutable, numbered object with a batch of records, chained to the one before by hash (I2, I3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from wal_agent import decoders
from wal_agent.errors import Damaged
from wal_agent.records import FORMAT, AnyRecord, Opening
from wal_agent.shown import shown
from wal_agent.wal import codec
from wal_agent.wal.keys import MAX_SEQ

MAX_SEGMENT = 1 << 20  # bytes of MessagePack that a writer puts into one segment
MAX_READ = 16 << 20  # bytes of MessagePack that a reader takes from one
OVERHEAD = 1024  # generous: everything in a segment but its records (job <= 100, run <= 200 bytes)
START = bytes(32)  # `prev` of segment 1

Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`prev` is the sha256 of the previous segment's *bytes* in the bucket; `time` is for people. `carried`: the epoch
    of the run that made the records, where they came into the log from its spool, under a later epoch (R9)."""

    format: int
    job: str
    epoch: Count
    seq: Count
    run: str
    prev: Hash
    time: float
    records: tuple[AnyRecord, ...]
    carried: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] = 0

    @property
    def origin(self) -> int:
        """The epoch that the records are of."""
        return self.carried or self.epoch

    @property
    def opening(self) -> Opening | None:
        """The opening record that begins this segment, if it is an opening segment."""
        first = self.records[0] if self.records else None
        return first if isinstance(first, Opening) else None


class _OutgoingSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment on its way out; its records are MessagePack already."""

    format: int
    job: str
    epoch: int
    seq: int
    run: str
    prev: bytes
    time: float
    records: Sequence[msgspec.Raw]
    carried: int = 0


_SEGMENT: msgspec.msgpack.Decoder[Segment] = decoders.of_msgpack(Segment)
_RECORD: msgspec.msgpack.Decoder[AnyRecord] = decoders.of_msgpack(AnyRecord)


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def encode_record(record: AnyRecord) -> tuple[bytes, AnyRecord]:
    """The record's MessagePack, and the record as every later reader will see it.

    ValueError when it could not be read back (a field of a wrong type) or fits no segment: such a record in the log
    would make the log unreadable for ever, so the writer's caller hears of it before anything is written."""
    raw = msgspec.msgpack.encode(record)
    if len(raw) > MAX_SEGMENT - OVERHEAD:
        raise ValueError(f"a {type(record).__name__} of {len(raw)} bytes fits no segment; bulk goes into blobs")
    try:
        return raw, _RECORD.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"a {type(record).__name__} that cannot be read back: {error}") from error


def batch_length(sizes: Iterable[int], limit: int = MAX_SEGMENT - OVERHEAD) -> int:
    """How many of the queue's items (of `sizes` bytes each, in order) go into the next segment; at least one."""
    taken = total = 0
    for size in sizes:
        total += size
        if taken and total > limit:
            break
        taken += 1
    return taken


def encode_segment(
    *,
    job: str,
    epoch: int,
    seq: int,
    run: str,
    prev: bytes,
    time: float,
    records: Sequence[bytes],
    carried: int = 0,
) -> bytes:
    """The segment's bytes. Called once for each segment: what is sent again are these bytes (R3)."""
    raw = [msgspec.Raw(r) for r in records]
    return codec.pack(
        _OutgoingSegment(
            format=FORMAT, job=job, epoch=epoch, seq=seq, run=run, prev=prev, time=time, records=raw, carried=carried
        )
    )


def decode_segment(data: bytes, *, job: str, seq: int) -> Segment:
    """The segment that stands at `seq` of `job`; Damaged names the record number and what is wrong; Newer."""
    try:
        segment = codec.unpack(data, _SEGMENT, MAX_READ, f"Record {seq} of job {job}")
        if segment.format != FORMAT:
            raise Damaged(f"there is no format {segment.format}")
        if segment.job != job or segment.seq != seq:
            raise Damaged(f"it calls itself record {segment.seq} of job {shown(repr(segment.job))}")
    except Damaged as error:
        raise Damaged(f"record {seq} of job {job} is damaged: {error.what}.") from error
    return segment

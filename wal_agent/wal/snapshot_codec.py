"""The bytes of a snapshot: the whole state as of one segment, and that segment's hash (R5)."""

from __future__ import annotations

from typing import Literal

import msgspec

from wal_agent import decoders
from wal_agent.errors import Damaged
from wal_agent.shown import shown
from wal_agent.wal import codec
from wal_agent.wal.segment import Count, Hash
from wal_agent.wal.state import State, exceeded_limit, upgrade_state

MAX_SNAPSHOT = 64 << 20  # bytes of MessagePack


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hash` is the sha256 of segment `seq`'s bytes, `time` that segment's time."""

    format: Literal[1]
    job: str
    seq: Count
    hash: Hash
    state: State
    time: float


_SNAPSHOT: msgspec.msgpack.Decoder[Snapshot] = decoders.of_msgpack(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot's bytes; ValueError when no reader would take it."""
    raw = msgspec.msgpack.encode(snapshot)
    if len(raw) > MAX_SNAPSHOT:
        raise ValueError(f"a snapshot of {len(raw)} bytes is more than readers take ({MAX_SNAPSHOT})")
    return codec.compress(raw)


def decode_snapshot(data: bytes, *, job: str, seq: int) -> Snapshot:
    """Damaged; Newer."""
    try:
        snapshot = codec.unpack(data, _SNAPSHOT, MAX_SNAPSHOT, f"Snapshot {seq} of job {job}")
        if snapshot.job != job or snapshot.seq != seq:
            raise Damaged(f"it calls itself snapshot {snapshot.seq} of job {shown(repr(snapshot.job))}")
        if why := exceeded_limit(snapshot.state):
            raise Damaged(why)
    except Damaged as error:
        raise Damaged(f"snapshot {seq} of job {job} is damaged: {error.what}.") from error
    return msgspec.structs.replace(snapshot, state=upgrade_state(snapshot.state))

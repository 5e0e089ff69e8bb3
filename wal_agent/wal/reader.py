"""Replay: the newest snapshot that counts and the segments behind it, checked link by link (I2, I3, R5).

Damage is named with what can still be had; nothing is skipped silently. A reader that meets retention lists again
before it says "damaged".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from wal_agent.bucket.base import Bucket
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Damaged, NotFound
from wal_agent.wal import codec
from wal_agent.wal.codec import START, Segment, Snapshot, digest
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import State, apply, exceeded_limit

if TYPE_CHECKING:
    from wal_agent.wal.lease import StoredLease

LISTS = 5  # how often a reader that retention raced lists again
PARALLEL = 32  # segments that are fetched at a time: a round trip each, of some 30 ms to a bucket far away


class Tail(msgspec.Struct, frozen=True):
    """The newest segment: number, epoch and hash of its bytes. seq 0: the log is empty."""

    seq: int = 0
    epoch: int = 0
    hash: bytes = START


class Damage(msgspec.Struct, frozen=True):
    """Segment `seq` cannot be read; everything up to `good` (written at `time`) can be restored."""

    seq: int
    why: str
    good: int
    time: float
    missing: bool = False  # it is not there; else it is there and wrong


class Replay(msgspec.Struct, frozen=True):
    """What the log says up to `seq`, the last good segment, whose bytes have `hash`."""

    state: State = msgspec.field(default_factory=State)
    seq: int = 0
    hash: bytes = START
    time: float = 0.0  # of segment `seq`
    damage: Damage | None = None
    segments_read: int = 0  # behind the snapshot
    bytes_read: int = 0
    snapshot: int = 0  # the snapshot it began from; 0: from nothing
    last: bytes = b""  # the stored bytes of segment `seq`, for `is_signed`
    base: bytes = b""  # those of that snapshot


def read_tail(bucket: Bucket, keys: Keys, hint: int = 0, before: Tail | None = None) -> Tail:
    """The newest segment, read and decoded. `hint`: a number that the log is thought to have reached (the lease's),
    which saves listing all of it. `before`: a segment that was read already; where it is still the newest it is not
    read again, since segments never change (R3). Damaged when the newest segment cannot be decoded."""
    tail = newest_after(bucket, keys, hint - 1, before) if hint > 1 else Tail()
    return tail if tail.seq else newest_after(bucket, keys, 0, before)


def newest_after(bucket: Bucket, keys: Keys, seq: int, known: Tail | None = None) -> Tail:
    """The newest segment with a number above `seq`; an empty Tail when there is none. `known`: see read_tail."""
    for _ in range(LISTS):
        listed = bucket.list(keys.log, keys.segment(seq) if seq else "")
        last = max((keys.seq_of(e.key) or 0 for e in listed), default=0)
        if last == 0:
            return Tail()
        if known is not None and last == known.seq:
            return known
        try:
            data = bucket.get(keys.segment(last)).data
        except NotFound:
            continue  # the log grew and retention passed between list and get
        return Tail(last, codec.decode_segment(data, job=keys.job, seq=last).epoch, digest(data))
    raise Damaged(f"record {last} of job {keys.job} is listed but cannot be read.")


def iter_segments(bucket: Bucket, keys: Keys, start: int = 1) -> Iterator[tuple[int, Segment]]:
    """The segments that are there from `start` on, in order (retention leaves gaps). Each is fetched when it is
    asked for: callers stop at the first one that they need. Damaged."""
    for seq, segment in iter_readable(bucket, keys, start, parallel=1):
        if isinstance(segment, Damaged):
            raise segment
        yield seq, segment


def iter_readable(
    bucket: Bucket, keys: Keys, start: int = 1, parallel: int = PARALLEL
) -> Iterator[tuple[int, Segment | Damaged]]:
    """`records`, with what is wrong in the place of each that cannot be read or does not follow the one before; for
    people to read, so `parallel` are fetched at a time."""
    listed = bucket.list(keys.log, keys.segment(start - 1) if start > 1 else "")
    seqs = [s for e in listed if (s := keys.seq_of(e.key)) is not None]
    yield from check_chain(fetch_segments(bucket, keys, seqs, parallel), keys)


class Fetched(msgspec.Struct, frozen=True):
    """A segment that could be decoded, and the hash of its bytes."""

    segment: Segment
    hash: bytes


def fetch_segments(
    bucket: Bucket, keys: Keys, seqs: list[int], parallel: int = PARALLEL
) -> Iterator[tuple[int, Fetched | Damaged]]:
    """The segments, `parallel` at a time; what retention has taken meanwhile is left out."""
    for seq, data in zip(seqs, _fetch(bucket, keys, seqs, _reads_at_once(bucket, parallel)), strict=True):
        if data is not None:
            yield seq, data if isinstance(data, Damaged) else _decode(data, keys, seq)


def check_chain(
    fetched: Iterable[tuple[int, Fetched | Damaged]], keys: Keys
) -> Iterator[tuple[int, Segment | Damaged]]:
    """Segments in the order of their numbers; Damaged in the place of one that does not chain to the one before it."""
    last = 0
    before: Fetched | None = None
    for seq, one in fetched:
        why = ""
        if isinstance(one, Fetched) and before is not None and seq == last + 1:
            if one.segment.prev != before.hash:
                why = f"it does not chain to record {last}"
            elif one.segment.epoch < before.segment.epoch:
                why = f"epoch {one.segment.epoch} follows epoch {before.segment.epoch}"
        last, before = seq, one if isinstance(one, Fetched) else None
        if why:
            yield seq, Damaged(f"record {seq} of job {keys.job} is damaged: {why}.")
        else:
            yield seq, one.segment if isinstance(one, Fetched) else one


def unreadable_error(keys: Keys, seq: int, error: Damaged) -> Damaged:
    """The bucket's own word on an object that is not what was put, as one on a segment."""
    return Damaged(f"record {seq} of job {keys.job} is damaged: {error.what}")


def _decode(data: bytes, keys: Keys, seq: int) -> Fetched | Damaged:
    try:
        return Fetched(codec.decode_segment(data, job=keys.job, seq=seq), digest(data))
    except Damaged as error:
        return error


def seq_at_time(bucket: Bucket, keys: Keys, time: float) -> int:
    """The last segment that is there and was made at `time` (seconds since 1970) or before; 0: none. A few reads,
    however long the log is: times are taken to go up, and where another host's clock went back, the answer is one of
    the places that the time can mean. Damaged."""
    seqs = sorted(seq for e in bucket.list(keys.log) if (seq := keys.seq_of(e.key)) is not None)
    return seqs[at - 1] if (at := bisect_right(seqs, time, key=lambda seq: _segment_time(bucket, keys, seq))) else 0


def _segment_time(bucket: Bucket, keys: Keys, seq: int) -> float:
    data = _get(bucket, keys, seq)
    if data is None:
        raise Damaged(f"record {seq} of job {keys.job} is listed but cannot be read.")
    return codec.decode_segment(data, job=keys.job, seq=seq).time


def is_signed(log: Replay, key: bytes) -> bool:
    """Whether all that `log` says was written, or taken over, by runs of the person who has this `key`: its last
    segment names all before it by their hashes, and the snapshot that it began from has a tag of its own. Pure."""
    if not key or log.damage is not None or not log.last:
        return False
    try:
        whole = not log.snapshot or codec.is_tagged(log.base, key, "snapshot")
        return whole and codec.is_tagged(log.last, key, "segment")
    except Damaged:
        return False


# --- snapshots (R5)


def is_valid_snapshot(snapshot: Snapshot, own: bytes | None, following: Segment | None) -> bool:
    """R5: it counts only if segment `seq` (`own`: its bytes), or the next one's `prev`, agrees with its `hash`."""
    if own is not None:
        return digest(own) == snapshot.hash
    return following is not None and following.prev == snapshot.hash


def read_snapshot(bucket: Bucket, keys: Keys, seq: int, parallel: int = 1) -> Snapshot | None:
    """The snapshot at `seq`, checked against the chain; None when it is gone, damaged or does not count. `parallel`:
    more than 1 reads it and the segment that it names at the same time."""
    read = _read_snapshot(bucket, keys, seq, parallel)
    return read[0] if read is not None else None


def _read_snapshot(bucket: Bucket, keys: Keys, seq: int, parallel: int) -> tuple[Snapshot, bytes, bytes] | None:
    """As `read_snapshot`; with its stored bytes, and those of the segment that it names, where they are there."""
    try:
        stored, own = prefetch_map(lambda read: read(), _snapshot_reads(bucket, keys, seq), parallel)
        snapshot = codec.decode_snapshot(stored or b"", job=keys.job, seq=seq)
        following = None
        if own is None and (after := _get(bucket, keys, seq + 1)) is not None:
            following = codec.decode_segment(after, job=keys.job, seq=seq + 1)
    except (NotFound, Damaged):
        return None
    return (snapshot, stored or b"", own or b"") if is_valid_snapshot(snapshot, own, following) else None


def _snapshot_reads(bucket: Bucket, keys: Keys, seq: int) -> tuple[Callable[[], bytes | None], ...]:
    """The snapshot at `seq` and the segment that it names: two requests that need not wait for each other."""
    return lambda: bucket.get(keys.snapshot(seq)).data, lambda: _get(bucket, keys, seq)


def _reads_at_once(bucket: Bucket, parallel: int) -> int:
    """1 (no threads) where threads cost more than a read of the bucket takes."""
    return 1 if bucket.url.startswith(("file:", "memory:")) else parallel


def _get(bucket: Bucket, keys: Keys, seq: int) -> bytes | None:
    try:
        return bucket.get(keys.segment(seq)).data
    except NotFound:
        return None


def list_snapshots(bucket: Bucket, keys: Keys) -> list[int]:
    """The numbers of the snapshots that are stored, whether they count or not."""
    return [seq for e in bucket.list(keys.snapshots) if (seq := keys.seq_of(e.key)) is not None]


def iter_snapshots(bucket: Bucket, keys: Keys, upto: int | None = None, parallel: int = 1) -> Iterator[Snapshot]:
    """The snapshots that count, newest first, none beyond `upto`."""
    for snapshot, _, _ in _iter_snapshots(bucket, keys, upto, parallel):
        yield snapshot


def _iter_snapshots(
    bucket: Bucket, keys: Keys, upto: int | None, parallel: int
) -> Iterator[tuple[Snapshot, bytes, bytes]]:
    for seq in sorted((s for s in list_snapshots(bucket, keys) if upto is None or s <= upto), reverse=True):
        if (read := _read_snapshot(bucket, keys, seq, parallel)) is not None:
            yield read


# --- replay


def apply_segment(at: Replay, job: str, seq: int, data: bytes) -> Replay:
    """`at` and the segment whose bytes are `data`; Damaged when it does not follow (I2: chain, numbers, epochs)."""
    segment = codec.decode_segment(data, job=job, seq=seq)
    if segment.prev != at.hash:
        raise Damaged(f"record {seq} of job {job} is damaged: it does not chain to record {at.seq}.")
    state, opening = at.state, segment.opening
    if opening is not None:
        fits = opening.epoch == segment.epoch > state.epoch and opening.run == segment.run
    else:
        fits = bool(state.openings) and (segment.epoch, segment.run) == (state.epoch, state.openings[-1].opening.run)
        fits = fits and segment.origin <= segment.epoch
    if not fits:
        raise Damaged(f"record {seq} of job {job} is damaged: epoch {segment.epoch} follows epoch {state.epoch}.")
    for record in segment.records:
        state = apply(state, seq, segment.origin, record)
        if why := exceeded_limit(state):
            raise Damaged(f"record {seq} of job {job} is damaged: {why}.")
    return replace(
        at,
        state=state,
        seq=seq,
        hash=digest(data),
        last=data,
        time=segment.time,
        segments_read=at.segments_read + 1,
        bytes_read=at.bytes_read + len(data),
    )


def replay(bucket: Bucket, keys: Keys, upto: int | None = None, *, parallel: int = PARALLEL) -> Replay:
    """What the log says up to segment `upto` (None: to its end). Damage is in the result; Unavailable, Denied raise.

    `parallel`: how many segments are fetched at a time (1: no threads)."""
    base = -1
    result = Replay()
    for _ in range(LISTS):
        begin = _begin(bucket, keys, upto, parallel)
        if begin.seq <= base:
            return _explain_damage(bucket, keys, result)  # no newer snapshot helps over the hole
        base = begin.seq
        result = _continue(bucket, keys, begin, upto, parallel)
        if result.damage is None:
            break
    return result


def continue_replay(
    bucket: Bucket, keys: Keys, at: Replay, upto: int | None = None, *, parallel: int = PARALLEL
) -> Replay:
    """What the log says now (up to segment `upto`), from what it said at `at`: one listing, and only what is new. The
    same errors as replay's; where it does not go on from there (retention has passed, or damage) it is read anew."""
    if at.damage is None and (upto is None or at.seq <= upto):
        log = _continue(bucket, keys, at, upto, parallel)
        if log.damage is None:
            return log
    return replay(bucket, keys, upto, parallel=parallel)


class KnownEnd(msgspec.Struct, frozen=True):
    """How far the log had come, by the job's lease: segment `seq` was acknowledged. `end`: its hash (hex), where it was
    its owner's last one. The lease is read before the log; the newest segment never goes by retention."""

    seq: int = 0
    end: str = ""

    @classmethod
    def by(cls, seen: StoredLease | None) -> KnownEnd:
        return cls(seen.doc.seq, seen.doc.end) if seen is not None else cls()

    def lacks(self, job: str, seq: int, hash_: bytes) -> str:
        """What is wrong with a log whose last segment is `seq`, with this hash; empty for nothing."""
        if seq < self.seq:
            return f"record {seq + 1} of job {job} is missing: the log had reached record {self.seq}."
        if seq == self.seq and self.end and hash_.hex() != self.end:
            return f"record {seq} of job {job} is not the one with which its last run ended."
        return ""


def check_end(log: Replay, job: str, reached: KnownEnd) -> Replay:
    """`log`, which is damaged when it ends before the log had come so far, or in another segment."""
    if log.damage is not None or not (why := reached.lacks(job, log.seq, log.hash)):
        return log
    missing = log.seq < reached.seq
    good = log.seq if missing else log.seq - 1
    return replace(log, damage=Damage(good + 1, why, good, log.time, missing=missing))


def _explain_damage(bucket: Bucket, keys: Keys, log: Replay) -> Replay:
    """Tell what retention took (a replay up to an old record was asked for) from damage."""
    lost = log.damage
    newest = next(iter_snapshots(bucket, keys), None)
    if lost is None or not lost.missing or newest is None or newest.seq < lost.seq:
        return log
    why = f"record {lost.seq} of job {keys.job} is no longer kept; what is kept begins at record {newest.seq}."
    return replace(log, damage=replace(lost, why=why))


def _begin(bucket: Bucket, keys: Keys, upto: int | None, parallel: int) -> Replay:
    for snapshot, base, last in _iter_snapshots(bucket, keys, upto, _reads_at_once(bucket, parallel)):
        seq, hash, time = snapshot.seq, snapshot.hash, snapshot.time
        return Replay(state=snapshot.state, seq=seq, hash=hash, time=time, snapshot=seq, last=last, base=base)
    return Replay()


def iter_replays_back(bucket: Bucket, keys: Keys, upto: int) -> Iterator[Replay]:
    """What `replay` says up to each record that can be read, from `upto` down."""
    while upto > 0:
        begin = _begin(bucket, keys, upto, PARALLEL)
        replays = [begin, *_steps(bucket, keys, begin, upto, PARALLEL)]
        yield from (at for at in reversed(replays) if at.seq > 0 and at.damage is None)
        upto = begin.seq - 1


def _continue(bucket: Bucket, keys: Keys, at: Replay, upto: int | None, parallel: int) -> Replay:
    last = deque([at], maxlen=1)
    last.extend(_steps(bucket, keys, at, upto, parallel))
    return last[0]


def _steps(bucket: Bucket, keys: Keys, at: Replay, upto: int | None, parallel: int) -> Iterator[Replay]:
    """What the log says at each record behind `at`; where that ends in damage, the last one says so."""
    listed = (keys.seq_of(e.key) for e in bucket.list(keys.log, keys.segment(at.seq) if at.seq else ""))
    seqs = [s for s in listed if s is not None and s > at.seq and (upto is None or s <= upto)]
    for seq, data in zip(seqs, _fetch(bucket, keys, seqs, parallel), strict=True):
        try:
            if seq != at.seq + 1 or data is None:
                yield _missing(at, keys)
                return
            if isinstance(data, Damaged):
                raise data
            at = apply_segment(at, keys.job, seq, data)
        except Damaged as error:
            yield replace(at, damage=Damage(at.seq + 1, error.what, at.seq, at.time))
            return
        yield at
    if upto is not None and at.seq < upto:
        yield _missing(at, keys)


def _missing(at: Replay, keys: Keys) -> Replay:
    why = f"record {at.seq + 1} of job {keys.job} is missing."
    return replace(at, damage=Damage(at.seq + 1, why, at.seq, at.time, missing=True))


def _fetch(bucket: Bucket, keys: Keys, seqs: list[int], parallel: int) -> Iterator[bytes | Damaged | None]:
    def one(seq: int) -> bytes | Damaged | None:
        try:
            return _get(bucket, keys, seq)
        except Damaged as error:
            return unreadable_error(keys, seq, error)

    return prefetch_map(one, seqs, min(parallel, len(seqs)))

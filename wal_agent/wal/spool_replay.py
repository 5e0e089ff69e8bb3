"""R9: what an earlier run spooled on this machine comes into the log, under the own epoch, before anything else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.retry import RetryBucket, RetryBudget
from wal_agent.clock import Clock
from wal_agent.errors import Unavailable
from wal_agent.wal import codec, reader
from wal_agent.wal.codec import Segment
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Tail
from wal_agent.wal.spool import Spool, SpoolContent
from wal_agent.wal.write_queue import InFlight, Ticket
from wal_agent.wal.writer import Writer


def first_segment_after_epoch(bucket: Bucket, keys: Keys, start: int, epoch: int) -> Segment | None:
    """The first segment from `start` on of an epoch behind `epoch`: what landed of `epoch` is in front of it, nothing
    of it ever lands behind (I2). It is an opening, so the log has it for ever (R4), however many came later."""
    return next((found for _, found in reader.iter_segments(bucket, keys, start) if found.epoch > epoch), None)


def unsent_seqs(bucket: Bucket, keys: Keys, spool: Spool, left: SpoolContent) -> tuple[int, ...]:
    """The numbers of the segments in the spool that the log lacks. Damaged: something is missing between the two."""
    if not left.seqs:
        return ()
    first = first_segment_after_epoch(bucket, keys, left.seqs[0], left.epoch)
    if first is None:
        raise spool.damaged(f"record {left.seqs[0]} does not follow what the log has of epoch {left.epoch}")
    found = tuple(seq for seq in left.seqs if seq >= first.seq)
    if found and (found[0], spool.segment(left.epoch, found[0]).prev) != (first.seq, first.prev):
        raise spool.damaged(f"record {found[0]} does not follow what the log has of epoch {left.epoch}")
    return found


def reencode_segments(
    keys: Keys, found: Iterable[Segment], origin: int, at: Tail, epoch: int, run: str, now: float
) -> list[InFlight]:
    """The same records as segments of `epoch` behind `at`, in order."""
    made: list[InFlight] = []
    for segment in found:
        raw = [codec.encode_record(record)[0] for record in segment.records]
        carried = segment.carried or origin
        data = codec.encode_segment(
            job=keys.job,
            epoch=epoch,
            seq=at.seq + 1,
            run=run,
            prev=at.hash,
            time=segment.time,
            records=raw,
            carried=carried,
        )
        at = Tail(at.seq + 1, epoch, codec.digest(data))
        made.append(InFlight(at.seq, data, (Ticket(),), now, sum(map(len, raw)), len(raw), segment.time, carried))
    return made


def rebase_spool(
    bucket: Bucket, keys: Keys, clock: Clock, rng: random.Random, spool: Spool, at: Tail, run: str, budget: float
) -> list[InFlight]:
    """Make what the spool holds of earlier epochs the segments that follow the own opening `at`, in the spool first.
    Unavailable, Damaged, ConfigError (the disk)."""
    left = spool.read()
    seqs = unsent_seqs(RetryBucket(bucket, clock, rng, deadline=budget), keys, spool, left)
    # One at a time: unpacked, all of them may be many times what the spool may hold (I9).
    found = (spool.segment(left.epoch, seq) for seq in seqs)
    made = reencode_segments(keys, found, left.epoch, at, at.epoch, run, clock.boot())
    spool.begin(at.epoch, [(m.seq, m.data) for m in made])
    return made


def send_spooled(
    writer: Writer, clock: Clock, rng: random.Random, budget: float, between: Callable[[], None] = lambda: None
) -> None:
    """Commit until nothing waits. Unavailable when nothing was acknowledged for `budget` seconds; Fenced, Damaged.

    `between` is called before each step; what it raises ends this, and the rest stays in the spool."""
    patience = RetryBudget(clock, rng, budget)
    while writer.pending:
        between()
        match writer.commit_once():
            case "ended":
                assert writer.ended is not None
                raise writer.ended
            case "undecided":
                patience.pause(Unavailable("What this machine spooled for the job could not be saved yet."))
            case _:
                patience = RetryBudget(clock, rng, budget)

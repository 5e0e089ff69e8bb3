"""R9: what an earlier run spooled on this machine comes into the log, under the own epoch, before anything else."""

from __future__ import annotations

import random
from collections.abc import Sequence

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.errors import Unavailable
from wal_agent.wal import segment as codec
from wal_agent.wal.flight import InFlight, Item
from wal_agent.wal.keys import Keys
from wal_agent.wal.patience import Patience
from wal_agent.wal.reader import Tail
from wal_agent.wal.segment import Segment
from wal_agent.wal.spool import Left, Spool
from wal_agent.wal.state import State
from wal_agent.wal.ticket import Ticket
from wal_agent.wal.writer import Writer


def first_behind(state: State, epoch: int) -> int | None:
    """Where the first opening behind `epoch` stands in the log of `state`: what landed of `epoch` is in front of it,
    nothing of it ever lands behind (I2). None: the log does not say any more."""
    known = state.opened == len(state.openings) or any(o.opening.epoch <= epoch for o in state.openings)
    later = [o.seq for o in state.openings if o.opening.epoch > epoch]
    return min(later) if known and later else None


def rest(left: Left, first: int) -> list[Segment]:
    """What of a spool did not land, given where the first opening behind it stands."""
    return [found for _, found in left.segments if found.seq >= first]


def unsent(bucket: Bucket, keys: Keys, spool: Spool, state: State) -> tuple[int, list[Segment]]:
    """The segments in the spool that the log lacks, and the epoch that counts there. Damaged: something is missing
    between the log and the spool."""
    left = spool.read()
    if not left.segments:
        return left.epoch, []
    first = first_behind(state, left.epoch)
    if first is None:
        raise spool.damaged(f"the log does not say any more how far epoch {left.epoch} came")
    found = rest(left, first)
    if found:
        opening = codec.decode(bucket.get(keys.segment(first)).data, job=keys.job, seq=first)  # R4: kept for ever
        if (found[0].seq, found[0].prev) != (first, opening.prev):
            raise spool.damaged(f"record {found[0].seq} does not follow what the log has of epoch {left.epoch}")
    return left.epoch, found


def again(
    keys: Keys, found: Sequence[Segment], origin: int, at: Tail, epoch: int, run: str, now: float
) -> list[InFlight]:
    """The same records as segments of `epoch` behind `at`, in order."""
    made: list[InFlight] = []
    for segment in found:
        pairs = [codec.encode_record(record) for record in segment.records]
        carried = segment.carried or origin
        data = codec.encode(
            job=keys.job,
            epoch=epoch,
            seq=at.seq + 1,
            run=run,
            prev=at.hash,
            time=segment.time,
            records=[raw for raw, _ in pairs],
            carried=carried,
        )
        item = Item(tuple(r for _, r in pairs), tuple(raw for raw, _ in pairs), Ticket(), now)
        made.append(InFlight(at.seq + 1, data, (item,), segment.time, carried))
        at = Tail(at.seq + 1, epoch, codec.digest(data))
    return made


def rebase(
    bucket: Bucket,
    keys: Keys,
    clock: Clock,
    rng: random.Random,
    spool: Spool,
    state: State,
    at: Tail,
    run: str,
    budget: float,
) -> list[InFlight]:
    """Make what the spool holds of earlier epochs the segments that follow the own opening `at`, in the spool first.
    `state`: the log's, with that opening. Unavailable, Damaged, ConfigError (the disk)."""
    patience = Patience(clock, rng, budget)
    while True:
        try:
            origin, found = unsent(bucket, keys, spool, state)
            break
        except Unavailable as error:
            patience.pause(error)
    made = again(keys, found, origin, at, at.epoch, run, clock.boot())
    spool.begin(at.epoch, [(m.seq, m.data) for m in made])
    return made


def send(writer: Writer, clock: Clock, rng: random.Random, budget: float) -> None:
    """Commit until nothing waits. Unavailable when nothing was acknowledged for `budget` seconds; Fenced, Damaged."""
    patience = Patience(clock, rng, budget)
    while writer.backlog.items:
        match writer.commit_once():
            case "ended":
                assert writer.ended is not None
                raise writer.ended
            case "undecided":
                patience.pause(Unavailable("What this machine spooled for the job could not be saved yet."))
            case _:
                patience = Patience(clock, rng, budget)

"""R1: the opening segment. Placing it at the log's real tail fences every lower epoch; no clock is asked (I2)."""

from __future__ import annotations

import random
from typing import Literal

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.errors import Conflict, Fenced, NotFound, Unavailable
from wal_agent.failpoints import failpoint
from wal_agent.records import Opening
from wal_agent.wal import reader
from wal_agent.wal import segment as codec
from wal_agent.wal.keys import Keys
from wal_agent.wal.patience import RetryBudget
from wal_agent.wal.reader import Tail

# --- pure rules


def may_chain(tail: Tail, epoch: int) -> bool:
    """R1, tail read: go on only behind a lower epoch (create-if-absent alone cannot see a newer opening)."""
    return tail.epoch < epoch


def resolve_opening_conflict(
    found: bytes, found_epoch: int, sent: bytes, epoch: int
) -> Literal["mine", "next", "give_up"]:
    """R1, seq taken: what stands there is mine (byte for byte, R3), of a lower epoch, or the end of this attempt."""
    if found == sent:
        return "mine"
    return "next" if found_epoch < epoch else "give_up"


def resolve_later_segment(later: Tail, epoch: int) -> Literal["last", "again", "give_up"]:
    """R1, list after: behind the landed opening there must be nothing. It may have landed in a hole that retention
    made, or have been passed already."""
    if later.seq == 0:
        return "last"
    return "give_up" if later.epoch > epoch else "again"


# --- acting


def place_opening(
    bucket: Bucket,
    keys: Keys,
    clock: Clock,
    rng: random.Random,
    opening: Opening,
    *,
    hint: int = 0,
    budget: float = 20.0,
) -> Tail:
    """Land `opening` at the end of the log; where it stands. Fenced: an equal or higher epoch is there; Unavailable."""
    patience = RetryBudget(clock, rng, budget)
    while True:
        try:
            at = reader.read_tail(bucket, keys, hint)
        except Unavailable as error:
            patience.pause(error)
            continue
        if not may_chain(at, opening.epoch):
            raise _overtaken_error(keys, opening.epoch, at.epoch)
        landed = _land(bucket, keys, patience, opening, at)
        verdict, later = _check_after(bucket, keys, patience, landed)
        if verdict == "last":
            return landed
        if verdict == "give_up":
            raise _overtaken_error(keys, opening.epoch, later.epoch)
        hint = later.seq


def _land(bucket: Bucket, keys: Keys, patience: RetryBudget, opening: Opening, at: Tail) -> Tail:
    """Create the opening behind `at`, or behind what of lower epochs came there meanwhile."""
    while True:
        seq = at.seq + 1
        # Encoded once for each place; what is sent again is this very string of bytes (R3).
        data = codec.encode_segment(
            job=keys.job,
            epoch=opening.epoch,
            seq=seq,
            run=opening.run,
            prev=at.hash,
            time=opening.time,
            records=[codec.encode_record(opening)[0]],
        )
        found = _create_segment(bucket, keys, patience, seq, data)
        epoch = codec.decode_segment(found, job=keys.job, seq=seq).epoch
        here = Tail(seq, epoch, codec.digest(found))
        match resolve_opening_conflict(found, epoch, data, opening.epoch):
            case "mine":
                return here
            case "give_up":
                raise _overtaken_error(keys, opening.epoch, epoch)
            case "next":
                at = here


def _create_segment(bucket: Bucket, keys: Keys, patience: RetryBudget, seq: int, data: bytes) -> bytes:
    """Send until it is decided what stands at `seq`; give that."""
    while True:
        failpoint("opening.before_put")
        try:
            bucket.put(keys.segment(seq), data)
        except Conflict:
            try:
                return bucket.get(keys.segment(seq)).data
            except NotFound:
                continue  # retention took it away; if this lands in the hole, the list behind it will say so
            except Unavailable as error:
                patience.pause(error)
        except Unavailable as error:
            patience.pause(error)
        else:
            failpoint("opening.after_put")
            return data


def _check_after(
    bucket: Bucket, keys: Keys, patience: RetryBudget, landed: Tail
) -> tuple[Literal["last", "again", "give_up"], Tail]:
    while True:
        try:
            later = reader.newest_after(bucket, keys, landed.seq)
        except Unavailable as error:
            patience.pause(error)
            continue
        return resolve_later_segment(later, landed.epoch), later


def _overtaken_error(keys: Keys, epoch: int, found: int) -> Fenced:
    return Fenced(f"Job {keys.job} was opened by another run (epoch {found}) while this one (epoch {epoch}) tried.")

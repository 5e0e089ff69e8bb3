"""A way out of a lease that cannot be read (R8): a sound, unlocked one in its place. The log stays the lock (I2)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from wal_agent.bucket.base import Bucket, Object, Version
from wal_agent.clock import Clock
from wal_agent.errors import Conflict, Damaged, LeaseHeld, NotFound, Unavailable
from wal_agent.records import Host
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import fresh_nonce
from wal_agent.wal.lease_doc import LeaseDoc, decode_lease, encode_lease, find_ttl
from wal_agent.wal.patience import RetryBudget
from wal_agent.wal.reader import Tail


@dataclass(frozen=True, slots=True)
class Repaired:
    """The lease that stands there now. `said`: the lost one still said its owner's ttl."""

    doc: LeaseDoc
    said: bool


@dataclass(frozen=True, slots=True)
class _StoredLease:
    """What stands there: `sound` where it is a lease, else the ttl that it still says."""

    version: Version | None = None
    sound: LeaseDoc | None = None
    ttl: float | None = None


def replace_damaged_lease(
    bucket: Bucket,
    keys: Keys,
    clock: Clock,
    rng: random.Random,
    *,
    tail: Tail,
    ttl: float,
    key: str,
    reason: str,
    off: bool = False,
    budget: float = 20.0,
) -> Repaired:
    """Put an unlocked lease with the epoch of the log's end (`tail`) in the place of the damaged one, by its version.

    The epoch may be below the lost one: an owner may have raised it and not opened yet. The next owner then has the
    same epoch, and only the first of the two gets its opening into the log (R1). `ttl`: how long the next owner waits
    at least; longer where the lost lease still says so; `key`: id of the key that the log is encrypted with. LeaseHeld:
    a sound lease stands there, or another one than a moment ago; Unavailable."""
    doc = LeaseDoc(
        format=1,
        job=keys.job,
        epoch=max(1, tail.epoch),
        run="",
        nonce=fresh_nonce(rng),
        state="unlocked",
        host=Host(name="unknown", boot="", pidns="", pid=0, lock=""),
        agent="",
        workspace="",
        started=clock.now(),
        ttl=ttl,
        seq=tail.seq,
        reason=reason,
        time=clock.now(),
        off=off,
        key=key,
    )
    patience, said = RetryBudget(clock, rng, budget), False
    while True:
        try:
            found = _read_stored(bucket, keys)
            if found.sound is not None and found.sound.nonce == doc.nonce:
                return Repaired(doc, said)  # an own write whose reply was lost
            if found.sound is not None:
                state, epoch = found.sound.state, found.sound.epoch
                raise LeaseHeld(f"The lease of job {keys.job} is sound again: {state}, epoch {epoch}.")
            if found.ttl is not None:
                doc, said = msgspec.structs.replace(doc, ttl=max(ttl, found.ttl)), True
            bucket.put(keys.lease, encode_lease(doc), if_version=found.version)
            return Repaired(doc, said)
        except (Conflict, Unavailable) as error:
            patience.pause(error)


def _read_stored(bucket: Bucket, keys: Keys) -> _StoredLease:
    """What stands there, and what it says.

    An object that its bucket itself cannot read has no version to replace, so it is deleted: looked at once more right
    before, because by then it may be another person's repair, or the lease of the owner behind that. Whoever opens the
    job before the new lease stands there finds none, and takes its epoch from the log."""
    try:
        found = _get_or_damage(bucket, keys)
        if isinstance(found, Damaged):
            again = _get_or_damage(bucket, keys)
            if isinstance(again, Damaged) and again.what != found.what:
                raise LeaseHeld(f"The lease of job {keys.job} changed meanwhile.", "Look again: wal-agent status")
            if isinstance(again, Damaged):
                bucket.delete(keys.lease)
                return _StoredLease()
            found = again
    except NotFound:
        return _StoredLease()
    try:
        return _StoredLease(found.version, decode_lease(found.data, keys.job))
    except Damaged:
        return _StoredLease(found.version, ttl=find_ttl(found.data))


def _get_or_damage(bucket: Bucket, keys: Keys) -> Object | Damaged:
    try:
        return bucket.get(keys.lease)
    except Damaged as error:
        return error

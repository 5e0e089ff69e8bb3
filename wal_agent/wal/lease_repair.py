"""A way out of a lease that cannot be read (R8): a sound, unlocked one in its place. The log stays the lock (I2)."""

from __future__ import annotations

import random

from wal_agent.bucket.base import Bucket, Version
from wal_agent.clock import Clock
from wal_agent.errors import Conflict, Damaged, LeaseHeld, NotFound, Unavailable
from wal_agent.records import Host
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import fresh_nonce
from wal_agent.wal.lease_doc import LeaseDoc, decode, encode
from wal_agent.wal.patience import Patience
from wal_agent.wal.reader import Tail


def replace_damaged(
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
) -> LeaseDoc:
    """Put an unlocked lease with the epoch of the log's end (`tail`) in the place of the damaged one, by its version.

    The epoch may be below the lost one: an owner may have raised it and not opened yet. The next owner then has the
    same epoch, and only the first of the two gets its opening into the log (R1). `ttl`: how long the next owner waits,
    since what the lost lease said of it is lost too; `key`: id of the key that
    the log is encrypted with. LeaseHeld: a sound lease stands there; Unavailable."""
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
    patience = Patience(clock, rng, budget)
    while True:
        try:
            version, sound = _standing(bucket, keys)
            if sound is not None and sound.nonce == doc.nonce:
                return doc  # an own write whose reply was lost
            if sound is not None:
                raise LeaseHeld(f"The lease of job {keys.job} is sound again: {sound.state}, epoch {sound.epoch}.")
            bucket.put(keys.lease, encode(doc), if_version=version)
            return doc
        except (Conflict, Unavailable) as error:
            patience.pause(error)


def _standing(bucket: Bucket, keys: Keys) -> tuple[Version | None, LeaseDoc | None]:
    """The version that stands there, and what it says when that can be read.

    An object that its bucket itself cannot read has no version to replace, so it is deleted. Whoever opens the job
    before the new lease stands there finds none, and takes its epoch from the log."""
    try:
        found = bucket.get(keys.lease)
    except NotFound:
        return None, None
    except Damaged:
        bucket.delete(keys.lease)
        return None, None
    try:
        return found.version, decode(found.data, keys.job)
    except Damaged:
        return found.version, None

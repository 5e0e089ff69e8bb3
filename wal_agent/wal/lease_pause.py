"""The pause of a job that nobody runs: written into its released lease, and ended there. The epoch stays."""

from __future__ import annotations

import random

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.errors import Conflict, LeaseHeld, Unavailable
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import fresh_nonce, read_lease
from wal_agent.wal.lease_doc import DUE_NOW, LeaseDoc, StoredLease, encode_lease
from wal_agent.wal.patience import RetryBudget


def reschedule_pause(
    bucket: Bucket,
    keys: Keys,
    clock: Clock,
    rng: random.Random,
    *,
    seen: StoredLease,
    lasts: float,
    reason: str,
    budget: float = 20.0,
) -> LeaseDoc:
    """Pause exactly the released lease that was `seen` for `lasts` seconds from now on; 0: its pause is over, and
    the job is due.

    LeaseHeld: it was taken, or changed, at the same moment; Unavailable: it is not known whether that landed."""
    patience, version, sent = RetryBudget(clock, rng, budget), seen.version, set[str]()
    while True:
        now = clock.now()
        doc = msgspec.structs.replace(
            seen.doc, until=now + max(lasts, DUE_NOW), reason=reason, nonce=fresh_nonce(rng), time=now
        )
        sent.add(doc.nonce)
        try:
            bucket.put(keys.lease, encode_lease(doc), if_version=version)
            return doc
        except Conflict:
            error = Unavailable(f"The bucket refuses to replace the lease of job {keys.job}, although it is unchanged.")
        except Unavailable as away:
            error = away
        try:
            found = read_lease(bucket, keys)
        except Unavailable as away:
            patience.pause(away)
            continue
        if found is not None and found.doc.nonce in sent:
            return found.doc  # it had landed, its reply was lost
        if found is None or found.doc.nonce != seen.doc.nonce:
            raise LeaseHeld(f"The lease of job {keys.job} changed at the same moment.", "See: wal-agent status")
        version = found.version  # it has not landed; who copies an object onto itself gives it another version
        patience.pause(error)

"""Leases as a fleet's bucket holds them."""

from __future__ import annotations

from typing import Any

from wal_agent.bucket.base import Bucket
from wal_agent.records import Host
from wal_agent.recovery.lease_policy import Local
from wal_agent.wal.lease import LeaseDoc, StoredLease, encode_lease

HOST = Host(name="vm-1", boot="boot-1", pidns="1", pid=7, lock="/nowhere/lock")
ELSEWHERE = Local("boot-2", "1")
DRAINED = "drained (SIGTERM)"


def doc(job: str = "shop", **fields: Any) -> LeaseDoc:
    told: dict[str, Any] = {
        "format": 1,
        "job": job,
        "epoch": 3,
        "run": "r",
        "nonce": "n",
        "state": "held",
        "host": HOST,
        "agent": "gemini",
        "workspace": "/w/shop",
        "started": 900.0,
        "ttl": 30.0,
        "time": 1000.0,
    }
    return LeaseDoc(**{**told, **fields})


def seen(age: float = 5.0, **fields: Any) -> StoredLease:
    """Written `age` seconds ago."""
    return StoredLease(doc(**fields), "v", 5000.0, 5000.0 + age)


def store(bucket: Bucket, job: str, **fields: Any) -> None:
    """Put the job's lease, whatever stands there now."""
    bucket.delete(f"{job}/lease.json")
    bucket.put(f"{job}/lease.json", encode_lease(doc(job, **fields)))


CRASHED: dict[str, Any] = {"host": Host(name="vm-1", boot="gone", pidns="1", pid=7, lock="/nowhere"), "ttl": 1e-9}

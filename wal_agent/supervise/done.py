"""Whether a job has come to its end: for engines that start the same command again at each boot (`run --once`)."""

from __future__ import annotations

from collections.abc import Callable

from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.recovery.settled import way
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys


def is_complete(url: str, job: str, opened: Callable[[str], Bucket] = open_bucket) -> bool:
    """By its lease alone, which is never encrypted; an agent that failed has not done its task. Raises what the bucket
    does, and Damaged."""
    bucket = opened(url)
    try:
        seen = leases.read(bucket, Keys(job))
    finally:
        bucket.close()
    return seen is not None and seen.doc.state == "closed" and not way(seen.doc.reason)

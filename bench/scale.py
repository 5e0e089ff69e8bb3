"""Do a job of 1,000,000 records and a bucket of 10,000 jobs stay quick? `python -m bench scale`.

The bucket is in memory and 30 ms away: each request, and each page of a listing, sleeps so long. The log is one job's,
four records a segment and a snapshot after each 200 segments; nothing of it was deleted. What is measured is the real
code of a start (to its opening), of `status`, of `log -n 30` and of `fleet ls`, without the start of Python; held
against as many requests one after the other as the log has segments, and the bucket has jobs. docs/SCALE.md has the
figures.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bench.fleet import lease
from bench.measure import scaled
from bench.store import ROUND_TRIP
from tests import longlog
from tests.longlog import HOST, KEYS, PAGE
from wal_agent.bucket.base import Entry, MemoryBucket, Object, Version
from wal_agent.cli.log import read_newest
from wal_agent.cli.view import read_view
from wal_agent.clock import SystemClock
from wal_agent.fleet.jobs import Reader
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, OpeningFields, open_job
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore

RECORDS = scaled(1_000_600, 4_000)  # 154 segments lie behind the newest snapshot
RUNS = scaled((200_001, 207_777, 980_001), (2_001,))  # records at which a run begins
TOGETHER = 4
JOBS = scaled(10_000, 20)
SHOWN = 30
Answer = TypeVar("Answer")


class Far(MemoryBucket):
    """A store that is a round trip away, once it is filled. `requests`: as a store counts them."""

    def __init__(self) -> None:
        super().__init__(url="s3://far")
        self.requests, self.delay = 0, 0.0

    def _request(self) -> None:
        self.requests += 1
        time.sleep(self.delay)

    def get(self, key: str) -> Object:
        self._request()
        return super().get(key)

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        if self.delay:
            self._request()
        return super().put(key, data, if_version=if_version)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._pages(super().list(prefix, start_after))

    def folders(self, prefix: str) -> Iterator[str]:
        with self._lock:
            names = dict.fromkeys(key[len(prefix) :].partition("/")[0] for key in self._keys if key.startswith(prefix))
        return self._pages(iter(names))

    def _pages(self, found: Iterator[Answer]) -> Iterator[Answer]:
        self._request()
        for n, one in enumerate(found):
            if n and n % PAGE == 0:
                self._request()
            yield one

    def time(self) -> float:
        self._request()
        return super().time()


def measured(bucket: Far, name: str, act: Callable[[], Answer], plain: int) -> Answer:
    """Do `act`; print its seconds and requests against `plain` requests one after the other."""
    before, began = bucket.requests, time.monotonic()
    answer = act()
    took = time.monotonic() - began
    ratio = took * 1000 / (plain * ROUND_TRIP)
    print(f"  {name:<28} {took:6.2f} s {bucket.requests - before:7,} requests   {ratio:.5f} x one by one", flush=True)
    return answer


def start(bucket: Far) -> OpenedJob:
    """Open the job as a run does."""
    claim = LeaseRequest(run="bench", host=HOST, agent="gemini", workspace="/w", ttl=30.0)
    fields = OpeningFields(agent_version="", version="0")
    seen = leases.read_lease(bucket, KEYS)
    clock, rng = SystemClock(), random.Random(1)
    return open_job(JobStore(bucket, KEYS, clock, rng), claim=claim, fields=fields, seen=seen, cause="released")


def long_job(env: dict[str, str]) -> None:
    bucket, began = Far(), time.monotonic()
    segments = longlog.write(bucket, RECORDS, RUNS, together=TOGETHER)
    print(
        f"  one job: {RECORDS:,} records in {segments:,} segments, made in {time.monotonic() - began:.0f} s", flush=True
    )
    bucket.delay = ROUND_TRIP / 1000
    view = measured(bucket, "status", lambda: read_view(bucket, KEYS, env), segments)
    page = measured(bucket, f"log -n {SHOWN}", lambda: read_newest(bucket, KEYS, SHOWN), segments)
    if view.state != "released" or sum(len(segment.records) for _, segment in page.segments) < SHOWN:
        raise RuntimeError("the answers are not those of the log")
    job = measured(bucket, "a start, to its opening", lambda: start(bucket), segments)
    if job.replay.damage is not None:
        raise RuntimeError("the log is damaged")


def many_jobs(env: dict[str, str]) -> None:
    bucket = Far()
    for n in range(JOBS):
        bucket.put(f"job-{n:05}/lease.json", lease(f"job-{n:05}"))
        bucket.put(f"job-{n:05}/log/{1:020d}", b"x" * 500)
    bucket.delay = ROUND_TRIP / 1000
    found = measured(bucket, f"fleet ls of {JOBS:,} jobs", Reader.of(bucket, env).all, JOBS)
    if len(found) != JOBS:
        raise RuntimeError("jobs are missing")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        env = {"HOME": folder, "WAL_AGENT_RUNTIME_DIR": str(Path(folder) / "run"), "PATH": os.environ.get("PATH", "")}
        long_job(env)
        many_jobs(env)


if __name__ == "__main__":
    main()

"""One look at a thousand jobs, in requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.fleet.leases import HOST, doc, store
from wal_agent.bucket.base import Bucket, MemoryBucket, Object
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import Denied, Unavailable
from wal_agent.fleet.jobs import Reader
from wal_agent.wal.lease import encode_lease

JOBS = 1000


def eyes(bucket: Bucket) -> Reader:
    return Reader(bucket, HOST, Path("/nowhere/spools"))


def test_a_thousand_jobs_cost_one_listing_and_one_small_read_each() -> None:
    inner = MemoryBucket(url="gs://as-if")  # read by many threads, as such a store is
    for n in range(JOBS):
        inner.put(f"job-{n}/lease.json", encode_lease(doc(f"job-{n}", epoch=n + 1)))
        for seq in range(3):
            inner.put(f"job-{n}/log/{seq:020d}", b"x" * 1000)
    bucket = MeterBucket(inner)
    jobs = eyes(bucket).all()
    assert [job.job for job in jobs] == sorted(f"job-{n}" for n in range(JOBS))
    assert {job.job: job.epoch for job in jobs} == {f"job-{n}": n + 1 for n in range(JOBS)}
    usage = bucket.snapshot()
    assert (usage.list.requests, usage.get.requests, usage.requests) == (1, JOBS, JOBS + 1)
    assert usage.get.received < JOBS * 1000


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_what_is_no_job_is_passed_over_and_a_damaged_lease_is_told(tmp_path: Path, kind: str) -> None:
    bucket: Bucket = FileBucket(tmp_path / "b") if kind == "file" else MemoryBucket()
    store(bucket, "good")
    bucket.put("bad/lease.json", b"{")
    store(bucket, "other")
    bucket.delete("other/lease.json")
    bucket.put("other/lease.json", encode_lease(doc("good")))  # a copy
    bucket.put("no-lease/log/1", b"")
    bucket.put("deep/er/lease.json", encode_lease(doc("er")))
    bucket.put("fleet-watch.json", b"{}")
    bucket.put(f"{'x' * 101}/lease.json", b"{}")
    if kind == "file":
        (tmp_path / "b" / "\x1b[2J").mkdir()
        (tmp_path / "b" / "link").symlink_to(tmp_path / "b" / "good")
    found = {job.job: job for job in eyes(bucket).all()}
    assert {name: job.state for name, job in found.items()} == {"good": "running", "bad": "damaged", "other": "damaged"}
    assert "wal-agent unlock --job bad" in found["bad"].problem


def test_a_bucket_without_jobs_and_one_that_is_away() -> None:
    assert eyes(MemoryBucket()).all() == []

    class Away(MemoryBucket):
        def get(self, key: str) -> Object:
            raise Unavailable("away")

    bucket = Away(url="gs://as-if")
    store(bucket, "a")
    with pytest.raises(Unavailable):
        eyes(bucket).all()


class Shut(MemoryBucket):
    """Some keys may not be read."""

    shut: tuple[str, ...] = ()

    def get(self, key: str) -> Object:
        if key in self.shut:
            raise Denied(f"{key} is denied.")
        return super().get(key)


def test_one_lease_that_may_not_be_read_hides_no_other() -> None:
    bucket = Shut(url="gs://as-if")
    store(bucket, "a")
    store(bucket, "b")
    bucket.put("no-lease/log/1", b"")
    bucket.shut = ("a/lease.json",)
    assert [(job.job, job.state, job.problem) for job in eyes(bucket).all()] == [
        ("a", "damaged", "a/lease.json is denied."),
        ("b", "running", ""),
    ]
    alone = eyes(bucket).one("a")
    assert alone is not None and alone.state == "damaged"
    bucket.shut = ("a/lease.json", "b/lease.json")
    with pytest.raises(Denied):
        eyes(bucket).all()

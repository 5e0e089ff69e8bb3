"""operate/remove_job.py: what `wal-agent gc` leaves of a long job whose only run is over (R4, decision 057)."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.supervise.crew import short_folder
from tests.unit.wal.world import KEYS, World, drain, end, intent
from wal_agent.bucket.base import Bucket
from wal_agent.errors import LeaseHeld
from wal_agent.operate.at_rest import JobAccess
from wal_agent.operate.remove_job import FEW, blobs_at_rest, collect, collect_at_rest
from wal_agent.records import Edit, FileDelta, Pack, Workspace
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import INLINE, Blobs, write_file
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.reader import replay
from wal_agent.wal.retention import DAY, Mirror, Retention, Snapshots
from wal_agent.wal.store import JobStore

CALLS = 2000  # at 10,000 (7 s) what is left is the same, but for the chunks of the longer session
MOST = 500  # objects under the job's prefix
LIVE = 8  # blobs: the session's chunks, and what the newest records name


class LongJob:
    """A job whose one run made `CALLS` calls in eleven hours, days ago. Each appends to the session; every 20th has a
    result, and every 30th a pack of the working tree, that is a blob."""

    def __init__(self, folder: Path) -> None:
        self.world, self.rng = World(), random.Random(1)
        self.world.clock.at = time.time() - 4 * DAY
        self.session, self.sha256 = bytearray(), hashlib.sha256()
        self.job = self.world.open("a")
        taking = Snapshots(self.world.bucket, KEYS, self.job.writer, Mirror(folder, self.job.blobs))
        own = Retention(self.world.bucket, KEYS, self.job.blobs)
        for n in range(1, CALLS + 1):
            self.world.clock.at += 40_000 / CALLS
            self._call(n)
            if taking.take_if_due() is not None:
                own.run()

    def _call(self, n: int) -> None:
        job, now = self.job, self.world.clock.now()
        job.writer.append(intent(n))
        drain(job)
        if n % 20 == 0:
            job.blobs.put_payload(self.rng.randbytes(INLINE + 1))  # a result, of which only the end below is kept
        grown = self.rng.randbytes(1000)
        edit = Edit(offset=len(self.session), data=job.blobs.put_payload(grown))
        self.session += grown
        self.sha256.update(grown)
        digest = self.sha256.hexdigest()
        delta = FileDelta(time=now, path="f", size=len(self.session), sha256=digest, edits=(edit,), session="s")
        packs = []
        if n % 30 == 0:
            part = job.blobs.put_payload(self.rng.randbytes(INLINE + 1))
            pack = Pack(part.size, "0" * 64, (part,))
            packs = [Workspace(time=now, holds=n, commit="0" * 40, packs=(pack,), whole=True)]
        job.writer.append(end(n), delta, *packs)
        drain(job)

    def objects(self) -> Counter[str]:
        return Counter(entry.key.split("/")[1] for entry in self.world.inner.list("shop/"))

    def lease(self) -> leases.StoredLease:
        found = self.world.seen()
        assert found is not None
        return found

    def restored(self, folder: Path) -> bytes:
        bucket: Bucket = self.world.bucket
        blobs = Blobs(JobStore(bucket, KEYS, self.world.clock, self.rng))
        write_file(blobs, replay(bucket, KEYS).state.files["f"], folder / "copy")
        return (folder / "copy").read_bytes()


def collect_now(long: LongJob, home: Path) -> None:
    with short_folder() as folder:
        env = {"HOME": str(home), "WAL_AGENT_RUNTIME_DIR": str(folder)}
        collect_at_rest(JobAccess(long.world.bucket, KEYS, 30.0, env))


@pytest.fixture
def long(tmp_path: Path) -> LongJob:
    (tmp_path / "mirror").mkdir()
    return LongJob(tmp_path / "mirror")


def test_a_job_at_rest_keeps_few_objects_however_long_it_was(long: LongJob, tmp_path: Path) -> None:
    """I3, I4: what the job is continued with stays whole, and a job that waits for a person goes on waiting."""
    close_job(long.job, "released", why := "killed; a person is needed")
    long.world.clock.at = time.time()
    before = replay(long.world.bucket, KEYS).state
    loose = blobs_at_rest(long.world.bucket, KEYS, long.lease())
    assert loose is not None and loose.count > CALLS // 20
    collect_now(long, tmp_path)
    left = long.objects()
    assert left.total() < MOST and left["blobs"] <= LIVE, left
    after = replay(long.world.bucket, KEYS)
    assert after.damage is None and long.restored(tmp_path) == bytes(long.session)
    assert (after.state.calls, after.state.workspace, after.state.recent, after.state.ended) == (
        before.calls,
        before.workspace,
        before.recent,
        before.ended,
    )
    doc = long.lease().doc
    assert (doc.state, doc.reason, doc.epoch) == ("released", why, 2)
    assert blobs_at_rest(long.world.bucket, KEYS, long.lease()) is None, "once is enough"


def test_what_a_run_may_still_name_stays(long: LongJob, tmp_path: Path) -> None:
    """R4: the lease says whether the run is over, and only an opening behind it makes sure."""
    long.world.clock.at = time.time()
    long.job.lease.renew()
    blobs = long.objects()["blobs"]
    assert blobs > FEW and blobs_at_rest(long.world.bucket, KEYS, long.lease()) is None
    with pytest.raises(LeaseHeld):
        collect_now(long, tmp_path)
    assert collect(long.world.bucket, KEYS).blobs.count == 0 and long.objects()["blobs"] == blobs


def test_few_blobs_are_not_worth_an_opening(tmp_path: Path) -> None:
    world = World()
    job: OpenedJob = world.open("a")
    taking = Snapshots(world.bucket, KEYS, job.writer, Mirror(tmp_path, job.blobs))
    for n in range(1, FEW):
        job.blobs.put_payload(n.to_bytes(2, "big") * INLINE)
        job.writer.append(intent(n), end(n))
        drain(job)
        if n % 10 == 0:
            taking.take()
    close_job(job, "released")
    world.clock.at += 2 * DAY
    assert blobs_at_rest(world.bucket, KEYS, world.seen()) is None

"""A job whose snapshots and retention are always due: `python -m tests.e2e.housekeeper BUCKET-URL MIRROR-FOLDER`.

The real log, writer, snapshots and retention on a real bucket, with thresholds that production does not have.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from wal_agent.bucket import open_bucket
from wal_agent.clock import SystemClock
from wal_agent.records import AgentStarted, AnyRecord, Edit, End, FileDelta, Intent, Payload
from wal_agent.recovery.lease_policy import Acquire, Local, admit
from wal_agent.supervise.machine import this_host
from wal_agent.wal import lease as leases
from wal_agent.wal.codec import digest
from wal_agent.wal.job import OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.retention import Mirror, Retention, SnapshotPolicy, Snapshots
from wal_agent.wal.store import JobStore

CALLS = 6


def main(url: str, folder: Path) -> None:
    bucket, keys, clock, rng = open_bucket(url), Keys("job"), SystemClock(), random.Random()
    seen = leases.read_lease(bucket, keys)
    wanted = admit(seen, Local("", "", "dead", unchanged=1e6))  # the old owner was killed: its parent says so
    assert isinstance(wanted, Acquire)
    run = f"run-{os.getpid()}"
    host = this_host(os.environ, folder)
    claim = LeaseRequest(run=run, host=host, agent="gemini", workspace="/", ttl=30.0)
    fields = OpeningFields(agent_version="", version="")
    job = open_job(JobStore(bucket, keys, clock, rng), claim=claim, fields=fields, seen=seen, cause=wanted.cause)
    writer = job.writer
    snapshots = Snapshots(bucket, keys, writer, Mirror(folder, job.blobs), SnapshotPolicy(segments=3))
    retention = Retention(bucket, keys, job.blobs, lambda: True, age=-1.0)

    def log(*records: AnyRecord) -> None:
        writer.append(*records)
        while writer.commit_once() != "idle":
            pass
        if snapshots.take_if_due() is not None:
            retention.run()

    now = clock.now()
    log(AgentStarted(time=now, pid=1, session="s", resumed=False))
    text = b"".join(b"%d %d\n" % (job.lease.epoch, n) for n in range(100))
    whole = Edit(offset=0, data=Payload(size=len(text), data=text))
    log(FileDelta(time=now, path="f", size=len(text), sha256=digest(text).hex(), edits=(whole,), session="s"))
    for _ in range(CALLS):
        call = writer.next_call()
        log(
            Intent(
                time=now, call=call, tool="t", input=Payload(size=2, data=b"{}"), cls="unknown", rule="", session="s"
            )
        )
        log(End(time=now, call=call, how="done", by="hook"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

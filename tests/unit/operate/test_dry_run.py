"""operate/dry_run.py: what a start would ask and replace is foreseen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.cli.shelf import commit, intent
from wal_agent.bucket.base import MemoryBucket
from wal_agent.config import Settings
from wal_agent.operate.dry_run import foresee_start
from wal_agent.records import AgentStarted, Owner
from wal_agent.supervise.identity import make_owner
from wal_agent.supervise.machine import this_host
from wal_agent.wal.job import OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore

KEYS = Keys("pay")
SETTINGS = Settings("memory://", "pay")


@pytest.mark.parametrize("theirs", [True, False])
def test_a_job_of_another_person_would_be_taken_over(tmp_path: Path, theirs: bool) -> None:
    env, bucket = {"HOME": str(tmp_path / "home"), "WAL_AGENT_HOST_ID": "vm-2"}, MemoryBucket()
    here = this_host({**env, "WAL_AGENT_HOST_ID": "vm-1"}, Path("/dev/null"))
    mine = make_owner(tmp_path, env)
    owner = Owner("bob", "b" * 32, "f" * 32) if theirs else mine
    job = open_job(
        JobStore(bucket, KEYS, rng=random.Random(1)),
        claim=LeaseRequest("a" * 16, here, "gemini", "/home/bob/shop", 30.0, owner=owner),
        fields=OpeningFields(agent_version="1", version="0", args=()),
        seen=None,
        cause="first",
    )
    job.writer.append(AgentStarted(time=1.0, pid=7, session="s", resumed=False))
    job.writer.append(intent(1, command="./charge.sh"))
    commit(job)
    job.lease.settle("released", "", budget=5.0)
    seen = foresee_start(bucket, KEYS, tmp_path, "gemini", SETTINGS, env)
    assert any("would be asked to verify" in row for row in seen.rows)
    rows = [row for row in seen.rows if "take-over" in row]
    assert bool(rows) is theirs
    if theirs:
        assert "bob" in rows[0] and "/home/bob/shop" in rows[0] and "--take-over" in rows[0]

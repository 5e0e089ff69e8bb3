"""A run without an agent: a job that is open, with its writer running and its gate, for benches."""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wal_agent.agents import AGENTS
from wal_agent.bucket.base import Bucket
from wal_agent.calls.rules.table import load_rules
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.machine import RunDir, this_host
from wal_agent.wal.job import OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore


@contextmanager
def owned(root: Path, bucket: Bucket, name: str = "bench") -> Iterator[tuple[RunContext, Gate, RunDir]]:
    run = RunDir.create(root, secrets.token_hex(8))
    claim = LeaseRequest(run=run.run, host=this_host(os.environ, run.lock), agent="gemini", workspace=str(root), ttl=30)
    fields = OpeningFields(agent_version="bench", version="bench")
    clock, rng = SystemClock(), random.Random(1)
    job = open_job(JobStore(bucket, Keys(name), clock, rng), claim=claim, fields=fields, seen=None, cause="first")
    stop = threading.Event()
    threading.Thread(target=job.writer.run, args=(stop,), daemon=True).start()
    context = RunContext(job, AGENTS["gemini"], Settings(bucket.url, name), root, {"HOME": str(root)}, clock)
    yield context, Gate(context, load_rules, lambda: True), run
    stop.set()
    run.end()

"""How long from the start of a recovery to the agent's start? `python -m bench recovery`.

A job whose owner died with a session of 1, 10 or 100 MB, 500 to 10,000 records behind it and one call in flight; an
empty host starts it. The time is that to the first instruction of a stub that stands in for the agent. What a recovery
costs over a fresh start on the same store (which checks the bucket first, with 17 requests), and over a start of a job
that is there already but has nothing to restore, is held against a plain download of the session's bytes in one
request, written and fsynced, by the same SDK with a warm connection.
"""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bench.flat import SESSION, drain, write_session
from bench.measure import Times, scaled
from bench.store import NAMES, ROUND_TRIP, Store, store
from bench.story import Story, story, wal_agent
from wal_agent.agents import AGENTS
from wal_agent.agents.base import SessionFile, ToolEnded, ToolStarting
from wal_agent.bucket import open_bucket
from wal_agent.calls.rules.table import load_rules
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.records import AgentStarted, Turn
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.machine import RunDir, runtime_dir, this_host
from wal_agent.wal.job import OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.retention import Mirror, Snapshots
from wal_agent.wal.store import JobStore

ROUNDS = scaled(3, 1)


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has behind it: bytes of its session, records in its log."""

    size: int
    records: int

    @property
    def name(self) -> str:
        return f"{self.size / 1e6:g} MB, {self.records:,} records"


SMALL = Past(50_000, 4)
PASTS = scaled(
    (Past(1_000_000, 500), Past(10_000_000, 1_000), Past(100_000_000, 10_000)), (Past(60_000, 10), Past(100_000, 20))
)


def crash(at: Story, job: str, past: Past) -> None:
    """Leave the job as a killed run does: lease held, flock free, a session and a log, and a call in flight."""
    agent, clock, env = AGENTS["gemini"], SystemClock(), at.env()
    run = RunDir.create(runtime_dir(env), secrets.token_hex(8))
    claim = LeaseRequest(
        run=run.run, host=this_host(os.environ, run.lock), agent="gemini", workspace=str(at.work), ttl=1
    )
    bucket = open_bucket(at.bucket)
    opened = open_job(
        JobStore(bucket, Keys(job), clock, random.Random(1)),
        claim=claim,
        fields=OpeningFields(agent_version="0.61.0", version="bench"),
        seen=None,
        cause="first",
    )
    stop = threading.Event()
    thread = threading.Thread(target=opened.writer.run, args=(stop,), daemon=True)
    thread.start()
    main = at.root / "session.jsonl"
    write_session(main, past.size, str(at.work))
    capture = SessionCapture(SESSION, opened.blobs.put_payload)
    now = clock.now()
    opened.writer.append(
        AgentStarted(time=now, pid=1, session=SESSION, resumed=False),
        Turn(time=now, state="started", session=SESSION),
    )
    for record in capture.capture([SessionFile(agent.main_file, main)], now):
        opened.writer.append(record)
    (mirror := at.root / "mirror").mkdir()
    snapshots = Snapshots(bucket, opened.keys, opened.writer, Mirror(mirror, opened.blobs))
    context = RunContext(opened, agent, Settings(at.bucket, job), at.work, env, clock)
    gate = Gate(context, load_rules, lambda: True)
    for n in range(past.records // 2):
        input = b'{"command":"make step-%d"}' % n
        gate.begin_call(ToolStarting(SESSION, "run_shell_command", input))
        gate.finish_call(ToolEnded(SESSION, "run_shell_command", input, b'{"llmContent":"ok"}', False))
        if snapshots.take_if_due():
            opened.lease.renew(seq=opened.writer.acked.seq)  # as a heartbeat does, some 20 s apart
    gate.begin_call(ToolStarting(SESSION, "run_shell_command", b'{"command":"make deploy"}'))
    drain(opened.writer)
    stop.set()
    thread.join()
    run.end()
    bucket.close()


def download(url: str, size: int) -> list[float]:
    """Milliseconds of plain downloads of `size` bytes."""
    bucket, found = open_bucket(url), []
    bucket.put("plain/bytes", os.urandom(size))
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        for n in range(ROUNDS):
            began = time.perf_counter()
            with (Path(folder) / str(n)).open("wb") as file:
                file.write(bucket.get("plain/bytes").data)
                os.fsync(file.fileno())
            found.append((time.perf_counter() - began) * 1000)
    bucket.delete("plain/bytes")
    bucket.close()
    return found


def until_agent(url: str, reach: dict[str, str], job: str) -> float:
    with story(url, reach) as host:
        return host.until_agent(wal_agent("-p", "x"), WAL_AGENT_GEMINI=str(host.stub), WAL_AGENT_JOB=job)


def local() -> None:
    fresh: list[float] = []
    found: dict[Past, list[float]] = {past: [] for past in (SMALL, PASTS[0])}
    for _ in range(ROUNDS):
        with story() as at:
            fresh.append(at.until_agent(wal_agent("-p", "x"), WAL_AGENT_GEMINI=str(at.stub)))
        for past in found:
            with story() as at:
                crash(at, "gemini-work", past)
                found[past].append(at.until_agent(wal_agent("-p", "x"), WAL_AGENT_GEMINI=str(at.stub)))
    base = Times("file://: fresh start", tuple(fresh))
    print(base.line())
    for past, values in found.items():
        print(Times(f"file://: recovery of {past.name}", tuple(values)).line(base))


def over(scheme: str) -> None:
    """The jobs are made on the store itself; only what is measured goes through a proxy."""
    with store(scheme, 0.0) as near:
        for past in PASTS:
            with story(near.url, near.server.env) as dead:
                crash(dead, f"job-{past.size}", past)
        for round_trip in (0.0, ROUND_TRIP):
            with near.through_proxy(round_trip) as at:
                compare(at)


def compare(at: Store) -> None:
    reach = at.server.env
    job = f"fresh-{at.round_trip:.0f}"
    starts = tuple(until_agent(at.url, reach, f"{job}-{n}") for n in range(ROUNDS))
    fresh = Times(f"{at.name}: fresh start", starts)
    known = Times(f"{at.name}: start of a known job", tuple(until_agent(at.url, reach, f"{job}-0") for _ in starts))
    print(fresh.line())
    print(known.line())
    for past in PASTS:
        began = at.requests()
        recoveries = tuple(until_agent(at.url, reach, f"job-{past.size}") for _ in range(ROUNDS))
        requests = (at.requests() - began) / ROUNDS
        found = Times(f"{at.name}: recovery of {past.name}", recoveries)
        with at.environment():
            plain = Times("a plain download", tuple(download(at.url, past.size)))
        cost = found.median - fresh.median
        print(found.line(fresh))
        print(
            f"    {requests:.0f} requests; {cost:.0f} ms over a fresh start, {found.median - known.median:.0f} ms over "
            f"that of a known job; a plain download of its bytes {plain.median:.0f} ms: {cost / plain.median:.2f} x, "
            f"{(found.median - known.median) / plain.median:.2f} x"
        )


def main() -> None:
    local()
    for scheme in NAMES:
        over(scheme)


if __name__ == "__main__":
    main()

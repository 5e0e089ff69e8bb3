"""How long from the start of a recovery to the agent's start? `python -m bench recovery`.

A job whose owner died with a session of 10 MB and one call in flight; the time to the first instruction of a stub that
stands in for the agent, against a fresh start.
"""

from __future__ import annotations

import os
import random
import secrets
import threading

from bench.flat import SESSION, drain, write_session
from bench.measure import Times
from bench.story import Story, story, wal_agent
from wal_agent.agents.base import SessionFile, ToolStarting
from wal_agent.agents.gemini import Gemini
from wal_agent.bucket import open_bucket
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import SystemClock
from wal_agent.records import AgentStarted, Turn
from wal_agent.recovery.rules import load_rules
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.local import RunDir, runtime_dir, this_host
from wal_agent.wal.job import Fields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Claim

ROUNDS = 5
SIZES = {"50 KB": 50_000, "10 MB": 10_000_000}


def crash(at: Story, size: int) -> None:
    """Leave the job as a killed run does: lease held, flock free, a session of `size` bytes and a call in flight."""
    agent, clock, env = Gemini(), SystemClock(), at.env()
    run = RunDir.create(runtime_dir(env), secrets.token_hex(8))
    claim = Claim(run=run.run, host=this_host(os.environ, run.lock), agent="gemini", workspace=str(at.work), ttl=30)
    job = open_job(
        open_bucket(at.bucket),
        Keys("gemini-work"),
        clock,
        random.Random(1),
        claim=claim,
        fields=Fields(agent_version="0.61.0", version="bench"),
        seen=None,
        cause="first",
    )
    stop = threading.Event()
    thread = threading.Thread(target=job.writer.run, args=(stop,), daemon=True)
    thread.start()
    main = at.root / "session.jsonl"
    write_session(main, size)
    capture = SessionCapture(SESSION, job.blobs.put_payload)
    now = clock.now()
    job.writer.append(
        AgentStarted(time=now, pid=1, session=SESSION, resumed=False),
        Turn(time=now, state="started", session=SESSION),
    )
    for record in capture.capture([SessionFile(agent.main_file, main)], now):
        job.writer.append(record)
    gate = Gate(job.writer, job.blobs, lambda: True, load_rules(), at.work, clock, 20.0)
    gate.before(ToolStarting(SESSION, "run_shell_command", b'{"command":"make deploy"}'))
    drain(job.writer)
    stop.set()
    thread.join()
    run.end()


def main() -> None:
    fresh: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in SIZES}
    for _ in range(ROUNDS):
        with story() as at:
            fresh.append(at.until_agent(wal_agent("-p", "x"), WAL_AGENT_GEMINI=str(at.stub)))
        for name, size in SIZES.items():
            with story() as at:
                crash(at, size)
                found[name].append(at.until_agent(wal_agent("-p", "x"), WAL_AGENT_GEMINI=str(at.stub)))
    base = Times("fresh start", tuple(fresh))
    print(base.line())
    for name, values in found.items():
        print(Times(f"recovery of a session of {name}", tuple(values)).line(base))


if __name__ == "__main__":
    main()

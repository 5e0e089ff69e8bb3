"""Counts that no noise reaches: imports, requests, bytes, processes. `python -m bench counts` prints them as JSON.

`bench/baseline.json` has them as they are meant to be; tests/unit/test_counts.py fails where one is higher. The script
needs nothing of this folder, so that bench/performance.py can run it over an older tree as well.
"""

# ruff: noqa: E501 - a script in a string

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = r'''
import contextlib, json, os, random, subprocess, sys, tempfile, threading
from pathlib import Path
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Allow, LoggedCall, SessionFile, ToolEnded, ToolStarting
from wal_agent.bucket.base import MemoryBucket
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.bucket.file import FileBucket
from wal_agent.capture.git import Git
from wal_agent.capture.session import SessionCapture
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.records import Host, Turn
from wal_agent.recovery.restore_session import SessionTarget, restore
from wal_agent.calls.rules.table import load_rules
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.lease_keeper import LeaseKeeper, LeaseTiming, RunProgress
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.job import OpeningFields, close_job, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest, read_lease
from wal_agent.wal.state import FileState
from wal_agent.wal.store import JobStore
from wal_agent.wal.writer import Ticket

found = {}
LOADED = """
import contextlib, io, sys
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    from wal_agent.cli.main import main
    main()
print(len(sys.modules))
"""
with tempfile.TemporaryDirectory() as home:
    env = {**os.environ, "HOME": home}
    for words in ("--version", "--help", "status --help", "status", "log", "list"):
        done = subprocess.run([sys.executable, "-P", "-c", LOADED, *words.split()], env=env, cwd=home, capture_output=True)
        found["imports of " + words] = int(done.stdout.split()[-1])

# Requests and processes of a command; of a start, until the agent runs.
COUNTED = """
import atexit, json, sys, threading
from wal_agent.bucket.file import FileBucket
from wal_agent.cli.main import main
ran, started = {"requests": 0, "processes": 0}, threading.Event()

def counted(name):
    real = getattr(FileBucket, name)
    def call(self, *words, **more):
        ran["requests"] += not started.is_set()
        return real(self, *words, **more)
    setattr(FileBucket, name, call)

def seen(event, words):
    if event == "os.posix_spawn":
        started.set()
    ran["processes"] += event == "subprocess.Popen" and not started.is_set()

for name in ("get", "put", "delete", "list", "folders"):
    counted(name)
sys.addaudithook(seen)
atexit.register(lambda: print(json.dumps(ran)))
main()
"""
with tempfile.TemporaryDirectory() as home:
    place = Path(home).resolve()
    (place / "work").mkdir()
    kept, rest = FileBucket(place / "kept"), Keys("rest")
    claim = LeaseRequest(run="a", host=Host(name="h", boot="b", pidns="p", pid=1, lock=""), agent="generic", workspace=str(place / "work"), ttl=30.0)
    fields = OpeningFields(agent_version="1", version="1")
    job = open_job(JobStore(kept, rest, parallel=1), claim=claim, fields=fields, seen=None, cause="first")
    job.writer.append(Turn(time=1.0, state="started", session="s"))
    assert job.writer.commit_once() == "acked"
    close_job(job, "closed")
    env = {**os.environ, "HOME": home, "WAL_AGENT_RUNTIME_DIR": home + "/r", "WAL_AGENT_BUCKET": kept.root.as_uri()}
    start = "run generic --job {} --fresh -- true"
    for name, words in {
        "status": "status --json --job rest",
        "list": "list --json",
        "a start of a job at rest": start.format("rest"),
        "a first start": start.format("new"),
    }.items():
        done = subprocess.run([sys.executable, "-P", "-c", COUNTED, *words.split()], env=env, cwd=place / "work", capture_output=True)
        assert done.returncode == 0, done.stderr
        for what, count in json.loads(done.stdout.splitlines()[-1]).items():
            found[f"{what} of {name}"] = count


class Clock(SystemClock):
    at = 1_000_000.0

    def now(self):
        return self.at

    boot = now

    def sleep(self, seconds):
        self.at += seconds


class Ticks(threading.Event):
    def wait(self, timeout=None):
        clock.at += timeout or 0.0
        return clock.at >= end


class Client:
    def progress(self):
        return RunProgress("awaiting_user", since=began)

    def lease_expired(self): pass

    def lease_lost(self, error): raise error


clock = Clock()
keys, meter = Keys("shop"), MeterBucket(MemoryBucket(clock=clock.now))
claim = LeaseRequest(run="a", host=Host(name="h", boot="b", pidns="p", pid=1, lock=""), agent="gemini", workspace="/w", ttl=30.0)
fields = OpeningFields(agent_version="1", version="1")


def opened(seen, cause):
    return open_job(JobStore(meter, keys, clock, random.Random(1), parallel=1), claim=claim, fields=fields, seen=seen, cause=cause)


job = opened(None, "first")
for n in range(100):
    job.writer.append(Turn(time=clock.at, state="started", session="s"))
    assert job.writer.commit_once() == "acked"
before = meter.snapshot()
began, end = clock.at, clock.at + 3600
keeper = LeaseKeeper(LeaseTiming(30.0), clock, job.lease, Client())
keeper._stop = Ticks()
keeper._renewer()
after = meter.snapshot()
found["requests an hour, waiting for a person"] = after.requests - before.requests
seen = read_lease(meter, keys)
before = meter.snapshot()
opened(seen, "dead")
after = meter.snapshot()
found["requests of an opening over 101 segments"] = after.requests - before.requests


class Away(MemoryBucket):
    """30 ms away."""

    def put(self, key, data, **more):
        clock.at += 0.03
        return super().put(key, data, **more)


def wait(ticket, timeout):
    """The script commits and moves the clock."""
    while ticket.status == "undecided":
        if job.writer.commit_once() == "idle":
            clock.at += 0.0005
    return ticket.status


Ticket.wait = wait
away = MeterBucket(Away(clock=clock.now))
job = open_job(JobStore(away, keys, clock, random.Random(1), parallel=1), claim=claim, fields=fields, seen=None, cause="first")
job.writer.append(Turn(time=clock.at, state="started", session="s"))
job.writer.commit_once()
context = RunContext(job, AGENTS["gemini"], Settings("memory://", "shop"), Path("/nowhere"), {}, clock)
late = "Callable" in Gate.__init__.__annotations__["rules"]  # an older tree takes the rules themselves
gate = Gate(context, load_rules if late else load_rules(), lambda: True)
before = away.snapshot()
for n in range(100):
    asked = b'{"command": "make target-%d"}' % n
    assert isinstance(gate.begin_call(ToolStarting("s", "run_shell_command", asked)), Allow)
    job.writer.commit_once()
    clock.at += 0.05
    gate.finish_call(ToolEnded("s", "run_shell_command", asked, b"ok", False))
    job.writer.commit_once()  # what the thread of the writer does meanwhile
    clock.at += 0.005
    job.writer.commit_once()
after = away.snapshot()
found["puts of 100 calls that follow each other"] = after.put.requests - before.put.requests

agent, session = AGENTS["gemini"], "aaaaaaaa-0000-4000-8000-000000000000"
head = {"sessionId": session, "projectHash": "0" * 64, "startTime": "t", "lastUpdated": "t", "kind": "main"}
said = {"timestamp": "2026-01-01T00:00:00.000Z", "type": "gemini", "content": "x" * 8000}
lines = [head, *({"id": f"m{n}", **said} for n in range(1250))]
with tempfile.TemporaryDirectory() as folder:
    root = Path(folder)
    (root / "there").write_bytes(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))
    blobs = Blobs(JobStore(meter, keys, clock, random.Random(1)), epoch=2)
    (delta,) = SessionCapture(session, blobs.put_payload).capture([SessionFile(agent.main_file, root / "there")], 1.0)
    files = {agent.main_file: FileState.first(delta)}
    env = {"HOME": str(root / "home")}
    place = SessionTarget(agent, session, root / "work", env, root / "ours" / "1")
    before = meter.snapshot()
    calls = (LoggedCall(1, "t", b"{}", b"{}", False),)
    try:
        done = restore(place, files, blobs, calls, lambda r: "notice", 1.0)
    except TypeError:  # an older tree
        done = restore(place, files, blobs, calls, lambda r: "notice")
    capture, listed = SessionCapture(session, blobs.put_payload), agent.session_files(session, root / "work", env)
    try:
        capture.resume_from(listed, files, done.kept / "exact")
    except TypeError:  # an older tree
        capture.resume_from(listed, files)
    (again,) = capture.capture(listed, 2.0)
    after = meter.snapshot()
    inline = sum(edit.data.size for edit in again.edits if edit.data.data is not None)
    found["bytes down for a session of 10 MB, restored"] = after.get.received - before.get.received
    found["bytes up after that"] = after.put.sent - before.put.sent + inline

started = 0
start = Git._start


def counting(self, *words, **more):
    global started
    started += 1
    return start(self, *words, **more)


Git._start = counting
with tempfile.TemporaryDirectory() as folder:
    top = Path(folder).resolve() / "work"
    top.mkdir()
    (top / "file").write_text("1")
    for words in ("init -q", "add file", "-c user.name=t -c user.email=t@localhost commit -qm first"):
        subprocess.run(["git", *words.split()], cwd=top, env={**os.environ, "HOME": folder}, check=True)
    capture = WorkspaceCapture(Path(folder) / "state", top, {**os.environ, "HOME": folder}, blobs.put_payload)
    capture.capture(0, 1.0)
    capture.commit()
    (top / "file").write_text("22")
    for name in ("with one changed file", "without a change"):
        before = started
        capture.capture(1, 2.0)
        capture.commit()
        found["git processes of a capture " + name] = started - before
print(json.dumps(found))
'''
BASELINE = Path(__file__).with_name("baseline.json")
TREE = Path(__file__).resolve().parent.parent


def counts(tree: Path = TREE) -> dict[str, int]:
    """Return the counts of the code in `tree`."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-") as folder:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT],
            env={**kept, "HOME": folder, "PYTHONPATH": str(tree)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def main() -> None:
    print(json.dumps(counts(), indent=1))


if __name__ == "__main__":
    main()

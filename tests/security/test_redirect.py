"""A lease that names the live run of another job, also from another bucket. A person's command for the one
does nothing to the other."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.test_adoption import World
from tests.unit.supervise.crew import short_folder
from wal_agent.bucket.file import FileBucket
from wal_agent.clock import SystemClock
from wal_agent.operate.stop_job import _answers
from wal_agent.supervise.control import ACK, CHECKPOINT, PAUSE, REWIND, STATUS, TASK, ask_run
from wal_agent.wal.job import OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseDoc, LeaseRequest, StoredLease, read_lease
from wal_agent.wal.store import JobStore


@pytest.fixture
def world() -> Iterator[World]:
    with short_folder() as root:
        yield World(root.resolve())


def live_run(world: World) -> tuple[subprocess.Popen[bytes], LeaseDoc]:
    """A run of job `mine`, once its agent works."""
    env = {"PATH": os.environ["PATH"], "HOME": str(world.root / "vm"), "WAL_AGENT_HOST_ID": "vm"}
    env |= {"WAL_AGENT_BUCKET": world.bucket.as_uri(), "WAL_AGENT_RUNTIME_DIR": str(world.root / "r")}
    (world.root / "vm").mkdir()
    words = [sys.executable, "-P", "-m", "wal_agent", "run", "generic", "--job=mine", "--", "sh", "-c"]
    process = subprocess.Popen(
        [*words, "touch works; exec sleep 600"],
        cwd=world.folder,
        env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (world.folder / "works").exists():
        assert process.poll() is None
        time.sleep(0.05)
    seen = read_lease(FileBucket(world.bucket), Keys("mine"))
    assert seen is not None
    return process, seen.doc


def forge(folder: Path, victim: LeaseDoc) -> None:
    """Job `trap`, whose lease says that the victim's run has it."""
    claim = LeaseRequest(victim.run, victim.host, "generic", victim.workspace, 600.0, owner=victim.owner)
    fields = OpeningFields("1", "0")
    bucket, clock, rng = FileBucket(folder), SystemClock(), random.Random(1)
    open_job(
        JobStore(bucket, Keys("trap"), clock, rng, parallel=1), claim=claim, fields=fields, seen=None, cause="first"
    )


def held(folder: Path, job: str) -> StoredLease:
    seen = read_lease(FileBucket(folder), Keys(job))
    assert seen is not None
    return seen


COMMANDS = ("ack 1 --done", "checkpoint", "pause --for 10m", "rewind 1", "ack one-step --done")


@pytest.mark.parametrize("place", ["bucket", "other"])
def test_a_command_does_nothing_to_another_jobs_run(world: World, place: str) -> None:
    process, victim = live_run(world)
    try:
        forge(world.root / place, victim)
        url = (world.root / place).as_uri()
        before = read_lease(FileBucket(world.bucket), Keys("mine"))
        own, trap = (world.bucket.as_uri(), "mine"), (url, "trap")
        for event in (ACK, CHECKPOINT, PAUSE, REWIND, STATUS, TASK):
            said = ask_run(victim.host, victim.run, trap, event, {"seconds": 600, "reason": "x", "ask": "begin"})
            assert said is not None and "The lease of job trap names a run of job mine" in said["error"], said
        assert "phase" in (ask_run(victim.host, victim.run, own, STATUS, {}) or {})
        link = world.root / "link"
        link.symlink_to(world.bucket)
        assert "phase" in (ask_run(victim.host, victim.run, (link.as_uri(), "mine"), STATUS, {}) or {})
        for words in COMMANDS if place == "other" else ():
            done = world.command("vm", *words.split(), "--job=trap", f"--bucket={url}")
            assert done.returncode not in (0, 1), (words, done.stderr)
        assert not _answers(held(world.root / place, "trap"), FileBucket(world.root / place), Keys("trap"))
        assert _answers(held(world.bucket, "mine"), FileBucket(world.bucket), Keys("mine")), "so `stop` signals it"
        after = read_lease(FileBucket(world.bucket), Keys("mine"))
        assert before is not None and after is not None and after.doc.state == "held" and process.poll() is None
    finally:
        process.kill()
        process.wait()

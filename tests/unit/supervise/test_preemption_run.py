"""A drain as it is told to whoever looks on: when it began, what became of the lease, and whether it was in time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import TESTS
from tests.unit.supervise.crew import PATIENCE, short_folder
from wal_agent.bucket import open_bucket
from wal_agent.bucket.fault_file import FaultFile, write_faults
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay

RUN = """\
import os, sys
from pathlib import Path
from wal_agent.agents import AGENTS
from wal_agent.config import load
from wal_agent.supervise.run import run
from wal_agent.supervise.wish import Screen, Wish

work = Path.cwd().resolve()
settings = load("generic", work, os.environ, {})
tell = lambda happened: print(happened, flush=True)
wish = Wish(AGENTS["generic"], tuple(sys.argv[1:]), settings, work, dict(os.environ), tell=tell)
try:
    print("ended with", run(wish, Screen(print, print)).code)
except Exception as error:
    print("ended with", error.exit_code)
"""
BLOBS = "generic-work/blobs/"
STUBBORN = 'trap "" TERM; head -c 200000 /dev/urandom > big; while :; do sleep 0.05; done'


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def drained(folder: Path, drain: str, faults: FaultFile | None = None) -> list[str]:
    """What is told by a run whose agent ignores SIGTERM, from that signal on. `faults`: of the bucket."""
    (folder / "work").mkdir()
    if faults is not None:
        write_faults(folder / "faults.json", faults)
    env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {
        "PYTHONPATH": str(TESTS.parent),
        "HOME": str(folder),
        "WAL_AGENT_BUCKET": f"file://{folder}/bucket",
        "WAL_AGENT_RUNTIME_DIR": str(folder / "run"),
        "WAL_AGENT_DRAIN": drain,
        "WAL_AGENT_BUCKET_FAULTS": str(folder / "faults.json"),
    }
    command = [sys.executable, "-c", RUN, "sh", "-c", STUBBORN]
    with subprocess.Popen(
        command, cwd=folder / "work", env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("AgentBegan"):
            assert process.poll() is None
        while not (folder / "work" / "big").exists():
            assert process.poll() is None
        process.terminate()
        told = process.stdout.read().splitlines()
        process.wait(PATIENCE)
    return [line for line in told if line.startswith(("Notice", "Drain", "LeaseSettled", "ended"))]


def test_a_drain_in_time(folder: Path) -> None:
    """Also of an agent that does not end by itself."""
    notice, began, settled, finished, ended = drained(folder, "8")
    assert notice == "NoticeReceived(source='sigterm', left=0.0)"
    assert began == "DrainStarted(source='sigterm', budget=8.0)"
    assert settled.startswith("LeaseSettled(state='released', reason='drained (SIGTERM)'")
    assert finished.startswith("DrainFinished(") and finished.endswith("in_time=True)")
    assert ended == "ended with 143"


def test_a_drain_that_does_not_fit_is_left_as_a_crash(folder: Path) -> None:
    """What the last capture needs is not to be had, although the log and the lease are: nothing is given up half saved,
    and the run is not said to have ended."""
    _, _, settled, finished, ended = drained(folder, "2", FaultFile(down=True, ops=("put",), prefixes=(BLOBS,)))
    assert settled.startswith("LeaseSettled(state='left'")
    assert finished.endswith("in_time=False)")
    assert ended == "ended with 143"
    with closing(open_bucket(f"file://{folder}/bucket")) as bucket:
        assert replay(bucket, Keys("generic-work")).state.ended is None

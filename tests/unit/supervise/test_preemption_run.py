"""A drain as it is told to whoever looks on: when it began, what became of the lease, and whether it was in time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import TESTS
from tests.faulty_bucket import FaultFile, faulty_environment, write_faults
from tests.unit.supervise.crew import PATIENCE, short_folder
from wal_agent.bucket import open_bucket
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay

RUN = """\
import os, sys
from pathlib import Path
from wal_agent.agents import AGENTS
from wal_agent.supervise.settings import load
from wal_agent.supervise.run import run
from wal_agent.supervise.options import Screen, RunOptions

work = Path.cwd().resolve()
settings = load("generic", work, os.environ, {})
tell = lambda happened: print(happened, flush=True)
wish = RunOptions(AGENTS["generic"], tuple(sys.argv[1:]), settings, work, dict(os.environ), emit=tell)
try:
    print("ended with", run(wish, Screen(print, print)).code)
except Exception as error:
    print("ended with", error.exit_code)
"""
# Some of the floors of the steps at the end, so that none of these is cut short.
SEAL = "import wal_agent.supervise.run_end as c\nc.SEAL_AT_LEAST = 15.0\n"
SAVE = "import wal_agent.supervise.exits as d\nd.LAST_SAVE_AT_LEAST = 15.0\n"
BLOBS = "generic-work/blobs/"
STUBBORN = 'trap "" TERM; head -c 200000 /dev/urandom > big; while :; do sleep 0.05; done'


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def environment(folder: Path, drain: str) -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {
        "PYTHONPATH": str(TESTS.parent),
        "HOME": str(folder),
        "WAL_AGENT_BUCKET": f"file://{folder}/bucket",
        "WAL_AGENT_JOB": "generic-work",
        "WAL_AGENT_RUNTIME_DIR": str(folder / "run"),
        "WAL_AGENT_DRAIN": drain,
    }


def drained(folder: Path, drain: str, floors: str, faults: FaultFile | None = None) -> list[str]:
    """What is told by a run whose agent ignores SIGTERM, from that signal on. `faults`: of the bucket."""
    (folder / "work").mkdir()
    if faults is not None:
        write_faults(folder / "faults.json", faults)
    env = environment(folder, drain) | faulty_environment(folder / "faults.json")
    command = [sys.executable, "-c", floors + RUN, "sh", "-c", STUBBORN]
    with subprocess.Popen(
        command, cwd=folder / "work", env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("AgentBegan"):
            assert process.poll() is None
        while not (folder / "work" / "big").exists():
            assert process.poll() is None
            time.sleep(0.005)
        process.terminate()
        told = process.stdout.read().splitlines()
        process.wait(PATIENCE)
    return [line for line in told if line.startswith(("Notice", "Drain", "LeaseSettled", "ended with"))]


def test_a_drain_in_time(folder: Path) -> None:
    """Also of an agent that does not end by itself."""
    notice, began, settled, finished, ended = drained(folder, "8", SAVE + SEAL)
    assert notice == "NoticeReceived(source='sigterm', left=0.0)"
    assert began == "DrainStarted(source='sigterm', budget=8.0)"
    assert settled.startswith("LeaseSettled(state='released', reason='drained (SIGTERM)'")
    assert finished.startswith("DrainFinished(") and finished.endswith("in_time=True)")
    assert ended == "ended with 143"


def test_a_drain_that_does_not_fit_is_left_as_a_crash(folder: Path) -> None:
    """What the last capture needs is not to be had, although the log and the lease are: nothing is given up half saved,
    and the run is not said to have ended."""
    _, _, settled, finished, ended = drained(folder, "2", SEAL, FaultFile(down=True, ops=("put",), prefixes=(BLOBS,)))
    assert settled.startswith("LeaseSettled(state='left'")
    assert finished.endswith("in_time=False)")
    assert ended == "ended with 143"
    with closing(open_bucket(f"file://{folder}/bucket")) as bucket:
        assert replay(bucket, Keys("generic-work")).state.ended is None


# ---- at a moment of its own: what happens is put into the run, and everything that is told comes back

NOTICED = """\
import wal_agent.supervise.preemption as answers
from wal_agent.supervise.preemption import Notice

def notice(self, when="gcp"):
    self._noticed(Notice(when, 30.0, True))
"""
ATTACHED = """
attach = answers.Preemption.attach
answers.Preemption.attach = lambda self, live: (attach(self, live), notice(self))
"""
OVER = """
import wal_agent.supervise.live as lives
attach, live_run = answers.Preemption.attach, lives.Live.run
answers.Preemption.attach = lambda self, live: (attach(self, live), setattr(live, "watching", self))
def over(self):
    ended = live_run(self)
    going = answers.ShutdownPlan("drain", "gcp", 0.0, 1e9, "")
    self.shut_down(going)
    return ended
lives.Live.run = over
detach = answers.Preemption.detach
answers.Preemption.detach = lambda self: (detach(self), notice(self))
"""
HANGS = """
import threading
import wal_agent.bucket.file as files
hung, put = threading.Event(), files.FileBucket.put
files.FileBucket.put = lambda self, *a, **k: never.wait() if hung.is_set() else put(self, *a, **k)
never, check = threading.Event(), answers.Preemption.check
import wal_agent.supervise.prepare as prepares
import wal_agent.supervise.run as runs
prepare = runs.prepare_start
def prepared(*args):
    found = prepare(*args)
    hung.set()
    runs.prepare_start = None
    raise answers.Preempted(answers.ShutdownPlan("drain", "gcp", args[3].boot(), args[3].boot() + 1.5, ""))
runs.prepare_start = prepared
"""
STOPPED = """
import os, signal
import wal_agent.wal.job as openings
place = openings.place_opening
def placed(*args, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    return place(*args, **named)
openings.place_opening = placed
"""
FENCED = """
import wal_agent.supervise.live as lives
from wal_agent.errors import Fenced
began = lives.Live.run
def fenced(self):
    self._writer._end(Fenced("somebody else has it"))
    return began(self)
lives.Live.run = fenced
"""


PAUSED = """
import threading, time
import wal_agent.supervise.live as lives
from pathlib import Path
began = lives.Live.run
def pause(live):
    while not Path("big").exists():
        time.sleep(0.01)
    now = live._clock.boot()
    live.shut_down(answers.ShutdownPlan(KIND, "test", now, now + 2.0, "", time.time() + 3600.0, "rate limit"))
def paused(self):
    threading.Thread(target=pause, args=(self,), daemon=True).start()
    return began(self)
lives.Live.run = paused
"""


def told(folder: Path, moment: str, *argv: str, drain: str = "8", faults: FaultFile | None = None) -> list[str]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    code, env = NOTICED + moment + RUN, environment(folder, drain)
    if faults is not None:
        write_faults(folder / "faults.json", faults)
        env |= faulty_environment(folder / "faults.json")
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stderr == "", done.stderr
    return done.stdout.splitlines()


def lines(found: list[str], *of: str) -> list[str]:
    return [line.partition("(")[0] for line in found if line.startswith(of)]


def test_a_notice_just_before_the_agent_begins_starts_none(folder: Path) -> None:
    found = told(folder, ATTACHED, "touch", "ran")
    assert not (folder / "work" / "ran").exists()
    assert lines(found, "Agent", "Drain", "Lease", "ended with") == [
        "LeaseTaken",
        "DrainStarted",
        "LeaseSettled",
        "DrainFinished",
        "ended with 143",
    ]
    assert any("state='released'" in line for line in found)


def test_a_notice_behind_the_agents_end_begins_no_drain(folder: Path) -> None:
    found = told(folder, OVER, "true")
    assert lines(found, "Notice", "Drain", "LeaseSettled", "ended with") == [
        "NoticeReceived",
        "LeaseSettled",
        "ended with 0",
    ]


def test_a_drain_before_the_agent_runs_has_an_end_whatever_hangs(folder: Path) -> None:
    """Here no request of the bucket ever ends."""
    found = told(folder, HANGS, "true")
    assert lines(found, "Drain", "LeaseSettled", "ended with") == [
        "DrainStarted",
        "LeaseSettled",
        "DrainFinished",
        "ended with 143",
    ]
    assert any("in_time=False" in line for line in found) and any("state='left'" in line for line in found)


def test_a_stop_while_the_job_is_opened_gives_it_back_and_is_no_crash(folder: Path) -> None:
    for epoch in (1, 2):
        assert told(folder, STOPPED, "true")[-1:] == ["ended with 143"]
        with closing(open_bucket(f"file://{folder}/bucket")) as bucket:
            seen = leases.read_lease(bucket, Keys("generic-work"))
            state = replay(bucket, Keys("generic-work")).state
        assert seen is not None and (seen.doc.epoch, seen.doc.state) == (epoch, "released")
        assert "SIGTERM" in seen.doc.reason
    assert [o.opening.cause for o in state.openings] == ["first", "released"]


def test_a_fence_that_the_log_finds_is_told_once(folder: Path) -> None:
    found = told(folder, FENCED, "sleep", "60")
    assert lines(found, "LeaseLost", "LeaseSettled", "ended with") == ["LeaseLost", "ended with 76"]
    assert any("somebody else has it" in line for line in found if line.startswith("LeaseLost"))


@pytest.mark.parametrize("kind", ["pause", "hang"])
def test_neither_a_pause_nor_a_hang_gives_up_what_is_half_saved(folder: Path, kind: str) -> None:
    """The next start is told that it was cut off, not that all was saved before."""
    lost = FaultFile(down=True, ops=("put",), prefixes=(BLOBS,))
    found = told(folder, PAUSED.replace("KIND", repr(kind)), "sh", "-c", STUBBORN, faults=lost)
    assert lines(found, "LeaseSettled", "Paused", "ended with") == ["LeaseSettled", "ended with 69"]
    assert any("state='left'" in line for line in found)
    with closing(open_bucket(f"file://{folder}/bucket")) as bucket:
        assert replay(bucket, Keys("generic-work")).state.ended is None

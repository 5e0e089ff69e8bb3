"""operate/acknowledge.py: a person's word on a call (I8), here and to a live run over its socket."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.supervise.crew import short_folder
from tests.unit.wal.world import FIELDS, KEYS, TTL, Flaky, drain, intent
from wal_agent.bucket.base import MemoryBucket
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, LeaseHeld, Unavailable, UsageError
from wal_agent.operate import at_rest as module
from wal_agent.operate.acknowledge import acknowledge_call
from wal_agent.operate.at_rest import JobAccess
from wal_agent.records import Cause, End, Host
from wal_agent.recovery.lease_policy import Acquire, Local, admit, pause_left, pause_text, paused_until
from wal_agent.supervise import machine
from wal_agent.supervise.control import ACK, STATUS, ask_run
from wal_agent.supervise.ends import acknowledged_end
from wal_agent.supervise.hook_server import HookRequest, HookServer
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, close_job, open_job
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.reader import iter_segments, replay
from wal_agent.wal.state import State
from wal_agent.wal.store import JobStore


class Here:
    """This machine: a runtime folder of its own, a bucket in memory, and the real clock."""

    def __init__(self, folder: Path) -> None:
        self.env = {"WAL_AGENT_RUNTIME_DIR": str(folder / "r")}
        self.bucket = MemoryBucket()
        self.runtime = machine.runtime_dir(self.env)

    def open(self, run: str, lock: Path, boot: str = "") -> OpenedJob:
        """As a run of this machine (or of the one with another boot id)."""
        env = {"WAL_AGENT_HOST_ID": boot} if boot else {}
        claim = LeaseRequest(run=run, host=machine.this_host(env, lock), agent="gemini", workspace="/w", ttl=TTL)
        seen = leases.read_lease(self.bucket, KEYS)
        decided = admit(seen, Local("", ""))
        cause: Cause = decided.cause if isinstance(decided, Acquire) else "first"
        return open_job(
            JobStore(self.bucket, KEYS, rng=random.Random(7), parallel=1),
            claim=claim,
            fields=FIELDS,
            seen=seen,
            cause=cause,
        )

    def cut_off(self) -> None:
        """A run of this machine that died with calls 1 and 2 open."""
        run_dir = machine.RunDir.create(self.runtime, "dead")
        job = self.open("dead", run_dir.lock)
        job.writer.append(intent(1), intent(2))
        drain(job)
        run_dir.end()

    def acknowledge(self, call: int, done: bool = True) -> None:
        acknowledge_call(JobAccess(self.bucket, KEYS, TTL, self.env), call, done)

    @property
    def state(self) -> State:
        return replay(self.bucket, KEYS, parallel=1).state

    def ends(self) -> list[End]:
        return [r for _, s in iter_segments(self.bucket, KEYS) for r in s.records if isinstance(r, End)]


@pytest.fixture
def here() -> Iterator[Here]:
    with short_folder() as folder:
        yield Here(folder)


# ---- the record


def test_only_an_open_call_can_be_settled(here: Here) -> None:
    """I8: exactly one end; the refusal names what is open."""
    here.cut_off()
    with pytest.raises(UsageError, match=r"#3 is not open.*#1, #2"):
        acknowledged_end(here.state, 3, True, 5.0)
    with pytest.raises(UsageError, match="none"):
        acknowledged_end(State(), 1, True, 5.0)


@pytest.mark.parametrize(("done", "finding", "word"), [(True, "completed", "done"), (False, "not_started", "not done")])
def test_the_end_says_whose_word_it_is(here: Here, done: bool, finding: str, word: str) -> None:
    here.cut_off()
    end = acknowledged_end(here.state, 2, done, 5.0)
    assert (end.call, end.how, end.by, end.finding, end.time) == (2, "resolved", "person", finding, 5.0)
    assert end.why.endswith(f"it was {word}")


# ---- a job that nobody holds


def test_a_dead_runs_call_is_settled_durably_under_an_own_epoch_and_the_job_is_given_back(here: Here) -> None:
    """I2, I8: a person's word is written like everything else: fenced, acknowledged, and with the lease given up."""
    here.cut_off()
    here.acknowledge(1)
    assert [o.intent.call for o in here.state.open] == [2]
    assert [(e.call, e.how, e.finding) for e in here.ends()] == [(1, "resolved", "completed")]
    seen = leases.read_lease(here.bucket, KEYS)
    assert seen is not None and (seen.doc.state, seen.doc.epoch, seen.doc.agent) == ("released", 2, "gemini")
    here.acknowledge(2, done=False)
    assert here.state.open == () and here.state.epoch == 3
    with pytest.raises(UsageError, match="not open"):
        here.acknowledge(2)
    assert len(here.ends()) == 2


def test_a_paused_job_stays_so_when_a_call_of_it_is_settled(here: Here) -> None:
    job = here.open("a", here.runtime / "no-lock")
    job.writer.append(intent(1))
    close_job(job, "released", "rate limit", until=SystemClock().now() + 3600)
    here.acknowledge(1)
    seen = leases.read_lease(here.bucket, KEYS)
    assert seen is not None and seen.doc.epoch == 2 and 3500 < pause_left(seen) <= 3600
    assert "(rate limit)" in pause_text(seen) and here.state.open == ()


def test_a_job_whose_pause_was_over_still_needs_a_host_when_a_call_of_it_is_settled(here: Here) -> None:
    job = here.open("a", here.runtime / "no-lock")
    job.writer.append(intent(1))
    close_job(job, "released", "rate limit", until=1.0)
    here.acknowledge(1)
    seen = leases.read_lease(here.bucket, KEYS)
    assert seen is not None and seen.doc.epoch == 2 and paused_until(seen) > 0 == pause_left(seen)


@pytest.mark.parametrize(
    ("reason", "stays"),
    [
        ("drained (SIGTERM)", True),
        ("the agent ended with 41", True),
        ("stopped: a person is needed", False),
        ("", False),
    ],
)
def test_why_a_job_was_settled_outlives_a_persons_word(here: Here, reason: str, stays: bool) -> None:
    """A drained job needs a host as before; one that waited for a person waits no more."""
    here.cut_off()
    close_job(here.open("next", machine.RunDir.create(here.runtime, "next").lock), "released", reason)
    here.acknowledge(1)
    seen = leases.read_lease(here.bucket, KEYS)
    assert seen is not None
    assert seen.doc.reason == (reason if stays else "a call was settled by a person")


def test_a_refused_word_opens_nothing(here: Here) -> None:
    """I2: a call that is not open is no reason to take a job over."""
    here.cut_off()
    with pytest.raises(UsageError, match="not open"):
        here.acknowledge(9)
    seen = leases.read_lease(here.bucket, KEYS)
    assert seen is not None and (seen.doc.state, seen.doc.epoch) == ("held", 1)
    assert here.ends() == []
    assert [machine.is_run_live(p) for p in here.runtime.iterdir()] == [False, False]


def test_a_damaged_log_takes_no_word(here: Here) -> None:
    here.cut_off()
    here.bucket.delete(KEYS.segment(1))
    with pytest.raises(Damaged):
        here.acknowledge(1)
    assert here.ends() == []


def test_a_job_that_does_not_exist_is_named(here: Here) -> None:
    with pytest.raises(UsageError, match="no job shop"):
        here.acknowledge(1)


def test_a_run_elsewhere_keeps_its_job(here: Here) -> None:
    """LeaseHeld (75): its socket cannot be reached from here, and its log is its own (I2)."""
    job = here.open("far", here.runtime / "far" / "lock", boot="another machine")
    job.writer.append(intent(1))
    drain(job)
    with pytest.raises(LeaseHeld, match="is running on"):
        here.acknowledge(1)
    assert here.state.epoch == 1 and here.ends() == []


# ---- a live run on this machine


JOB = ("file:///b", "shop")


class Owner:
    """A live run: its lock is held, its socket answers."""

    def __init__(self, here: Here, answer: dict[str, Any] | None) -> None:
        self.run_dir = machine.RunDir.create(here.runtime, "live")
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[BaseException] = []
        self._answer = answer
        here.open("live", self.run_dir.lock)
        self.host = machine.this_host({}, self.run_dir.lock)
        self.server = HookServer(self.run_dir.socket, "live", self.handle, self.failures.append)
        self.server.start()

    def handle(self, call: HookRequest) -> bytes:
        self.asked.append((call.event, json.loads(call.payload)))
        return b"junk" if self._answer is None else json.dumps(self._answer).encode()

    def close(self) -> None:
        self.server.close()
        self.run_dir.end()


def owned(here: Here, answer: dict[str, Any] | None) -> Iterator[Owner]:
    owner = Owner(here, answer)
    try:
        yield owner
    finally:
        owner.close()


@pytest.fixture
def owner(here: Here) -> Iterator[Owner]:
    yield from owned(here, {})


def test_a_live_run_here_is_asked_over_its_socket(here: Here, owner: Owner) -> None:
    """I2: the owner writes its own log; nobody opens the job beside it."""
    here.acknowledge(4, done=False)
    assert owner.asked == [(ACK, {"call": 4, "done": False, "at": [here.bucket.url, "shop"]})]
    assert here.state.epoch == 1 and here.ends() == []


def test_what_the_live_run_refuses_is_told(here: Here, owner: Owner) -> None:
    owner._answer = {"error": "Call #4 is not open."}
    with pytest.raises(UsageError, match="#4 is not open"):
        here.acknowledge(4)


def test_a_live_run_that_does_not_answer_keeps_its_job(here: Here, owner: Owner) -> None:
    owner.server.close()
    with pytest.raises(LeaseHeld, match="is running on"):
        here.acknowledge(4)


def test_the_answer_is_an_object_or_nothing(here: Here, owner: Owner) -> None:
    assert ask_run(owner.host, "live", JOB, STATUS, {}) == {}
    owner._answer = {"phase": "awaiting_user"}
    assert ask_run(owner.host, "live", JOB, STATUS, {"a": 1}) == {"phase": "awaiting_user"}
    assert owner.asked[-1] == (STATUS, {"a": 1, "at": list(JOB)})
    owner._answer = None
    assert ask_run(owner.host, "live", JOB, STATUS, {}) is None
    assert ask_run(owner.host, "another run", JOB, STATUS, {}) is None
    assert owner.failures == []


@pytest.mark.parametrize("lock", ["", "/", "a\0b", "/nowhere/lock", "/proc/1/lock"])
def test_a_path_from_the_bucket_that_leads_nowhere_is_no_answer(lock: str) -> None:
    """The lease may have been written by anybody: status must say what it knows, not fail."""
    assert ask_run(Host(name="h", boot="b", pidns="p", pid=1, lock=lock), "r", JOB, STATUS, {}) is None


def test_another_users_socket_is_not_spoken_to(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(st_uid=os.getuid() + 1)
    monkeypatch.setattr(Path, "lstat", lambda _: other)
    assert ask_run(owner.host, "live", JOB, STATUS, {}) is None
    assert owner.asked == []


def test_an_outage_says_that_it_is_not_known(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not acknowledged is not settled: the person is told to look again."""
    here.cut_off()
    monkeypatch.setattr(module, "close_job", lambda *args: close_job(*args, budget=0.0))
    flaky = Flaky(here.bucket)
    flaky.fates = ["", "", "dropped", "dropped"]
    with pytest.raises(Unavailable, match="not known whether"):
        acknowledge_call(JobAccess(flaky, KEYS, TTL, here.env), 1, True)

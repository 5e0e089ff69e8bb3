"""Watchers as real processes on one folder: each job is acted on once, whoever dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.conftest import TESTS
from tests.unit.fleet.leases import CRASHED, DRAINED, ELSEWHERE, seen, store
from tests.unit.wal.world import FakeClock
from wal_agent.bucket.base import MemoryBucket, Version
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import Damaged, Fenced, NotFound, Unavailable
from wal_agent.fleet.jobs import classify_job
from wal_agent.fleet.watch import KEY, KEYS, Memory, Watcher, WatchOptions, command_environment, decode_memory
from wal_agent.wal.store import JobStore

NOTE = 'echo "$WAL_AGENT_JOB $FLEET_EPOCH $FLEET_STATE" >> "$ACTED"'


def until(what: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, f"waited in vain: {why}"
        time.sleep(0.02)


@dataclass
class Yard:
    root: Path
    runtime: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def bucket(self) -> FileBucket:
        return FileBucket(self.root / "bucket")

    @property
    def acted(self) -> list[str]:
        file = self.root / "acted"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def memory(self) -> Memory:
        try:
            return decode_memory(self.bucket.get(KEY).data)
        except NotFound:
            return Memory()

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(act.outcome for act in self.memory.acts)

    def watch(self, command: str, *more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "wal_agent", "fleet", "watch", "--on-crash", command, "--every", "0.1", *more],
            cwd=self.root,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(TESTS.parent),
                "HOME": str(self.root),
                "WAL_AGENT_BUCKET": self.bucket.url,
                "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
                "ACTED": str(self.root / "acted"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def watching(self, process: subprocess.Popen[str]) -> bool:
        return process.poll() is None and f'"pid": {process.pid}' in self.lease

    @property
    def lease(self) -> str:
        try:
            return self.bucket.get(KEYS.lease).data.decode()
        except NotFound:
            return ""

    def crashed(self, names: Sequence[str]) -> None:
        for name in names:
            store(self.bucket, name, **CRASHED)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@contextmanager
def opened(root: Path) -> Iterator[Yard]:
    with tempfile.TemporaryDirectory(prefix="wf-", dir="/tmp") as short:
        Path(short).chmod(0o700)
        yard = Yard(root, Path(short) / "r")
        try:
            yield yard
        finally:
            for process in yard.running:
                process.kill()
                process.communicate()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with opened(tmp_path) as made:
        yield made


def test_of_two_watchers_one_acts_and_the_other_takes_over_when_it_is_killed_in_the_middle(yard: Yard) -> None:
    """The first one is killed by the command of one job, while those of others run; that one's end is not known."""
    names = [f"job-{n:02}" for n in range(24)]
    deadly = f'{NOTE}; if [ "$WAL_AGENT_JOB" = job-05 ]; then kill -9 $PPID; fi'
    first = yard.watch(deadly, "--at-once", "2", "--most", "10")
    until(lambda: yard.watching(first), "the first one watches")
    second = yard.watch(NOTE, "--at-once", "2", "--most", "10")
    assert second.stderr is not None
    assert "standing by" in second.stderr.readline()
    yard.crashed(names[:12])
    assert first.wait(60) == -signal.SIGKILL
    yard.crashed(names[12:])
    over = {"done", "unknown"}  # a command that could not be started yet is tried again

    def is_over() -> bool:
        seen = yard.outcomes  # at one moment: between two looks the last ones may begin
        return seen.keys() <= over and seen.total() == len(names)

    until(is_over, "the second one acted on all")
    code, err = ended(second)
    assert code == 128 + signal.SIGTERM and "not known whether the command ran" in err
    counts = Counter(line.split()[0] for line in yard.acted)
    assert set(counts.values()) == {1}, counts
    lost = {act.job for act in yard.memory.acts if act.outcome == "unknown"}
    assert "job-05" in lost and len(lost) <= 10
    assert set(names) - set(counts) <= lost, "what is not told as unknown was acted on"


def test_the_next_epoch_is_another_matter_and_what_is_not_asked_for_is_left(yard: Yard) -> None:
    watcher = yard.watch(NOTE, "--on", "crashed,released")
    yard.crashed(["a"])
    until(lambda: yard.acted == ["a 3 crashed"], "the crash")
    store(yard.bucket, "a", ttl=1e4, epoch=4)
    store(yard.bucket, "b", state="released", reason=DRAINED, agent="$(touch hacked)`touch hacked`;\x1b[2J\n")
    store(yard.bucket, "c", state="released", reason="paused", until=1000.5)
    store(yard.bucket, "d", state="released", reason="the agent ended with 1")
    until(lambda: len(yard.acted) == 2, "the drained one")
    store(yard.bucket, "a", **CRASHED, epoch=4)
    until(lambda: len(yard.acted) == 3, "the second crash")
    assert yard.acted == ["a 3 crashed", "b 3 released", "a 4 crashed"]
    until(lambda: yard.outcomes == {"done": 2}, "both are remembered")
    code, err = ended(watcher)
    assert code == 128 + signal.SIGTERM and "\x1b" not in err and not (yard.root / "hacked").exists()
    assert {(act.job, act.epoch) for act in yard.memory.acts} == {("a", 4), ("b", 3)}


def test_once_acts_once_tells_what_failed_and_gives_the_watch_back(yard: Yard) -> None:
    yard.crashed(["a", "b"])
    command = f"{NOTE}; echo on-stdout; case $WAL_AGENT_JOB in a) exit 3;; b) sleep 60;; esac"
    _, err = (one := yard.watch(command, "--once", "--limit", "3")).communicate(timeout=60)
    out, _ = (two := yard.watch(command, "--once")).communicate(timeout=60)
    assert (one.returncode, two.returncode, out) == (0, 0, "")
    orders = [f"2 crashed: {x} (epoch 3), {y} (epoch 3)" for x, y in ("ab", "ba")]  # they wait equally long
    assert any(order in err for order in orders) and "on-stdout" in err
    assert "for a (epoch 3, crashed) ended with 3" in err and "for b (epoch 3, crashed) ended with 124" in err
    assert len(yard.acted) == 2 and yard.outcomes == {"failed": 2}, "tried again only later"
    assert '"state": "closed"' in yard.lease


def test_once_beside_another_watcher_is_not_now(yard: Yard) -> None:
    first = yard.watch(NOTE)
    until(lambda: yard.watching(first), "the first one watches")
    _, err = (once := yard.watch(NOTE, "--once")).communicate(timeout=60)
    assert once.returncode == 75 and f"pid {first.pid}" in err


def test_a_damaged_lease_of_the_watchers_says_what_to_do(yard: Yard) -> None:
    yard.bucket.put(KEYS.lease, b"{")
    _, err = (one := yard.watch(NOTE, "--once")).communicate(timeout=60)
    assert one.returncode == 73 and "delete fleet-watch.json" in err


def test_what_needs_a_host_is_served_as_a_number(yard: Yard) -> None:
    """For an autoscaler: with no command to run, too."""
    yard.crashed(["a", "b"])
    store(yard.bucket, "c", state="released", reason=DRAINED)
    store(yard.bucket, "d", state="closed")
    process = yard.watch("", "--metrics-addr", "127.0.0.1:0")
    assert process.stderr is not None
    url = next(line.split()[-1] for line in process.stderr if "metrics: http" in line)

    told = list[str]()

    def asked() -> bool:
        with suppress(HTTPError), urlopen(url) as answer:
            told.append(answer.read().decode())
        return bool(told)

    until(asked, "it has looked")
    assert "wal_agent_fleet_jobs_without_host 3.0" in told[0]
    assert 'wal_agent_fleet_jobs{state="crashed"} 2.0' in told[0]
    assert ended(process)[0] == 143


class AwayAfterTheFirst(MemoryBucket):
    """No answer to what is to be remembered, from the second time on and for a while; then all is well."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self.tries, self.stop = 0, stop

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        if key == KEY:
            self.tries += 1
            if 1 < self.tries < 20:
                raise Unavailable("away")
        version = super().put(key, data, if_version=if_version)
        if key == KEY and self.tries > 1:
            self.stop.set()
        return version


def test_how_a_command_ended_is_remembered_when_the_bucket_is_back(yard: Yard) -> None:
    stop = threading.Event()
    bucket, said = AwayAfterTheFirst(stop), list[str]()
    store(bucket, "a", **CRASHED)
    env = {"PATH": os.environ["PATH"], "WAL_AGENT_RUNTIME_DIR": str(yard.runtime), "ACTED": str(yard.root / "acted")}
    wanted = WatchOptions(NOTE, every=0.01, ttl=3600.0)
    Watcher(JobStore(bucket, KEYS, FakeClock(), random.Random(1)), wanted, env, said.append, stop).go()
    assert [(act.job, act.outcome) for act in decode_memory(bucket.get(KEY).data).acts] == [("a", "done")]
    assert yard.acted == ["a 3 crashed"] and said[1:] == ["waiting: away"]


def watcher(bucket: MemoryBucket, yard: Yard, wanted: WatchOptions, stop: threading.Event, said: list[str]) -> Watcher:
    env = {"PATH": os.environ["PATH"], "WAL_AGENT_RUNTIME_DIR": str(yard.runtime), "ACTED": str(yard.root / "acted")}
    return Watcher(JobStore(bucket, KEYS, FakeClock(), random.Random(1)), wanted, env, said.append, stop)


def test_a_watcher_that_is_told_to_end_begins_nothing_more_and_counts_no_try(yard: Yard) -> None:
    """Of six jobs, three at a time: one is acted on, what runs then is ended, and the rest is not begun."""
    stop, bucket, said = threading.Event(), MemoryBucket(), list[str]()
    for n in range(6):
        store(bucket, f"job-{n}", **CRASHED)
    slow = f'trap "" TERM; mkdir "$ACTED.first" 2>/dev/null && exit 0; trap - TERM; {NOTE}; sleep 60'
    at = watcher(bucket, yard, WatchOptions(slow, every=0.01, at_once=3, ttl=3600.0, tries=1), stop, said)

    def end_it() -> None:
        try:
            until(lambda: len(yard.acted) >= 2, "two began")
        finally:
            stop.set()

    threading.Thread(target=end_it).start()
    at.go()
    assert 2 <= len(yard.acted) <= 3
    assert [act.outcome for act in decode_memory(bucket.get(KEY).data).acts] == ["done"]
    assert sum("was not run to its end" in line for line in said) == 5


class Taken(MemoryBucket):
    """The watchers' lease is deleted, or becomes another's, when something is remembered."""

    def __init__(self, fate: bytes) -> None:
        super().__init__()
        self.fate, self.done = fate, False

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        version = super().put(key, data, if_version=if_version)
        if key == KEY and not self.done:
            self.done = True
            self.delete(KEYS.lease)
            if self.fate:
                super().put(KEYS.lease, self.fate)
        return version


@pytest.mark.parametrize(
    ("fate", "error", "words"),
    [(b"", Fenced, "was deleted"), (b"{", Damaged, "is damaged")],
    ids=["deleted", "damaged"],
)
def test_why_the_watch_was_lost_is_told_as_it_is(yard: Yard, fate: bytes, error: type[Exception], words: str) -> None:
    """Its one round takes until a renewal has met what stands there."""
    bucket, said = Taken(fate), list[str]()
    store(bucket, "a", **CRASHED)
    at = watcher(bucket, yard, WatchOptions("sleep 4", once=True, ttl=2.0), threading.Event(), said)
    with pytest.raises(error, match=words):
        at.go()


def test_the_environment_tells_only_what_can_be_used_as_it_stands() -> None:
    key = "ghp_" + "a1B2c3D4e5" * 4
    for agent, workspace, told in [
        ("gemini", "/w/a b", ("gemini", "/w/a b")),
        ("gemini --yolo", "/srv/" + "a" * 1500, ("", "")),
        ("$(reboot)", "/w/\x1b[2J", ("", "")),
        ("claude", f"/w/{key}", ("claude", "")),
    ]:
        env = command_environment({}, classify_job(seen(agent=agent, workspace=workspace), ELSEWHERE), "u")
        assert (env["FLEET_AGENT"], env["FLEET_WORKSPACE"]) == told


def test_a_run_that_falls_silent_is_named_at_once_and_acted_on_only_by_its_lease() -> None:
    """Also one that began behind the last look."""
    bucket, stop, said, clock = MemoryBucket(), threading.Event(), list[str](), FakeClock()
    store(bucket, "web", ttl=1e4)
    asked = 0

    def silent() -> set[tuple[str, int]]:
        nonlocal asked
        asked += 1
        clock.sleep(1.0)
        if asked == 3:
            store(bucket, "late", ttl=1e4)
        if asked == 9:
            stop.set()
        return {("other", 3), *([("late", 3)] if asked > 3 else [("web", 3), ("web", 2)] if asked < 2 else [])}

    with tempfile.TemporaryDirectory(prefix="wf-", dir="/tmp") as short:
        Path(short).chmod(0o700)
        env = {"PATH": os.environ["PATH"], "HOME": short, "WAL_AGENT_RUNTIME_DIR": f"{short}/r"}
        wanted = WatchOptions("exit 1", every=1000.0)
        Watcher(JobStore(bucket, KEYS, clock, random.Random(1)), wanted, env, said.append, stop, silent=silent).go()
    named = [line for line in said if "suspect" in line]
    assert ["web (epoch 3)" in named[0], "late (epoch 3)" in named[1], len(named)] == [True, True, 2]

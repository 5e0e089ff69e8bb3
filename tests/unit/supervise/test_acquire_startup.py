"""concurrency.py and supervise/lease_keeper.py: what hangs is left behind, and what only waits ends when the run is
to."""

from __future__ import annotations

import threading

import pytest

from wal_agent.bucket.base import MemoryBucket
from wal_agent.concurrency import call_with_timeout, prefetch_map
from wal_agent.supervise.lease_keeper import UNBROKEN, InterruptibleBucket, InterruptibleClock, StartupInterrupt

PATIENCE = 60.0


def fails() -> str:
    raise KeyError


def test_what_is_done_in_time_is_given_or_raised() -> None:
    assert call_with_timeout(PATIENCE, lambda: "done", "late") == "done"
    with pytest.raises(KeyError):
        call_with_timeout(PATIENCE, fails, "late")


def test_what_hangs_is_left_behind() -> None:
    never = threading.Event()
    assert call_with_timeout(0.01, lambda: str(never.wait(PATIENCE)), "late") == "late"
    never.set()


class Ended(Exception):
    """As a signal is reported."""


class Signal:
    def __init__(self) -> None:
        self.came = False

    def check(self) -> None:
        if self.came:
            raise Ended


def test_a_wait_ends_when_the_run_is_to() -> None:
    signal = Signal()
    clock = InterruptibleClock(StartupInterrupt(signal.check))
    clock.sleep(0.001)
    signal.came = True
    with pytest.raises(Ended):
        clock.sleep(5)


def test_no_read_is_begun_when_the_run_is_to_also_by_a_thread_that_reads_ahead() -> None:
    signal = Signal()
    early = StartupInterrupt(signal.check)
    bucket = InterruptibleBucket(MemoryBucket(), early)
    bucket.put("a", b"1")
    assert bucket.get("a").data == b"1"
    signal.came = True
    with pytest.raises(Ended):
        bucket.get("a")
    with pytest.raises(Ended):
        list(prefetch_map(bucket.get, ["a", "a", "a"], 2))


def test_neither_the_log_nor_the_lease_is_broken_off() -> None:
    """Not in their own threads; and not at all once the job is being given back."""
    signal = Signal()
    early = StartupInterrupt(signal.check)
    bucket = InterruptibleBucket(MemoryBucket(), early)
    bucket.put("a", b"1")
    signal.came = True
    found: list[bytes] = []
    writer = threading.Thread(target=lambda: found.append(bucket.get("a").data), name="writer")
    writer.start()
    writer.join(PATIENCE)
    early.armed = False
    assert found == [b"1"] and bucket.get("a").data == b"1"


def test_what_must_not_be_left_half_done_has_a_little_longer() -> None:
    signal, now = Signal(), [100.0]
    early = StartupInterrupt(signal.check, lambda: now[0])
    signal.came = True
    with early.uninterrupted():
        early.check()
        now[0] += UNBROKEN - 1
        early.check()
        now[0] += 2
        with pytest.raises(Ended):
            early.check()
    with early.uninterrupted():
        early.check()
    with pytest.raises(Ended):
        early.check()

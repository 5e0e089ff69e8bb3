"""supervise/lease_keeper.py: the renewer, and the monitor apart from it."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.supervise.crew import PATIENCE, until
from tests.unit.wal.world import KEYS, FakeClock, claim
from wal_agent.bucket.base import MemoryBucket, Version
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.errors import Fenced, Unavailable, UsageError, WalAgentError
from wal_agent.events import Event
from wal_agent.recovery.lease_policy import Local, expires_in
from wal_agent.supervise.lease_keeper import LeaseKeeper, LeaseTiming, RunProgress, lease_health, wanted_ttl
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseDoc, acquire, encode_lease, read_lease
from wal_agent.wal.store import JobStore

TTL = 0.06  # real seconds between two renewals: a third; the clock that decides is the test's own


@settings(deadline=None)
@given(st.floats(1, 3600))
def test_the_times_of_every_allowed_ttl_hold_together(ttl: float) -> None:
    """PROTOCOL.md: ttl > renew deadline > 1.2 x period; an allow has its margin; one lost renewal is no outage."""
    t = LeaseTiming(ttl)
    assert t.ttl > t.renew_deadline > 1.2 * t.period > 0
    assert t.margin > 0 and t.ttl - t.margin > t.renew_deadline


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan")])
def test_a_ttl_that_cannot_be_kept_is_refused_with_what_to_do(ttl: float) -> None:
    with pytest.raises(UsageError, match="--ttl"):
        LeaseTiming(ttl)


@settings(deadline=None)
@given(st.floats(1, 3600), st.floats(0, 1e6), st.floats(0, 2))
def test_health_goes_by_the_sending_of_the_last_renewal(ttl: float, sent: float, share: float) -> None:
    """R7: thresholds are the renew deadline and the ttl, both reached exactly on time and never later."""
    t = LeaseTiming(ttl)
    now = sent + ttl * share
    age = now - sent
    expected = "expired" if age >= t.ttl else "late" if age >= t.renew_deadline else "fresh"
    assert lease_health(t, sent, now) == expected


class Pulse:
    """A heartbeat in threads, on a clock that the test moves and a bucket whose puts it may hold or fail."""

    def __init__(self, spool: str = "") -> None:
        self.clock = FakeClock()
        self.hang: threading.Event | None = None
        self.hanging = threading.Event()
        self.away = False
        self.puts = 0
        bucket = MemoryBucket(clock=self.clock.now)
        self.inner = bucket
        self.lease = acquire(
            JobStore(bucket, KEYS, self.clock, random.Random(7)),
            seen=None,
            claim=replace(claim("a"), ttl=TTL, spool=spool),
            log_epoch=0,
        )
        put = bucket.put

        def slow(key: str, data: bytes, *, if_version: Version | None = None) -> Version:
            self.puts += 1
            if self.hang is not None:
                self.hanging.set()
                self.hang.wait(PATIENCE)
            if self.away:
                raise Unavailable("away")
            return put(key, data, if_version=if_version)

        bucket.put = slow  # type: ignore[method-assign]
        self.expired: list[float] = []
        self.lacks = 0  # how often it has no descriptor to look at processes with
        self.lost: list[WalAgentError] = []
        self.heartbeat = LeaseKeeper(LeaseTiming(TTL), self.clock, self.lease, self)
        self.doing = RunProgress()

    def progress(self) -> RunProgress:
        return self.doing

    def lease_expired(self) -> None:
        self.expired.append(self.clock.at)
        if len(self.expired) <= self.lacks:
            raise OSError(errno.EMFILE, "too many open files")

    def lease_lost(self, error: WalAgentError) -> None:
        self.lost.append(error)

    def looks(self, count: int = 5) -> None:
        """Wait until the monitor has looked at the clock so many times more."""
        seen = 0
        now = self.clock.boot
        done = threading.Event()

        def counted() -> float:
            nonlocal seen
            if threading.current_thread().name == "monitor":
                seen += 1
                if seen >= count:
                    done.set()
            return now()

        self.clock.boot = counted  # type: ignore[method-assign]
        assert done.wait(PATIENCE)
        self.clock.boot = now  # type: ignore[method-assign]


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    made = Pulse()
    made.heartbeat.start()
    yield made
    if made.hang is not None:
        made.hang.set()
    made.heartbeat.stop()


def test_each_beat_tells_what_the_run_is_doing(pulse: Pulse) -> None:
    pulse.doing = RunProgress("executing_tools", "shell", 7)
    until(lambda: pulse.lease.doc.seq == 7, "a renewal with the beat")
    seen = read_lease(pulse.inner, KEYS)
    assert seen is not None
    assert (seen.doc.phase, seen.doc.tool, seen.doc.state) == ("executing_tools", "shell", "held")
    first = seen.doc.beat
    until(lambda: pulse.lease.doc.beat > first, "the next one")


def test_a_renewer_that_hangs_does_not_stop_the_monitor(pulse: Pulse) -> None:
    """PROTOCOL.md: the renewer may hang in a request as long as it likes; the lease runs out all the same. That is told
    until it is renewed: a tool may begin meanwhile, when a person approves a call that was allowed before."""
    pulse.hang = threading.Event()
    assert pulse.hanging.wait(PATIENCE)
    assert pulse.heartbeat.health == "fresh" and pulse.heartbeat.may_allow()
    pulse.clock.at += TTL
    until(lambda: pulse.expired, "the monitor tells")
    assert not pulse.heartbeat.may_allow()
    until(lambda: len(pulse.expired) >= 3, "it is told again while it lasts")
    pulse.hang.set()
    pulse.hang = None
    until(lambda: pulse.heartbeat.health == "fresh", "the bucket is back and the lease is renewed")
    pulse.looks()
    pulse.expired.clear()
    pulse.looks()
    assert pulse.expired == []
    pulse.away = True
    pulse.clock.at += TTL
    until(lambda: pulse.expired, "the second running out")


def test_without_a_descriptor_for_a_look_the_monitor_goes_on(pulse: Pulse) -> None:
    """R7: running tools are ended once they can be found."""
    pulse.lacks, pulse.away = 2, True
    pulse.clock.at += TTL
    until(lambda: len(pulse.expired) > 3, "it is told again")


def test_an_outage_is_tried_again_and_is_no_loss(pulse: Pulse) -> None:
    pulse.away = True
    seen = pulse.puts
    until(lambda: pulse.puts >= seen + 3, "it is tried again")
    assert pulse.lost == [] and pulse.heartbeat.lost is None
    pulse.away = False
    beat = pulse.lease.doc.beat
    until(lambda: pulse.lease.doc.beat > beat, "a renewal")


def test_a_lease_that_is_anothers_is_told_once_and_never_renewed_again(pulse: Pulse) -> None:
    """I2, R10: the renewer ends; nothing is allowed any more."""
    hold = pulse.hang = threading.Event()
    assert pulse.hanging.wait(PATIENCE)
    version = pulse.inner.get(KEYS.lease).version
    taken = MemoryBucket.put(pulse.inner, KEYS.lease, taken_by_b(pulse.lease.doc), if_version=version)
    hold.set()
    until(lambda: pulse.lost, "the loss is told")
    assert isinstance(pulse.lost[0], Fenced) and pulse.heartbeat.lost is pulse.lost[0]
    assert not pulse.heartbeat.may_allow()
    renewer = next(t for t in pulse.heartbeat._threads if t.name == "renewer")
    renewer.join(PATIENCE)
    assert not renewer.is_alive() and len(pulse.lost) == 1
    assert pulse.inner.get(KEYS.lease).version == taken


@pytest.fixture
def spooling() -> Iterator[Pulse]:
    made = Pulse(spool="/spools/shop-a")
    made.heartbeat.start()
    yield made
    made.heartbeat.stop()


def test_in_a_job_that_spools_an_outage_ends_no_tool_and_an_allow_has_no_date(spooling: Pulse) -> None:
    """R9: no timeout takes the job away. What deletes in the bucket still goes by the date (R4, R7)."""
    spooling.away = True
    spooling.clock.at += 100 * TTL
    spooling.looks()
    assert spooling.expired == [] and spooling.heartbeat.may_allow() and not spooling.heartbeat.may_delete()


def test_a_job_that_spools_is_fenced_as_any_other(spooling: Pulse) -> None:
    """I2: accept-loss elsewhere, or an unlocking; and nothing is allowed once the lease is given up (R6)."""
    hold = threading.Event()
    spooling.hang = hold
    assert spooling.hanging.wait(PATIENCE)
    version = spooling.inner.get(KEYS.lease).version
    MemoryBucket.put(spooling.inner, KEYS.lease, taken_by_b(spooling.lease.doc), if_version=version)
    spooling.hang = None
    hold.set()
    until(lambda: spooling.lost, "the loss is told")
    assert not spooling.heartbeat.may_allow()


def test_a_job_that_spools_allows_nothing_while_it_is_given_up() -> None:
    """R6."""
    pulse = Pulse(spool="/spools/shop-a")
    assert pulse.heartbeat.may_allow()
    pulse.lease.settle("released")
    assert not pulse.heartbeat.may_allow()


def taken_by_b(doc: LeaseDoc) -> bytes:
    return encode_lease(msgspec.structs.replace(doc, run="b", epoch=doc.epoch + 1, nonce="n"))


def test_no_renewal_is_told_of_a_lease_that_is_being_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewer was on its way while the run settled: nothing was written, so nothing may be told."""
    pulse = Pulse()
    told: list[Event] = []
    heartbeat = LeaseKeeper(LeaseTiming(TTL), pulse.clock, pulse.lease, pulse, told.append)
    beats: list[str] = []

    def settled() -> RunProgress:
        pulse.lease.settle("closed")
        beats.append("beat")
        return RunProgress()

    monkeypatch.setattr(pulse, "progress", settled)
    heartbeat.start()
    until(lambda: len(beats) >= 3, "two renewals came behind the end")
    heartbeat.stop()
    assert told == []


def test_after_stop_nothing_is_renewed() -> None:
    """R6: a held lease must not follow a settled one."""
    pulse = Pulse()
    pulse.heartbeat.start()
    until(lambda: pulse.lease.doc.beat > 1, "a renewal")
    pulse.heartbeat.stop()
    for thread in pulse.heartbeat._threads:
        thread.join(PATIENCE)
    assert not any(t.is_alive() for t in pulse.heartbeat._threads)
    beat = pulse.lease.doc.beat
    pulse.lease.settle("released")
    doc = pulse.lease.doc
    assert (doc.state, doc.beat) == ("released", beat + 1)


@pytest.mark.parametrize(
    ("phase", "lasts", "ttl"),
    [("awaiting_user", 61.0, 120.0), ("awaiting_user", 60.0, 30.0), ("awaiting_model", 9000.0, 30.0), ("", 0.0, 30.0)],
)
def test_only_an_agent_that_waits_for_a_person_has_a_longer_ttl(phase: str, lasts: float, ttl: float) -> None:
    assert wanted_ttl(30.0, phase, lasts) == ttl


class Ticks(threading.Event):
    """The keeper's wait, by a clock of the test's own; over after `hours`."""

    def __init__(self, clock: FakeClock, hours: float) -> None:
        super().__init__()
        self.clock, self.end = clock, clock.at + 3600 * hours

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.at += timeout or 0.0
        return self.clock.at >= self.end


@pytest.mark.parametrize(("phase", "most"), [("awaiting_user", 100), ("awaiting_model", 360)])
def test_the_requests_of_an_hour(phase: str, most: int) -> None:
    """Cost: each renewal is one put and nothing else."""
    pulse = Pulse()
    meter = MeterBucket(pulse.inner)
    claimed = replace(claim("a"), ttl=30.0)
    lease = acquire(JobStore(meter, Keys("cost"), pulse.clock, random.Random(7)), seen=None, claim=claimed, log_epoch=0)
    pulse.doing = RunProgress(phase, since=pulse.clock.now())
    keeper = LeaseKeeper(LeaseTiming(30.0), pulse.clock, lease, pulse)
    before = meter.snapshot()
    keeper._stop = Ticks(pulse.clock, 1)
    keeper._renewer()
    after = meter.snapshot()
    assert after.requests - before.requests == after.put.requests - before.put.requests
    assert most * 0.9 <= after.put.requests - before.put.requests <= most
    assert lease.may_allow(5.0) and keeper.health == "fresh"


def test_the_lease_says_the_longer_ttl_and_the_short_one_again_once_the_agent_works() -> None:
    pulse = Pulse()
    keys = Keys("nap")
    lease = acquire(
        JobStore(pulse.inner, keys, pulse.clock, random.Random(7)),
        seen=None,
        claim=replace(claim("a"), ttl=30.0),
        log_epoch=0,
    )
    pulse.doing = RunProgress("awaiting_user", since=pulse.clock.now())
    keeper = LeaseKeeper(LeaseTiming(30.0), pulse.clock, lease, pulse)
    keeper._stop = Ticks(pulse.clock, 0.05)
    keeper._renewer()
    seen = read_lease(pulse.inner, keys)
    assert seen is not None and (seen.doc.ttl, lease.ttl) == (120.0, 120.0)
    assert expires_in(seen, Local("b", "p")) > 30  # whoever would take it waits that long
    pulse.doing = RunProgress("awaiting_model", since=pulse.clock.now())
    keeper._stop = Ticks(pulse.clock, 11 / 3600)
    keeper._renewer()
    seen = read_lease(pulse.inner, keys)
    assert seen is not None and (seen.doc.ttl, lease.ttl) == (30.0, 30.0)


def test_a_shorter_ttl_counts_from_the_moment_that_it_is_sent() -> None:
    """R7: it may have landed although no reply came, and a taker goes by it."""
    pulse = Pulse()
    pulse.lease.renew(ttl=4 * TTL)
    assert pulse.lease.ttl == 4 * TTL
    pulse.away = True
    with pytest.raises(Unavailable):
        pulse.lease.renew(ttl=TTL)
    assert pulse.lease.ttl == TTL
    pulse.clock.at += TTL
    assert not pulse.lease.may_allow(0.0)
    with pytest.raises(Unavailable):
        pulse.lease.renew(ttl=4 * TTL)
    assert pulse.lease.ttl == TTL  # a longer one counts once it is acknowledged
    pulse.away = False
    pulse.lease.renew(ttl=4 * TTL)
    assert pulse.lease.ttl == 4 * TTL and pulse.lease.may_allow(0.0)

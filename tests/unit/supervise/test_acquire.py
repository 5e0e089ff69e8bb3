"""supervise/lease_keeper.py: decide, wait where asked, open. Time is the test's own."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.wal.world import FIELDS, KEYS, TTL, World, claim
from wal_agent.bucket.base import Object
from wal_agent.errors import ConfigError, LeaseHeld, Unavailable
from wal_agent.operate.pause import end_pause
from wal_agent.recovery.lease_policy import Pauses
from wal_agent.supervise.lease_keeper import (
    AcquireOptions,
    Interrupted,
    LeaseWatch,
    acquire_job,
    check_signals,
    sleep_unless_signalled,
)
from wal_agent.supervise.options import Screen
from wal_agent.wal import lease
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.store import JobStore

NOWHERE = AcquireOptions(Path("/nowhere/spools"))


class Taking:
    def __init__(self) -> None:
        self.world = World()
        self.told: list[str] = []
        self.drawn: list[str] = []

    def take(
        self, run: str, wait: bool = False, options: AcquireOptions = NOWHERE, pauses: Pauses = "wait", known: int = 0
    ) -> OpenedJob:
        return acquire_job(
            JobStore(self.world.bucket, KEYS, self.world.clock, random.Random(7)),
            claim(run),
            FIELDS,
            replace(options, wait=wait, pauses=pauses, known_epoch=known),
            Screen(self.told.append, self.told.extend, redraw=self.drawn.append),
        )

    def faster(self, _: str) -> None:
        self.world.open("b")


@pytest.fixture
def taking() -> Taking:
    return Taking()


def test_a_first_start_opens_at_once_and_leaves_no_probe(taking: Taking) -> None:
    job = taking.take("a")
    assert job.lease.epoch == 1 and taking.told == []
    assert [e.key for e in taking.world.inner.list("")] == [KEYS.lease, KEYS.segment(1)]


def test_a_job_that_ran_here_and_is_gone_does_not_begin_anew(taking: Taking) -> None:
    """A bucket that holds nothing of it is not mounted, or emptied; only a person knows which."""
    with pytest.raises(Unavailable, match=r"has run on this machine \(epoch 4\)") as caught:
        taking.take("a", known=4)
    assert "wal-agent doctor --forget --job shop --bucket" in caught.value.hint and "--job shop" in caught.value.hint
    assert [*taking.world.inner.list("")] == []


def test_a_known_job_whose_lease_alone_is_gone_is_recovered(taking: Taking) -> None:
    taking.take("a")
    taking.world.inner.delete(KEYS.lease)
    assert taking.take("b", known=1).lease.epoch == 2


def test_with_wait_a_known_job_is_waited_for(taking: Taking) -> None:
    """A service that starts before its disk is mounted."""
    sleep, slept = taking.world.clock.sleep, 0

    def sleeping(seconds: float) -> None:
        nonlocal slept
        sleep(seconds)
        slept += 1
        if slept == 20:
            close_job(taking.world.open("b"), "released")

    taking.world.clock.sleep = sleeping  # type: ignore[method-assign]
    assert taking.take("a", wait=True, known=1).lease.epoch == 2
    assert len(taking.told) == 1 and "holds neither its lease nor its log" in taking.told[0]


def test_a_live_owner_is_refused_in_one_line(taking: Taking) -> None:
    taking.take("a")
    with pytest.raises(LeaseHeld, match=r"job shop is running on host-a \(pid 7"):
        taking.take("b")
    seen = leases.read_lease(taking.world.inner, KEYS)
    assert seen is not None and seen.doc.run == "a"


def test_waiting_ends_when_the_lease_has_run_out_and_not_before(taking: Taking) -> None:
    """PROTOCOL.md: another host's owner is dead one ttl after its last heartbeat; --wait says so once, then opens."""
    taking.take("a")
    began = taking.world.clock.at
    job = taking.take("b", wait=True)
    assert job.lease.epoch == 2 and job.replay.state.openings[-1].opening.cause == "dead"
    assert TTL <= taking.world.clock.at - began < TTL + 3
    assert len(taking.told) == 1 and taking.told[0].startswith("waiting: job shop is running on host-a")


def test_waiting_ends_when_the_owner_gives_the_job_up(taking: Taking) -> None:
    first = taking.take("a")
    sleep = taking.world.clock.sleep
    slept = 0

    def sleeping(seconds: float) -> None:
        nonlocal slept
        sleep(seconds)
        slept += 1
        if slept == 20:
            close_job(first, "released")
        elif slept < 20:
            first.lease.renew()

    taking.world.clock.sleep = sleeping  # type: ignore[method-assign]
    assert taking.take("b", wait=True).replay.state.openings[-1].opening.cause == "released"


def test_a_silent_owner_is_outlasted_with_a_countdown(taking: Taking) -> None:
    """At a terminal the start of a job whose machine is lost waits one ttl by itself."""
    taking.take("a")
    began = taking.world.clock.at
    job = taking.take("b", options=replace(NOWHERE, outlast=True))
    assert job.lease.epoch == 2 and TTL <= taking.world.clock.at - began < TTL + 3
    assert taking.told == [] and taking.drawn[-1] == ""
    left = [float(line.split(" s if")[0].split()[-1]) for line in taking.drawn[:-1]]
    assert left == sorted(left, reverse=True) and left[0] == pytest.approx(TTL, abs=2)


def test_an_owner_that_renews_is_not_outlasted(taking: Taking) -> None:
    first = taking.take("a")
    sleep = taking.world.clock.sleep

    def sleeping(seconds: float) -> None:
        sleep(seconds)
        first.lease.renew()

    taking.world.clock.sleep = sleeping  # type: ignore[method-assign]
    with pytest.raises(LeaseHeld):
        taking.take("b", options=replace(NOWHERE, outlast=True))


def test_a_faster_one_is_waited_for_as_well(taking: Taking) -> None:
    """Two that wait for one dead owner see it end at the same moment; the loser goes on waiting instead of failing."""
    taking.take("a")
    taking.world.clock.at += TTL + 1
    taking.world.bucket.before_put = taking.faster
    job = taking.take("c", wait=True)
    assert job.lease.epoch == 3
    assert [o.opening.run for o in job.replay.state.openings] == ["a", "b", "c"]
    assert len(taking.told) == 1 and "host-b" in taking.told[0]


def test_a_faster_one_is_a_refusal_without_wait(taking: Taking) -> None:
    taking.take("a")
    taking.world.clock.at += TTL + 1
    taking.world.bucket.before_put = taking.faster
    with pytest.raises(LeaseHeld, match="at the same moment"):
        taking.take("c")


def test_an_unlocked_job_is_waited_for_without_being_asked(taking: Taking) -> None:
    """R8: the old owner on another host may still run for one ttl."""
    taking.take("a")
    seen = leases.read_lease(taking.world.inner, KEYS)
    assert seen is not None
    leases.unlock(JobStore(taking.world.inner, KEYS, taking.world.clock, random.Random(1)), seen=seen, reason="by hand")
    began = taking.world.clock.at
    assert taking.take("b").lease.epoch == 2
    assert taking.world.clock.at - began >= TTL
    assert len(taking.told) == 1


# ---- signals: they are blocked, so long steps ask


@pytest.fixture
def blocked() -> Iterator[None]:
    """The signals that end us are blocked in this thread, as in a run, and none is left over."""
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    yield
    while pending := signal.sigpending() & ending:
        signal.sigwait(pending)
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


@pytest.mark.usefixtures("blocked")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_a_pending_signal_ends_the_taking_with_the_shells_code(
    taking: Taking, number: signal.Signals, code: int
) -> None:
    """I6; nothing was opened, so nothing is left behind."""
    check_signals()
    signal.pthread_kill(threading.get_ident(), number)
    with pytest.raises(Interrupted, match=number.name) as caught:
        taking.take("a")
    assert caught.value.exit_code == code
    assert leases.read_lease(taking.world.inner, KEYS) is None


@pytest.mark.usefixtures("blocked")
def test_a_signal_that_we_were_started_to_ignore_ends_nothing() -> None:
    """nohup: who started us may have it blocked as well, and then it is pending all the same."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
        assert signal.SIGHUP in signal.sigpending()
        check_signals()
    finally:
        signal.sigwait({signal.SIGHUP})
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("blocked")
def test_a_signal_ends_the_waiting(taking: Taking) -> None:
    taking.take("a")
    sleep = taking.world.clock.sleep

    def sleeping(seconds: float) -> None:
        sleep(seconds)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    taking.world.clock.sleep = sleeping  # type: ignore[method-assign]
    began = taking.world.clock.at
    with pytest.raises(Interrupted):
        taking.take("b", wait=True)
    assert taking.world.clock.at - began < 1


def test_a_pause_is_as_long_as_said(taking: Taking) -> None:
    began = taking.world.clock.at
    sleep_unless_signalled(1.1, taking.world.clock)
    assert taking.world.clock.at - began == pytest.approx(1.1)


def test_only_a_version_that_was_watched_counts_as_unchanged(taking: Taking) -> None:
    """The proof of death that needs no clock but our own."""
    taking.take("a")
    seen = leases.read_lease(taking.world.inner, KEYS)
    assert seen is not None
    watch = LeaseWatch()
    assert [watch.unchanged(seen, now) for now in (100.0, 104.0)] == [0.0, 4.0]
    newer = lease.StoredLease(msgspec.structs.replace(seen.doc, beat=9), "other", seen.updated, seen.now)
    assert [watch.unchanged(newer, now) for now in (110.0, 113.0)] == [0.0, 3.0]


# ---- paused


def paused(taking: Taking, seconds: float, reason: str = "rate limit") -> None:
    close_job(taking.take("a"), "released", reason, until=taking.world.clock.now() + seconds)


def gets(taking: Taking) -> list[float]:
    """The times of the looks at the lease from now on."""
    found: list[float] = []
    inner = taking.world.bucket.get

    def get(key: str) -> Object:
        if key == KEYS.lease:
            found.append(taking.world.clock.at)
        return inner(key)

    taking.world.bucket.get = get  # type: ignore[method-assign]
    return found


def test_a_pause_is_waited_for_with_few_looks_and_told_once(taking: Taking) -> None:
    paused(taking, 3600)
    began, looks = taking.world.clock.at, gets(taking)
    job = taking.take("b")
    assert job.replay.state.openings[-1].opening.cause == "released"
    assert 3600 <= looks[-1] - began < 3601 and len(looks) <= 3600 / 15 + 3
    assert max(b - a for a, b in pairwise(looks)) < 31
    assert len(taking.told) == 1 and "(rate limit); to start it now, end the pause: wal-agent pause" in taking.told[0]


def test_a_pause_that_a_message_ends_is_over_at_once(taking: Taking) -> None:
    """`send --control resume`; it is asked for at each look, and nothing is waited for behind it."""
    paused(taking, 3600)
    began, asked = taking.world.clock.at, list[float]()

    def end() -> bool:
        asked.append(taking.world.clock.at)
        if len(asked) < 3:
            return False
        return end_pause(taking.world.inner, KEYS).state == "ended"

    job = taking.take("b", options=replace(NOWHERE, end_pause=end))
    assert job.lease.epoch == 2 and len(asked) == 3 and taking.world.clock.at - began < 2 * 31


def test_whoever_waits_for_a_pause_outlasts_the_bucket(taking: Taking) -> None:
    paused(taking, 600)
    looks, inner = gets(taking), taking.world.bucket.get

    def get(key: str) -> Object:
        if 1 <= len(looks) < 50:
            looks.append(0.0)
            raise Unavailable("away")
        return inner(key)

    taking.world.bucket.get = get  # type: ignore[method-assign]
    assert taking.take("b").lease.epoch == 2
    assert [line.split(":")[0] for line in taking.told] == ["waiting"] * 3 and "away" in taking.told[1]


@pytest.mark.parametrize(("away", "starts"), [(18.0, True), (25.0, False)])
def test_a_start_of_a_known_job_asks_for_twenty_seconds(taking: Taking, away: float, starts: bool) -> None:
    """Its first request is the read of the lease; one 503 there is no end of a start."""
    close_job(taking.take("a"), "released")
    until, inner = taking.world.clock.at + away, taking.world.bucket.get

    def get(key: str) -> Object:
        if taking.world.clock.at < until:
            raise Unavailable("503")
        return inner(key)

    taking.world.bucket.get = get  # type: ignore[method-assign]
    if starts:
        assert taking.take("b").lease.epoch == 2
    else:
        with pytest.raises(Unavailable, match="503"):
            taking.take("b")
        assert taking.world.clock.at < until


def test_conditions_that_a_known_store_has_lost_are_found_out(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    """I2: as Ceph does when its bucket becomes versioned. The start refuses before it takes the lease."""
    close_job(taking.take("a"), "released")
    before, inner = taking.world.inner.get(KEYS.lease).data, taking.world.inner.put

    def put(key: str, data: bytes, *, if_version: str | None = None) -> str:
        taking.world.inner.delete(key)
        return inner(key, data)

    with monkeypatch.context() as patch:
        patch.setattr(taking.world.inner, "put", put)
        with pytest.raises(ConfigError, match="a second create is refused: it was carried out"):
            taking.take("b", options=replace(NOWHERE, probe=True))
    assert taking.world.inner.get(KEYS.lease).data == before
    assert taking.take("b", options=replace(NOWHERE, probe=True)).lease.epoch == 2


def test_who_finds_it_taken_after_the_pause_is_refused(taking: Taking) -> None:
    paused(taking, 60)
    due = taking.world.clock.at + 60
    sleep = taking.world.clock.sleep

    def sleeping(seconds: float) -> None:
        sleep(seconds)
        if taking.world.clock.at >= due and not taken:
            taken.append(True)
            taking.world.open("c")

    taken: list[bool] = []
    taking.world.clock.sleep = sleeping  # type: ignore[method-assign]
    with pytest.raises(LeaseHeld, match="running on host-c"):
        taking.take("b")


def test_a_start_may_refuse_to_wait_for_a_pause(taking: Taking) -> None:
    paused(taking, 3600)
    began = taking.world.clock.at
    with pytest.raises(LeaseHeld, match=r"paused until .* UTC \(rate limit\)"):
        taking.take("b", pauses="refuse")
    assert taking.world.clock.at == began

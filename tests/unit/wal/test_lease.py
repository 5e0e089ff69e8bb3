"""wal/lease.py: the timing rules, R7, R8, R10, and a decoder that nothing can surprise."""

from __future__ import annotations

import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.world import KEYS, TTL, World, claim
from wal_agent.errors import Conflict, Damaged, Fenced, LeaseHeld, Unavailable
from wal_agent.wal import lease as leases
from wal_agent.wal.job import close_job


def test_the_timing_inequality() -> None:
    assert leases.timing_holds(30, 20, 10)
    for ttl, deadline, period in [(20, 20, 10), (30, 12, 10), (30, 20, 0), (30, 20, -1), (10, 20, 5)]:
        assert not leases.timing_holds(ttl, deadline, period)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(-100, 100), st.floats(0.1, 100), st.floats(0, 10))
def test_an_allow_is_in_time_or_not_sent(sent: float, since: float, ttl: float, margin: float) -> None:
    now = sent + since
    assert leases.may_allow(now, sent, ttl, margin) == (0 <= now - sent < ttl - margin)
    assert not leases.may_allow(sent + ttl + 0.001, sent, ttl, margin)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_an_epoch_is_above_all_that_was_seen(lease: int, log: int) -> None:
    assert leases.next_epoch(lease, log) > max(lease, log)


def test_r7_counts_from_the_sending_of_a_renewal_that_succeeded() -> None:
    world = World()
    job = world.open("a")
    world.clock.at += TTL - 3
    assert job.lease.may_allow(2) and not job.lease.may_allow(3)
    world.bucket.fates = ["dropped"]
    with pytest.raises(Unavailable):
        job.lease.renew()
    assert not job.lease.may_allow(3)

    def slow(key: str) -> None:
        world.clock.at += 5

    world.bucket.before_put = slow
    job.lease.renew(phase="executing_tools", tool="x", seq=9)
    world.clock.at += TTL - 5
    assert not job.lease.may_allow(0)  # sent 5 s before it came back
    seen = world.seen()
    assert seen is not None and (seen.doc.beat, seen.doc.phase, seen.doc.tool, seen.doc.seq) == (
        1,
        "executing_tools",
        "x",
        9,
    )


def test_a_renewal_whose_reply_was_lost_is_adopted() -> None:
    world = World()
    job = world.open("a")
    world.bucket.fates = ["lost"]
    with pytest.raises(Unavailable):
        job.lease.renew()
    job.lease.renew()  # R10: what stands there is mine, with another nonce
    job.lease.renew()
    seen = world.seen()
    assert seen is not None and seen.doc == job.lease.doc


def test_every_write_has_its_own_nonce() -> None:
    world = World()
    job = world.open("a")
    nonces = {job.lease.doc.nonce}
    for _ in range(5):
        job.lease.renew()
        nonces.add(job.lease.doc.nonce)
    assert len(nonces) == 6


def test_a_lease_that_is_anothers_is_lost_for_good() -> None:
    world = World()
    old = world.open("a")
    world.take_over("b")
    for _ in range(2):
        with pytest.raises(Fenced, match="taken over by host-b \\(epoch 2\\)"):
            old.lease.renew()
    assert not old.lease.may_allow(0)
    with pytest.raises(Fenced):
        old.lease.settle("closed")


def test_a_deleted_lease_is_lost() -> None:
    world = World()
    job = world.open("a")
    world.inner.delete(KEYS.lease)
    with pytest.raises(Fenced, match="was deleted"):
        job.lease.renew()


@pytest.mark.parametrize("fates", [["lost"], ["dropped"], ["lost", "dropped", "lost"]])
def test_settling_through_lost_replies(fates: list[str]) -> None:
    world = World()
    job = world.open("a")
    world.bucket.fates = fates
    job.lease.settle("released", "drained")
    seen = world.seen()
    assert seen is not None and (seen.doc.state, seen.doc.reason) == ("released", "drained")


def test_settling_does_not_wait_for_a_renewal_that_hangs() -> None:
    world = World()
    job = world.open("a")
    hanging, free = threading.Event(), threading.Event()

    def hang(key: str) -> None:
        hanging.set()
        free.wait(20)

    world.bucket.before_put = hang
    renewal = threading.Thread(target=job.lease.renew)
    renewal.start()
    try:
        assert hanging.wait(20)
        with pytest.raises(Unavailable, match="hangs"):
            job.lease.settle("closed", budget=0.05)
        assert close_job(job, "closed", budget=0.05) == "left"
        assert not free.is_set() and renewal.is_alive()
    finally:
        free.set()
        renewal.join()


def test_unlock_keeps_the_epoch_and_fences_the_owner() -> None:
    world = World()
    world.open("a")
    job = world.take_over("b")
    seen = world.seen()
    assert seen is not None
    doc = leases.unlock(world.bucket, KEYS, world.clock, world.rng, seen=seen, reason="by hand")
    assert (doc.state, doc.epoch, doc.run) == ("unlocked", 2, "b")
    with pytest.raises(Fenced, match="unlocked by hand"):
        job.lease.renew()
    with pytest.raises(Fenced):
        job.lease.settle("closed")


def test_unlock_names_the_lease_that_was_shown() -> None:
    world = World()
    job = world.open("a")
    seen = world.seen()
    assert seen is not None
    job.lease.renew()
    with pytest.raises(LeaseHeld, match="lives"):
        leases.unlock(world.bucket, KEYS, world.clock, world.rng, seen=seen, reason="")
    world.take_over("b")
    with pytest.raises(Fenced):
        leases.unlock(world.bucket, KEYS, world.clock, world.rng, seen=seen, reason="")


@pytest.mark.parametrize("fate", ["lost", "dropped"])
def test_unlock_through_a_lost_reply(fate: str) -> None:
    world = World()
    world.open("a")
    seen = world.seen()
    assert seen is not None
    world.bucket.fates = [fate]
    leases.unlock(world.bucket, KEYS, world.clock, world.rng, seen=seen, reason="", off=True)
    after = world.seen()
    assert after is not None and after.doc.state == "unlocked" and after.doc.off


def rewritten(world: World) -> None:
    """Somebody copied the object onto itself: the same bytes under another version."""
    found = world.inner.get(KEYS.lease)
    world.inner.put(KEYS.lease, found.data, if_version=found.version)


def test_unlock_of_a_lease_that_was_copied_onto_itself() -> None:
    world = World()
    world.open("a")
    seen = world.seen()
    assert seen is not None
    rewritten(world)
    leases.unlock(world.bucket, KEYS, world.clock, world.rng, seen=seen, reason="")
    after = world.seen()
    assert after is not None and after.doc.state == "unlocked" and len(world.bucket.puts) < 6


@pytest.mark.parametrize("what", ["acquire", "unlock", "renew", "settle"])
def test_a_store_that_refuses_what_it_should_take_is_not_asked_without_a_pause(what: str) -> None:
    """Conflict, again and again, for a version that stands there: the budget ends it, in few requests."""
    world = World()
    job = world.open("a")
    seen = world.seen()
    assert seen is not None
    refused = 0

    def refuse(key: str) -> None:
        nonlocal refused
        refused += 1
        assert refused < 50, "it spins"
        world.bucket.before_put = refuse
        raise Conflict(key)

    world.bucket.before_put = refuse
    with pytest.raises(Unavailable, match="refuses to replace the lease of job shop"):
        match what:
            case "acquire":
                leases.acquire(
                    world.bucket, KEYS, world.clock, world.rng, seen=seen, claim=claim("b"), log_epoch=1, budget=20.0
                )
            case "unlock":
                leases.unlock(world.bucket, KEYS, world.clock, world.rng, seen=seen, reason="")
            case "renew":
                job.lease.renew()
            case _:
                job.lease.settle("released")
    after = world.seen()
    assert after is not None and after.doc == seen.doc


def test_round_trip() -> None:
    doc = World().open("a").lease.doc
    assert leases.decode_lease(leases.encode_lease(doc), "shop") == doc


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(Damaged, match="lease of job shop is damaged"):
        leases.decode_lease(data, "shop")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"format": "2"},
        {"job": "other"},
        {"epoch": 0},
        {"epoch": 10**30},
        {"ttl": 0},
        {"ttl": 1e300},
        {"state": "mine"},
        {"seq": -1},
        {"host": None},
        {"nonce": "x" * 100_000},
    ],
)
def test_a_lease_that_says_what_none_can(change: dict[str, object]) -> None:
    doc = msgspec.to_builtins(World().open("a").lease.doc)
    with pytest.raises(Damaged):
        leases.decode_lease(msgspec.json.encode({**doc, **change}), "shop")
    assert leases.decode_lease(msgspec.json.encode({**doc, "from_the_future": 1}), "shop").epoch == 1

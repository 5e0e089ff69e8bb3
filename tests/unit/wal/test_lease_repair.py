"""wal/lease_repair.py: a damaged lease is replaced by its version, through lost replies and beside others (R8, R1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.wal.world import KEYS, TTL, World
from wal_agent.errors import Fenced, LeaseHeld, Unavailable
from wal_agent.wal import lease as leases
from wal_agent.wal import opening as openings
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.lease import Claim, LeaseDoc
from wal_agent.wal.lease_repair import replace_damaged
from wal_agent.wal.reader import replay, tail


def damaged() -> tuple[World, OpenedJob]:
    """A job that epoch 2 holds, and a lease that nobody can read."""
    world = World()
    world.open("a")
    job = world.take_over("b")
    world.inner.put(KEYS.lease, b"junk", if_version=world.inner.get(KEYS.lease).version)
    return world, job


def repair(world: World, **more: Any) -> LeaseDoc:
    end = tail(world.inner, KEYS)
    return replace_damaged(world.bucket, KEYS, world.clock, world.rng, tail=end, ttl=TTL, key="k1", reason="r", **more)


def test_it_says_what_the_log_says() -> None:
    world, _ = damaged()
    doc = repair(world, off=True)
    seen = world.seen()
    assert seen is not None and seen.doc == doc
    assert (doc.state, doc.epoch, doc.seq, doc.key, doc.off, doc.spool) == ("unlocked", 2, 2, "k1", True, "")


@pytest.mark.parametrize("fate", ["lost", "dropped"])
def test_through_a_lost_reply(fate: str) -> None:
    world, _ = damaged()
    world.bucket.fates = [fate]
    doc = repair(world)
    seen = world.seen()
    assert seen is not None and seen.doc == doc and len(world.bucket.fates) == 0


def test_an_outage_is_undecided_in_the_end() -> None:
    world, _ = damaged()
    world.bucket.fates = ["dropped"] * 1000
    with pytest.raises(Unavailable):
        repair(world, budget=5.0)
    assert world.inner.get(KEYS.lease).data == b"junk"


def test_a_sound_lease_that_came_meanwhile_stays() -> None:
    """Somebody else repaired it, and a new owner has it already."""
    world, _ = damaged()

    def other(key: str) -> None:
        repair(world, off=True)
        world.open("c")

    world.bucket.before_put = other
    with pytest.raises(LeaseHeld, match="held, epoch 3"):
        repair(world)
    seen = world.seen()
    assert seen is not None and (seen.doc.run, seen.doc.state) == ("c", "held")


def test_the_old_owner_is_fenced_by_its_next_heartbeat() -> None:
    world, job = damaged()
    repair(world, off=True)
    with pytest.raises(Fenced, match="unlocked by hand"):
        job.lease.renew()


def test_an_owner_that_had_not_opened_yet_does_not_share_its_epoch() -> None:
    """I2: what the lost lease said was above the log, so the next owner gets the same epoch; the log takes one."""
    world = World()
    first = world.open("a")
    world.clock.at += TTL + 1
    claim = Claim(run="b", host=first.lease.doc.host, agent="gemini", workspace="/w", ttl=TTL)
    slow = leases.acquire(world.bucket, KEYS, world.clock, world.rng, seen=world.seen(), claim=claim, log_epoch=1)
    world.inner.put(KEYS.lease, b"junk", if_version=world.inner.get(KEYS.lease).version)
    repair(world, off=True)
    assert world.open("c").lease.epoch == slow.epoch == 2
    opening = msgspec.structs.replace(first.replay.state.openings[0].opening, run="b", epoch=2)
    with pytest.raises(Fenced):
        openings.place(world.bucket, KEYS, world.clock, world.rng, opening)
    assert [o.opening.run for o in replay(world.inner, KEYS).state.openings] == ["a", "c"]

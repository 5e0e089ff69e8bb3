"""wal/lease_repair.py: a damaged lease is replaced by its version, through lost replies and beside others (R8, R1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.wal.world import KEYS, TTL, Flaky, World
from wal_agent.bucket.base import Object
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import Fenced, LeaseHeld, Unavailable
from wal_agent.wal import lease as leases
from wal_agent.wal import opening as openings
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.lease import LeaseDoc, LeaseRequest
from wal_agent.wal.lease_doc import MAX_BYTES
from wal_agent.wal.lease_repair import Repaired, replace_damaged_lease
from wal_agent.wal.reader import Tail, read_tail, replay


def damaged() -> tuple[World, OpenedJob]:
    """A job that epoch 2 holds, and a lease that nobody can read."""
    world = World()
    world.open("a")
    job = world.take_over("b")
    world.inner.put(KEYS.lease, b"junk", if_version=world.inner.get(KEYS.lease).version)
    return world, job


def repair(world: World, **more: Any) -> LeaseDoc:
    end = read_tail(world.inner, KEYS)
    return replaced(world, end, **more).doc


def replaced(world: World, end: Tail, **more: Any) -> Repaired:
    return replace_damaged_lease(
        world.bucket, KEYS, world.clock, world.rng, tail=end, ttl=TTL, key="k1", reason="r", **more
    )


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
    claim = LeaseRequest(run="b", host=first.lease.doc.host, agent="gemini", workspace="/w", ttl=TTL)
    slow = leases.acquire(world.bucket, KEYS, world.clock, world.rng, seen=world.seen(), claim=claim, log_epoch=1)
    world.inner.put(KEYS.lease, b"junk", if_version=world.inner.get(KEYS.lease).version)
    repair(world, off=True)
    assert world.open("c").lease.epoch == slow.epoch == 2
    opening = msgspec.structs.replace(first.replay.state.openings[0].opening, run="b", epoch=2)
    with pytest.raises(Fenced):
        openings.place_opening(world.bucket, KEYS, world.clock, world.rng, opening)
    assert [o.opening.run for o in replay(world.inner, KEYS).state.openings] == ["a", "c"]


# ---- the ttl that it still says


@pytest.mark.parametrize(
    ("harm", "ttl"),
    [
        (lambda data: data[:-3], 90.0),
        (lambda data: data.replace(b'"epoch": 2', b'"epoch": -2'), 90.0),
        (lambda data: data.replace(b"90.0", b"9")[:-3], TTL),
        (lambda data: data.replace(b"90.0", b"999999"), None),
        (lambda data: data.replace(b"90.0", b"1e9"), None),
        (lambda data: data.replace(b"90.0", b"-90"), None),
        (lambda data: b"x" * MAX_BYTES + data, None),
        (lambda data: b"junk", None),
    ],
)
def test_the_next_owner_waits_as_long_as_the_lost_lease_says(harm: Callable[[bytes], bytes], ttl: float | None) -> None:
    """R8: its owner may go on for that long; damaged bytes are never believed to shorten it."""
    world = World()
    world.open("a")
    job = world.take_over("b")
    sound = msgspec.structs.replace(job.lease.doc, ttl=90.0, workspace='/w", "ttl": 80000,')
    broken = harm(leases.encode_lease(sound))
    world.inner.put(KEYS.lease, broken, if_version=world.inner.get(KEYS.lease).version)
    done = replaced(world, read_tail(world.inner, KEYS))
    assert (done.said, done.doc.ttl) == (ttl is not None, TTL if ttl is None else ttl)


# ---- an object that its bucket cannot read


@pytest.mark.parametrize("then", ["sound", "other damage", "the same"])
def test_what_is_deleted_is_what_was_seen_to_be_damaged(tmp_path: Path, then: str) -> None:
    """Another person repairs it between two looks, and a new owner has it."""
    world, bucket = World(), FileBucket(tmp_path)
    path = tmp_path / f"{KEYS.lease}="
    version = bucket.put(KEYS.lease, b"a lease")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    end = Tail(0, 0)
    looks = 0

    class Looking(Flaky):
        def get(self, key: str) -> Object:
            nonlocal looks
            looks += 1
            if looks == 2 and then != "the same":
                path.unlink()
                bucket.put(KEYS.lease, leases.encode_lease(World().open("c").lease.doc))
                if then == "other damage":
                    path.write_bytes(path.read_bytes()[:-1])
            return bucket.get(key)

        def delete(self, *keys: str) -> None:
            bucket.delete(*keys)

        def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
            return bucket.put(key, data, if_version=if_version)

    world.bucket, world.rng = Looking(world.inner), random.Random(8)
    if then == "the same":
        assert replaced(world, end).doc.state == "unlocked" and bucket.get(KEYS.lease).version != version
    else:
        with pytest.raises(LeaseHeld, match="sound again: held" if then == "sound" else "changed meanwhile"):
            replaced(world, end)
        assert path.exists()

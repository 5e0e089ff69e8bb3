"""Issue 12.5: the lease says where the log ends, so an end that somebody cut off or replaced is noticed."""

from __future__ import annotations

import json
import random
from typing import Literal

import msgspec
import pytest

from tests.unit.wal.world import KEYS, World, intent
from wal_agent.errors import Damaged
from wal_agent.records import End
from wal_agent.wal import lease as leases
from wal_agent.wal import reader
from wal_agent.wal import segment as codec
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.reader import KnownEnd, check_end, replay

Settled = Literal["closed", "released"]


def worked(world: World, calls: int = 3) -> OpenedJob:
    job = world.open("a")
    for call in range(1, calls + 1):
        job.writer.append(intent(call), End(time=2.0, call=call, how="done", by="hook"))
        assert job.writer.commit_once() == "acked"
    return job


def ended(how: Settled = "closed") -> World:
    """Records 1 (the opening) to 4."""
    world = World()
    assert close_job(worked(world), how) == how
    return world


def read_from(world: World) -> reader.Replay:
    return check_end(replay(world.bucket, KEYS), KEYS.job, KnownEnd.by(world.seen()))


def without_end(world: World) -> None:
    """As an older wal-agent left it, which had renewed before its last records."""
    found = world.inner.get(KEYS.lease)
    doc = json.loads(found.data) | {"seq": 1}
    del doc["end"]
    world.inner.put(KEYS.lease, json.dumps(doc).encode(), if_version=found.version)


@pytest.mark.parametrize("how", ["closed", "released"])
def test_the_lease_of_a_job_that_was_given_up_names_its_last_record(how: Settled) -> None:
    world = ended(how)
    seen = world.seen()
    assert seen is not None and (seen.doc.state, seen.doc.seq) == (how, 4)
    assert bytes.fromhex(seen.doc.end) == codec.digest(world.inner.get(KEYS.segment(4)).data)
    assert read_from(world).damage is None
    assert world.open("b").replay.seq == 5


@pytest.mark.parametrize("how", ["closed", "released"])
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_an_end_that_was_cut_off_is_damage_to_readers_and_openers(how: Settled, cut: int) -> None:
    world = ended(how)
    for seq in range(5 - cut, 5):
        world.inner.delete(KEYS.segment(seq))
    found = read_from(world).damage
    assert found is not None and (found.seq, found.good, found.missing) == (5 - cut, 4 - cut, True)
    before = [(e.key, world.inner.get(e.key).data) for e in world.inner.list("")]
    with pytest.raises(Damaged, match=f"record {5 - cut} of job shop is missing: the log had reached record 4"):
        world.open("b")
    assert [(e.key, world.inner.get(e.key).data) for e in world.inner.list("")] == before


def test_a_last_record_that_was_replaced_is_damage() -> None:
    """It chains, and its run and epoch are right: whoever can write the bucket can make one."""
    world = ended()
    true = codec.decode_segment(world.inner.get(KEYS.segment(4)).data, job="shop", seq=4)
    raw = [codec.encode_record(r)[0] for r in true.records[:1]]
    forged = codec.encode_segment(job="shop", epoch=1, seq=4, run=true.run, prev=true.prev, time=true.time, records=raw)
    world.inner.delete(KEYS.segment(4))
    world.inner.put(KEYS.segment(4), forged)
    found = read_from(world).damage
    assert found is not None and (found.seq, found.good) == (4, 3) and "last run ended" in found.why
    with pytest.raises(Damaged, match="not the one with which its last run ended"):
        world.open("b")


def test_an_older_lease_is_read_as_before() -> None:
    world = ended()
    without_end(world)
    world.inner.delete(KEYS.segment(4))
    assert read_from(world).damage is None
    assert world.open("b").replay.seq == 4


def test_it_stays_known_while_the_next_owner_has_not_renewed() -> None:
    world = ended()
    world.open("b")
    for seq in (4, 5):
        world.inner.delete(KEYS.segment(seq))
    assert read_from(world).damage is not None


def test_the_end_is_no_longer_said_once_the_log_goes_on() -> None:
    world = ended()
    job = world.open("b")
    assert job.lease.doc.end == "" and job.lease.doc.seq == 4
    job.lease.renew(seq=job.writer.acked.seq)
    assert (job.lease.doc.end, job.lease.doc.seq) == ("", 5)
    assert read_from(world).damage is None


def test_a_settling_that_was_sent_twice_says_the_same() -> None:
    world = World()
    job = worked(world)
    world.bucket.fates = ["lost"]
    assert close_job(job, "closed") == "closed"
    seen = world.seen()
    assert seen is not None and (seen.doc.seq, len(seen.doc.end)) == (4, 64)


def test_an_end_that_is_no_hash_misleads_nobody() -> None:
    """The lease is not encrypted: what is in it is only compared."""
    world = ended()
    found = world.inner.get(KEYS.lease)
    doc = msgspec.structs.replace(leases.decode_lease(found.data, "shop"), end="\x1b[2Jx" * 99)
    world.inner.put(KEYS.lease, leases.encode_lease(doc), if_version=found.version)
    with pytest.raises(Damaged) as caught:
        world.open("b")
    assert "\x1b" not in str(caught.value)


def test_unlocking_a_dead_owner_keeps_what_its_lease_says() -> None:
    world = World()
    job = worked(world)
    job.lease.renew(seq=job.writer.acked.seq)
    seen = world.seen()
    assert seen is not None
    rng = random.Random(1)
    assert leases.unlock(world.bucket, KEYS, world.clock, rng, seen=seen, reason="x").seq == 4

"""wal/retention.py: R4 as data, and a run of it that keeps every replay sound (I3)."""

from __future__ import annotations

import hashlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.test_replay import snapshots
from tests.unit.wal.world import KEYS, World, drain, end, intent
from wal_agent.records import Edit, FileDelta, Payload
from wal_agent.wal.blobs import INLINE
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.named import blob_names
from wal_agent.wal.reader import replay
from wal_agent.wal.retention import DAY, Retention, Sum, boundary, deletable, openings_known_from
from wal_agent.wal.state import KEEP_OPENINGS, FileState, OpeningAt, State


def opened_at(seqs: list[int]) -> State:
    opening = World().open("a").replay.state.openings[0].opening
    kept = [OpeningAt(s, opening) for s in seqs]
    return State(openings=tuple(kept[-KEEP_OPENINGS:]), opened=len(seqs))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0, 3 * DAY)), max_size=40),
    st.sets(st.integers(1, 60), max_size=5),
    st.sets(st.integers(1, 60), min_size=1, max_size=6),
)
def test_what_r4_keeps(segments: list[tuple[int, float]], named: set[int], openings: set[int]) -> None:
    now, edge = 3 * DAY, boundary(named)
    gone = deletable(segments, edge, named, opened_at(sorted(openings)), now, DAY)
    ages = dict(segments)
    for seq in gone:
        assert seq not in openings and seq + 1 not in openings and seq not in named
        assert len([s for s in named if s > seq]) >= 2
        assert any(s == seq and now - updated > DAY for s, updated in segments)
    for seq, updated in ages.items():
        free = seq not in openings and seq + 1 not in openings and seq not in named and seq < edge
        if free and all(now - u > DAY for s, u in segments if s == seq):
            assert seq in gone, updated


def test_the_boundary_is_the_older_of_the_two_newest() -> None:
    assert (boundary([]), boundary([9]), boundary([9, 30, 20])) == (0, 0, 20)


def test_where_not_every_opening_is_known_nothing_goes() -> None:
    many = opened_at(list(range(10, 10 * (KEEP_OPENINGS + 2), 10)))
    assert openings_known_from(many) == 19
    assert openings_known_from(opened_at([1, 5])) == 0


def names(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_blobs_are_found_wherever_a_record_names_them() -> None:
    edits = (Edit(offset=0, data=Payload(size=1, blob="a")), Edit(offset=0, data=Payload(size=1, data=b"x")))
    record = FileDelta(time=0.0, path="p", size=1, sha256="", edits=edits, session="")
    state = State(files={"p": FileState(session="", size=1, sha256="", chunks=("b", "c"), layers=(record,))})
    assert sorted(blob_names([record, state])) == ["a", "a", "b", "c"]


def retention(world: World, job: OpenedJob) -> Retention:
    return Retention(world.bucket, KEYS, job.blobs, lambda: job.lease.may_allow(0))


def long_job(world: World) -> OpenedJob:
    """Two epochs and two snapshots: openings at 1 and 4, snapshots at 6 and 8."""
    job = world.open("a")
    for n in (1, 2):
        job.writer.append(intent(n), end(n))
        drain(job)
    job = world.take_over("b")
    for n in (3, 4):
        job.writer.append(intent(n))
        drain(job)
    snapshots(world, job).take()
    for n in (5, 6):
        job.writer.append(intent(n))
        drain(job)
    snapshots(world, job).take()
    job.writer.append(intent(7))
    drain(job)
    return job


def stored(world: World) -> list[int]:
    return [int(e.key[-20:]) for e in world.inner.list(KEYS.log)]


def test_a_run_of_it() -> None:
    world = World()
    job = long_job(world)
    before = replay(world.bucket, KEYS)
    assert retention(world, job).run().segments == Sum()  # all younger than a day
    world.clock.at += DAY + 1
    job.lease.renew()
    done = retention(world, job).run()
    assert (done.segments.count, done.why) == (2, "")
    assert stored(world) == [1, 3, 4, 6, 7, 8, 9]  # 2 and 5 are no opening, none before one, and not named
    assert replay(world.bucket, KEYS).state == before.state
    assert retention(world, job).run().segments == Sum()
    close_job(job, "released")
    assert world.open("c").replay.damage is None


def test_one_snapshot_is_not_enough_and_one_that_does_not_count_is_none() -> None:
    world = World()
    job = long_job(world)
    world.inner.delete(KEYS.snapshot(6))
    world.inner.put(KEYS.snapshot(6), b"junk")
    world.clock.at += DAY + 1
    job.lease.renew()
    assert retention(world, job).run().why == "fewer than two checked snapshots"
    assert len(stored(world)) == 9


def test_a_run_that_has_lost_the_job_deletes_nothing() -> None:
    world = World()
    job = long_job(world)
    world.clock.at += DAY + 1
    assert retention(world, job).run().segments == Sum()


def test_old_snapshots_go_with_what_they_named() -> None:
    world = World()
    job = long_job(world)
    job.writer.append(end(7))
    drain(job)
    snapshots(world, job).take()
    world.clock.at += DAY + 1
    job.lease.renew()
    done = retention(world, job).run()
    assert (done.snapshots.count, done.segments.count) == (1, 4)
    assert stored(world) == [1, 3, 4, 8, 9, 10]


def test_a_young_snapshot_keeps_its_segment() -> None:
    world = World()
    job = long_job(world)
    world.clock.at += DAY + 1
    job.lease.renew()
    young = world.inner.get(KEYS.snapshot(6)).data
    world.inner.delete(KEYS.snapshot(6))
    world.inner.put(KEYS.snapshot(6), young)
    job.writer.append(end(7))
    drain(job)
    snapshots(world, job).take()
    retention(world, job).run()
    assert 6 in stored(world)


@pytest.mark.parametrize("when", ["named by a record", "named by a snapshot", "pinned", "young", "loose"])
def test_blobs_go_when_nothing_kept_names_them(when: str) -> None:
    world = World()
    job = long_job(world)
    data = b"x" * (INLINE + 1)
    payload = job.blobs.put_payload(data)
    record = FileDelta(
        time=1.0, path="f", size=len(data), sha256=names(data), edits=(Edit(offset=0, data=payload),), session="s"
    )
    if when.startswith("named"):
        job.writer.append(record)
        drain(job)
    if when == "named by a snapshot":
        with tempfile.TemporaryDirectory() as folder:
            snapshots(world, job, folder).take()
    if when != "young":
        world.clock.at += DAY + 1
    if when != "pinned":
        job.blobs.names._pins.clear()
    job.lease.renew()
    assert retention(world, job).run().blobs == (Sum(1, len(data)) if when == "loose" else Sum())


def test_a_damaged_kept_segment_stops_the_blobs_not_the_segments() -> None:
    world = World()
    job = long_job(world)
    job.blobs.put(b"loose")
    job.blobs.names._pins.clear()
    world.clock.at += DAY + 1
    job.lease.renew()
    world.inner.delete(KEYS.segment(7))
    world.inner.put(KEYS.segment(7), b"junk")
    done = retention(world, job).run()
    assert done.segments.count == 2 and done.blobs == Sum() and "damaged" in done.why


def test_a_snapshot_whose_blobs_are_missing_is_no_reason_to_delete() -> None:
    world = World()
    job = long_job(world)
    record = FileDelta(
        time=1.0,
        path="f",
        size=1,
        sha256=names(b"x"),
        edits=(Edit(offset=0, data=Payload(size=1, blob=job.blobs.put(b"x"))),),
        session="s",
    )
    job.writer.append(record)
    drain(job)
    with tempfile.TemporaryDirectory() as folder:
        snapshots(world, job, folder).take()
    world.inner.delete(*[e.key for e in world.inner.list(KEYS.blobs)])
    world.clock.at += DAY + 1
    job.lease.renew()
    done = retention(world, job).run()
    assert done.segments == Sum() and "missing" in done.why

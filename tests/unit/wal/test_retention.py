"""wal/retention.py: R4 as data, and a run of it that keeps every replay sound (I3)."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.test_reader import snapshots
from tests.unit.wal.world import KEYS, World, drain, end, intent
from wal_agent.bucket.base import Entry
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.errors import Damaged, Unavailable
from wal_agent.records import Edit, FileDelta, Payload
from wal_agent.wal import reader
from wal_agent.wal import retention as module
from wal_agent.wal.blobs import INLINE, write_file
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.reader import Tail, list_snapshots, replay
from wal_agent.wal.retention import (
    DAY,
    RUNS_PER_AGE,
    CheckedSnapshot,
    Mirror,
    Retention,
    Snapshots,
    Tally,
    UnreferencedBlobs,
    boundary,
    deletable,
    first_contiguous,
    is_before,
    is_past_epoch,
    no_run_rests_before,
    old_enough,
    openings_known_from,
    referenced_blobs,
)
from wal_agent.wal.state import MAX_OPENINGS, FileState, OpeningAt, State


def opened_at(seqs: list[int]) -> State:
    opening = World().open("a").replay.state.openings[0].opening
    kept = [OpeningAt(s, opening) for s in seqs]
    return State(openings=tuple(kept[-MAX_OPENINGS:]), opened=len(seqs))


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


def test_what_is_kept_begins_behind_the_last_gap() -> None:
    assert first_contiguous({1, 3, 4, 5, 7}, 6) == 3
    assert first_contiguous({1, 7}, 6) == 6 and first_contiguous({1, 2}, 3) == 1


def test_where_not_every_opening_is_known_nothing_goes() -> None:
    many = opened_at(list(range(10, 10 * (MAX_OPENINGS + 2), 10)))
    assert openings_known_from(many) == 19
    assert openings_known_from(opened_at([1, 5])) == 0 == openings_known_from(opened_at([3, 5]))


def names(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_blobs_are_found_wherever_a_record_names_them() -> None:
    edits = (Edit(offset=0, data=Payload(size=1, blob="a")), Edit(offset=0, data=Payload(size=1, data=b"x")))
    record = FileDelta(time=0.0, path="p", size=1, sha256="", edits=edits, session="")
    state = State(files={"p": FileState(session="", size=1, sha256="", chunks=("b", "c"), layers=(record,))})
    assert sorted(referenced_blobs([record, state])) == ["a", "a", "b", "c"]


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
    assert retention(world, job).run().segments == Tally()  # all younger than a day
    world.clock.at += DAY + 1
    job.lease.renew()
    done = retention(world, job).run()
    assert (done.segments.count, done.why) == (2, "")
    assert list_snapshots(world.bucket, KEYS) == [6, 8]
    assert stored(world) == [1, 3, 4, 6, 7, 8, 9]  # 2 and 5 are no opening, none before one, and not named
    assert replay(world.bucket, KEYS).state == before.state
    assert retention(world, job).run().segments == Tally()
    close_job(job, "released")
    assert world.open("c").replay.damage is None


def test_one_snapshot_is_not_enough_and_one_that_does_not_count_is_none() -> None:
    world = World()
    job = long_job(world)
    world.inner.delete(KEYS.snapshot(6))
    world.inner.put(KEYS.snapshot(6), b"junk")
    world.clock.at += DAY + 1
    job.lease.renew()
    assert retention(world, job).run().why == "needs two verified snapshots"
    assert len(stored(world)) == 9


def test_a_run_that_has_lost_the_job_deletes_nothing() -> None:
    world = World()
    job = long_job(world)
    world.clock.at += DAY + 1
    assert retention(world, job).run().segments == Tally()


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


def test_what_is_in_front_of_the_openings_that_are_known_is_not_listed() -> None:
    world = World()
    long_job(world)
    sizes: dict[int, int] = {}
    behind = Retention(world.bucket, KEYS)._behind
    assert [seq for seq, _ in behind(edge=6, known=3, sizes=sizes)] == [3, 4, 5]
    assert sizes == {seq: len(world.inner.get(KEYS.segment(seq)).data) for seq in (3, 4, 5)}
    for known, first in ((0, 1), (1, 1), (2, 2)):
        assert [seq for seq, _ in behind(edge=4, known=known, sizes={})] == [*range(first, 4)]


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
    assert retention(world, job).run().blobs == (Tally(1, len(data)) if when == "loose" else Tally())


@pytest.mark.parametrize(("at", "kept"), [(3, False), (4, True), (5, True)])
def test_segments_from_the_older_snapshot_on_keep_their_blobs(tmp_path: Path, at: int, kept: bool) -> None:
    """No state names the blob: its call has ended, read only, and its end is in a captured session file."""
    world = World()
    job = world.open("a")
    payload = job.blobs.put_payload(b"x" * (INLINE + 1))
    call = msgspec.structs.replace(intent(1), cls="read_only", input=payload)
    captured = FileDelta(time=1.0, path="f", size=0, sha256=names(b""), edits=(), session="s", settled=1)
    for seq in range(2, 8):
        job.writer.append(*((call, end(1), captured) if seq == at else (end(99),)))
        drain(job)
        if seq in (4, 6):
            snapshots(world, job, tmp_path).take()
    assert not [*referenced_blobs(job.writer.state)]
    world.clock.at += DAY + 1
    job.blobs.names._pins.clear()
    job.lease.renew()
    assert retention(world, job).run().blobs == (Tally() if kept else Tally(1, INLINE + 1))


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
    assert done.segments.count == 2 and done.blobs == Tally() and "damaged" in done.why


def test_damage_is_the_reason_also_where_named_blobs_are_listed_behind_a_loose_one(tmp_path: Path) -> None:
    """Else blobs that are all there would be called missing, and the segments would stay."""
    world = World()
    job = long_job(world)
    payload = job.blobs.put_payload(BULK)
    edits = (Edit(offset=0, data=payload),)
    job.writer.append(FileDelta(time=1.0, path="f", size=len(BULK), sha256=names(BULK), edits=edits, session="s"))
    drain(job)
    snapshots(world, job, tmp_path).take()
    before = next(data for data in (b"%d" % n for n in range(1000)) if names(data) < names(BULK))
    job.blobs.put(before)
    job.blobs.names._pins.clear()
    world.clock.at += DAY + 1
    job.lease.renew()
    world.inner.delete(KEYS.segment(9))
    world.inner.put(KEYS.segment(9), b"junk")
    done = retention(world, job).run()
    assert done.segments.count > 0 and done.blobs == Tally() and "damaged" in done.why


def test_blobs_that_the_newest_snapshots_name_cost_no_further_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments behind them are read for a blob that these do not name, and not again when one is damaged."""
    world = World()
    first = world.open("z")
    captured(first, BULK, (0, BULK))
    snapshots(world, first, tmp_path).take()
    (tmp_path / "b").mkdir()
    job = world.take_over("b")
    taking = snapshots(world, job, tmp_path / "b")
    for _ in range(2):
        grown(job)
        taking.take()
    world.clock.at += DAY + 1
    job.lease.renew()
    looked: list[int] = []

    def damaged(*_: object) -> set[str]:
        looked.append(1)
        raise Damaged("it is.")

    sure = {e.key for e in world.inner.list(KEYS.blobs)}
    with monkeypatch.context() as patch:
        patch.setattr(Retention, "_all_named", damaged)
        done = retention(world, job).plan()
        assert sure and done.why == "" and looked == [] and done.blobs == ()
        for n in range(3):
            first.blobs.put(b"%d" % n)
        world.clock.at += DAY + 1
        done = retention(world, job).plan()
        assert done.why == "it is." and looked == [1] and done.blobs == ()


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
    assert done.segments == Tally() and "missing" in done.why


# --- blobs: whoever decided to delete, and whenever it arrives (I3, I4)

BULK = b"y" * (INLINE + 1)


def captured(job: OpenedJob, content: bytes, *parts: tuple[int, bytes]) -> None:
    """Log `content` as what the file holds after `parts` were written over it, each as a blob."""
    edits = tuple(Edit(offset=at, data=Payload(size=len(data), blob=job.blobs.put(data))) for at, data in parts)
    job.writer.append(FileDelta(time=1.0, path="f", size=len(content), sha256=names(content), edits=edits, session="s"))
    drain(job)


def grown(job: OpenedJob) -> None:
    job.writer.append(intent(job.writer.next_call()))
    drain(job)


def restored(job: OpenedJob, state: State) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_file(job.blobs, state.files["f"], Path(folder) / "f")
        return (Path(folder) / "f").read_bytes()


def stored_blobs(world: World) -> list[str]:
    return [e.key.rpartition("/")[2] for e in world.inner.list(KEYS.blobs)]


def test_a_late_delete_of_an_old_owner_takes_nothing_that_a_new_one_has_put(tmp_path: Path) -> None:
    """I3, I4, without R7: the old owner is frozen between the look and the delete."""
    world = World()
    dead = world.open("z")
    orphan = dead.blobs.put(BULK)  # no record ever names it
    close_job(dead, "released")
    old = long_job(world)
    world.clock.at += DAY + 1
    new: list[OpenedJob] = []

    def frozen() -> bool:
        if not new:
            new.append(world.take_over("new"))
            captured(new[0], BULK, (0, BULK))
        return True

    done = Retention(world.bucket, KEYS, old.blobs, frozen).run()
    assert done.blobs == Tally(1, len(BULK)) and orphan not in stored_blobs(world)
    assert restored(new[0], replay(world.bucket, KEYS).state) == BULK


def test_a_late_delete_of_ones_own_takes_nothing_that_was_put_since(tmp_path: Path) -> None:
    """The same bytes are put by another thread while the request that deletes them is on its way."""
    world = World()
    job = long_job(world)
    loose = job.blobs.put(BULK)
    job.blobs.names._pins.clear()
    world.clock.at += DAY + 1

    def busy() -> bool:
        captured(job, BULK, (0, BULK))
        return True

    done = Retention(world.bucket, KEYS, job.blobs, busy).run()
    assert done.blobs.count == 1 and loose not in stored_blobs(world)
    assert restored(job, replay(world.bucket, KEYS).state) == BULK
    taking = snapshots(world, job, tmp_path)
    for _ in range(2):
        taking.take()
        grown(job)
    world.clock.at += DAY + 1
    Retention(world.bucket, KEYS, job.blobs).run()
    assert job.blobs.names._pins == {}, "I9: what the log names by now need not be remembered"


def test_a_snapshot_that_lands_late_finds_its_blobs(tmp_path: Path) -> None:
    """I3: its run was fenced and nothing else names the blobs, but both kept snapshots are of that run too."""
    world = World()
    job = world.open("a")
    captured(job, b"one", (0, b"one"))
    taking = snapshots(world, job, tmp_path)
    taking.take()
    grown(job)
    taking.take()
    captured(job, b"one, two", (3, b", two"))
    sent = held_back(world, taking)
    new = world.take_over("b")
    world.clock.at += DAY + 1
    assert Retention(world.bucket, KEYS).run().why == ""
    world.inner.put(*sent)
    found = replay(world.bucket, KEYS)
    assert found.snapshot == int(sent[0][-20:])
    assert restored(new, found.state) == b"one, two"


def held_back(world: World, taking: Snapshots) -> tuple[str, bytes]:
    """Take a snapshot whose put stays in the network; its key and bytes."""
    world.bucket.dropped = KEYS.snapshots
    with pytest.raises(Unavailable):
        taking.take()
    world.bucket.dropped = ""
    return world.bucket.puts[-1]


def test_a_run_that_stands_on_an_older_snapshot_keeps_it(tmp_path: Path) -> None:
    """I4: two snapshots of fenced runs land after the owner has replayed; its memory stands on the one before."""
    world = World()
    first = world.open("z")
    captured(first, b"one", (0, b"one"))
    snapshots(world, first, tmp_path).take()
    sent = []
    for run in ("a", "b"):
        job = world.take_over(run)
        captured(job, run.encode() * 4, (0, run.encode() * 4))
        (tmp_path / run).mkdir()
        sent.append(held_back(world, snapshots(world, job, tmp_path / run)))
    owner = world.take_over("c")
    for key, data in sent:
        world.inner.put(key, data)
    world.clock.at += DAY + 1
    done = Retention(world.bucket, KEYS).run()
    assert "may still need" in done.why
    assert restored(owner, owner.writer.state) == b"bbbb"
    (tmp_path / "c").mkdir()
    taking = snapshots(world, owner, tmp_path / "c")
    for _ in range(2):  # once it has two of its own, all goes on
        grown(owner)
        taking.take()
    world.clock.at += DAY + 1
    done = Retention(world.bucket, KEYS).run()
    assert done.why == "" and done.blobs.count > 0
    assert restored(owner, replay(world.bucket, KEYS).state) == restored(owner, owner.writer.state) == b"bbbb"


def test_one_snapshot_is_decided_before_the_next_is_sent(tmp_path: Path) -> None:
    """R4 counts on it: a run never stands on a snapshot older than the last but one that it may have stored."""
    world = World()
    job = world.open("a")
    captured(job, b"one", (0, b"one"))
    taking = snapshots(world, job, tmp_path)
    key, data = held_back(world, taking)
    captured(job, b"two", (0, b"two"))
    world.inner.put(key, data)  # now it lands
    assert (taken := taking.take()) is not None and world.bucket.puts[-1] == (key, data)
    assert KEYS.snapshot(taken.seq) == key
    assert job.writer.state.files["f"].chunks == taken.state.files["f"].chunks
    assert (later := taking.take()) is not None and later.seq == job.writer.acked.seq
    assert restored(job, replay(world.bucket, KEYS).state) == b"two"


def test_a_stranger_leaves_alone_what_a_running_owner_may_be_about_to_name() -> None:
    """wal-agent gc beside a run, which has put a blob and hangs before the record."""
    world = World()
    job = long_job(world)
    payload = job.blobs.put_payload(BULK)
    world.clock.at += DAY + 1
    assert Retention(world.bucket, KEYS).run().blobs == Tally()
    job.writer.append(
        FileDelta(
            time=1.0, path="f", size=len(BULK), sha256=names(BULK), edits=(Edit(offset=0, data=payload),), session="s"
        )
    )
    drain(job)
    assert restored(job, replay(world.bucket, KEYS).state) == BULK


def test_strangers_objects_stay() -> None:
    world = World()
    long_job(world)
    for key in (f"{KEYS.blobs}notes.txt", f"{KEYS.blobs}{'0' * 64}-x", f"{KEYS.log}notes", f"{KEYS.snapshots}0"):
        world.inner.put(key, b"")
    world.clock.at += DAY + 1
    Retention(world.bucket, KEYS).run()
    assert len([e for p in (KEYS.blobs, KEYS.log, KEYS.snapshots) for e in world.inner.list(p) if e.size == 0]) == 4


def test_the_places_of_a_crash_are_where_a_snapshot_is_stored_and_between_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kill tests of R4 and R5 are worth what these places are: each with what the bucket has then."""
    world = World()
    job = long_job(world)
    seen: list[tuple[str, int, int]] = []

    def visit(place: str) -> None:
        seen.append((place, len([*world.inner.list(KEYS.snapshots)]), len(stored(world))))

    monkeypatch.setattr("wal_agent.wal.retention.failpoint", visit)
    monkeypatch.setattr("wal_agent.wal.retention.BATCH", 1)
    grown(job)
    snapshots(world, job).take()
    assert seen == [("snapshot.before_put", 2, 10), ("snapshot.after_put", 3, 10)]
    world.clock.at += DAY + 1
    job.lease.renew()
    seen.clear()
    done = retention(world, job).run()
    assert (done.snapshots.count, done.segments.count) == (1, 4)
    assert seen == [("retention.between_deletes", 2, left) for left in (10, 9, 8, 7, 6)]


# --- what it costs (I9)


def test_two_thousand_old_segments_cost_few_requests() -> None:
    world = World()
    job = world.open("a")
    for n in range(1, 2001):
        job.writer.append(intent(n), end(n))
        drain(job)
    for _ in range(2):
        snapshots(world, job).take()
        for _ in range(200):
            grown(job)
    world.clock.at += DAY + 1
    metered = MeterBucket(world.bucket)
    retention = Retention(metered, KEYS, job.blobs)
    done = retention.run()
    assert done.segments.count == 1999  # all behind the older snapshot but the opening
    used = metered.snapshot()
    assert used.delete.requests == 20 and used.requests <= 32
    behind_newest, up_to_the_edge = 200, 2001 + 1
    assert used.list.received <= len(KEYS.segment(1)) * (behind_newest + up_to_the_edge + 2)
    retention.run()
    assert metered.snapshot().requests == used.requests + 1, "it was here a moment ago"


def orphans(n: int) -> tuple[World, OpenedJob]:
    """A job with so many blobs of a run that never named them."""
    world = World()
    dead = world.open("z")
    for k in range(n):
        dead.blobs.put(b"%d" % k)
    close_job(dead, "released")
    job = long_job(world)
    world.clock.at += DAY + 1
    return world, job


def test_a_run_deletes_so_many_blobs_and_leaves_the_rest_for_the_next() -> None:
    world, job = orphans(5)
    retention = Retention(world.bucket, KEYS, job.blobs, most=3)
    first, second = retention.run(), retention.run()
    assert (first.blobs.count, first.more, second.blobs.count, second.more) == (3, True, 2, False)
    assert stored_blobs(world) == []


def test_a_stranger_deletes_all_of_them_in_one_look() -> None:
    """wal-agent gc holds `most` names and lists the blobs twice at most, however many there are."""
    world, job = orphans(500)
    payload = job.blobs.put_payload(BULK)
    metered = MeterBucket(world.bucket)
    done = Retention(metered, KEYS, most=1).run()
    assert (done.blobs.count, done.more) == (500, False)
    assert stored_blobs(world) == [payload.blob]
    assert metered.snapshot().list.received <= (2 * 502 + 20) * len(KEYS.blob("0" * 64 + "-1"))


@pytest.mark.parametrize(
    ("name", "updated"), [("b" * 64 + "-3", 0.0), ("a" * 64 + "-1", 0.0), ("c" * 64 + "-1", 50.0), ("notes.txt", 0.0)]
)
def test_what_a_look_does_not_know_to_be_loose_stays(name: str, updated: float) -> None:
    """R4: of a later epoch, named, young, or a stranger's."""
    past = UnreferencedBlobs({"a" * 64 + "-1"}, epoch=3, now=100.0, age=60.0)
    assert past.loose(Entry(KEYS.blobs + "b" * 64 + "-1", 1, 0.0))
    assert not past.loose(Entry(KEYS.blobs + name, 1, updated))


# --- bounds of the rules


def test_what_is_as_old_as_the_age_or_at_the_edge_stays() -> None:
    assert not old_enough(5.0, 5.0 + DAY, DAY) and old_enough(5.0, 5.5 + DAY, DAY)
    assert is_before(4, 5) and not is_before(5, 5)
    assert is_past_epoch(2, 3) and not is_past_epoch(3, 3)
    (opened,) = opened_at([7]).openings
    for snapshot, rests in ((6, True), (5, True), (4, False)):
        following = msgspec.structs.replace(opened, opening=msgspec.structs.replace(opened.opening, snapshot=snapshot))
        assert no_run_rests_before(5, following) is rests
    assert no_run_rests_before(5, None)


def test_a_run_looks_again_when_its_time_has_come() -> None:
    world = World()
    retention = Retention(world.bucket, KEYS, long_job(world).blobs)
    assert retention.run().why == ""
    world.clock.at += DAY / RUNS_PER_AGE - 1
    assert retention.run().why == "looked not long ago"
    world.clock.at += 1
    assert retention.run().why == ""


@pytest.mark.parametrize(("known", "goes"), [(0, True), (7, True), (8, False)])
def test_nothing_goes_where_an_opening_behind_the_older_snapshot_may_not_be_known(
    known: int, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one is at 6."""
    world = World()
    long_job(world)
    monkeypatch.setattr(module, "openings_known_from", lambda _: known)
    why = Retention(world.bucket, KEYS).plan().why
    assert why == ("" if goes else "a run that opened behind record 6 may still need what is older")


def test_what_a_later_opening_would_let_go_is_foreseen() -> None:
    world = World()
    job = long_job(world)  # of epoch 2
    job.blobs.put(b"no record names it")
    world.clock.at += DAY + 1
    foreseen = [Retention(world.bucket, KEYS).plan(over).loose.count for over in (0, 1, 2)]
    assert foreseen == [0, 0, 1]


@pytest.mark.parametrize(
    ("known", "behind", "opened"),
    [
        ((3, 9), Tail(), 9),
        ((3, 5), Tail(), None),  # at the older snapshot itself: that run has it
        ((3, 5), Tail(12, 1), None),
        ((3, 5), Tail(12, 2), 11),
    ],
)
def test_the_opening_behind_the_older_snapshot_is_searched_where_it_can_be(
    known: tuple[int, ...], behind: Tail, opened: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = msgspec.structs.replace(opened_at([*known]), epoch=1)
    newest, older = CheckedSnapshot(10, state, frozenset()), CheckedSnapshot(5, State(), frozenset())
    starts: list[int] = []

    def segments(bucket: object, keys: object, start: int) -> Any:
        starts.append(start)
        return iter([(11, mock.Mock(opening=state.openings[0].opening)), (12, mock.Mock(opening=None))])

    monkeypatch.setattr(reader, "newest_after", lambda *_: behind)
    monkeypatch.setattr(reader, "iter_segments", segments)
    found = Retention(World().bucket, KEYS)._following(newest, older)
    assert (found and found.seq) == opened and starts == ([11] if opened == 11 else [])


@pytest.mark.parametrize(("known", "after"), [(0, ""), (1, ""), (2, KEYS.segment(1)), (5, KEYS.segment(4))])
def test_segments_are_listed_from_the_first_one_whose_opening_is_known(known: int, after: str) -> None:
    world, listed = World(), list[tuple[str, str]]()
    for seq in range(1, 9):
        world.inner.put(KEYS.segment(seq), b"x" * seq)
    real = world.inner.list

    def list_(prefix: str, start_after: str = "") -> Any:
        listed.append((prefix, start_after))
        return real(prefix, start_after)

    with mock.patch.object(world.inner, "list", list_):
        sizes: dict[int, int] = {}
        behind = [seq for seq, _ in Retention(world.inner, KEYS)._behind(6, known, sizes)]
    assert behind == [*range(max(1, known), 6)] and sizes == {seq: seq for seq in behind}
    assert listed == [(KEYS.log, after)]


# --- the mirror and the disk


def one_byte() -> FileState:
    edit = Edit(offset=0, data=Payload(size=1, data=b"x"))
    layer = FileDelta(time=0.0, path="f", size=1, sha256=names(b"x"), edits=(edit,), session="s")
    return FileState(session="s", size=1, sha256=names(b"x"), layers=(layer,))


def test_a_copy_that_somebody_removed_is_no_fault(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, World().open("a").blobs)
    assert mirror.compact({"f": one_byte()})["f"].base_size == 1
    (copy,) = tmp_path.iterdir()
    copy.unlink()
    assert mirror.compact({}) == {} and mirror._copies == {}


def test_a_full_disk_is_said_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(tmp_path, World().open("a").blobs)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "create_file", full)
    with pytest.raises(OSError) as failed:
        mirror._once(one_byte())
    assert failed.value.errno == errno.ENOSPC


def test_a_run_without_a_snapshot_has_stored_none() -> None:
    world = World()
    taken = snapshots(world, world.open("a"))
    assert taken.size == 0
    assert taken.take() is not None and taken.size > 0

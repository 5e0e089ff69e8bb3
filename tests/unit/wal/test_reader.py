"""wal/reader.py: replay, the end of the log, and damage that is named."""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.test_codec import some_records
from tests.unit.wal.world import KEYS, World, drain, end, intent
from wal_agent.bucket.base import BucketDecorator, Entry, Object
from wal_agent.errors import Damaged, NotFound
from wal_agent.records import AnyRecord, End, FileDelta, FileGone, Handoff
from wal_agent.wal import codec, lease, reader
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.reader import (
    Damage,
    KnownEnd,
    Replay,
    Tail,
    check_end,
    is_signed,
    iter_readable,
    iter_replays_back,
    iter_segments,
    iter_snapshots,
    read_snapshot,
    read_tail,
    replay,
)
from wal_agent.wal.retention import Mirror, SnapshotPolicy, Snapshots
from wal_agent.wal.state import State, apply_all, rebase
from wal_agent.wal.store import JobStore


def snapshots(world: World, job: OpenedJob, folder: str | Path = "/nonexistent") -> Snapshots:
    return Snapshots(world.bucket, KEYS, job.writer, Mirror(Path(folder), job.blobs))


def without_files(record: AnyRecord) -> bool:
    return not isinstance(record, FileDelta)  # random deltas are not real ones; test_files has those


@settings(deadline=None)
@given(st.lists(some_records.filter(without_files), max_size=12), st.data())
def test_replay_is_the_reduction_however_it_was_cut(wanted: list[AnyRecord], data: st.DataObject) -> None:
    world = World()
    job = world.open("a")
    state = job.replay.state
    left = list(wanted)
    while left:
        count = data.draw(st.integers(1, len(left)))
        some, left = left[:count], left[count:]
        job.writer.append(*some)
        drain(job)
        state = apply_all(state, job.writer.acked.seq, 1, some)
        if data.draw(st.booleans()):
            snapshots(world, job).take()
        if data.draw(st.booleans()):
            job = world.take_over(job.lease.doc.run + "x")
            state = job.replay.state
            break
    found = replay(world.bucket, KEYS, parallel=1)
    assert found.damage is None
    assert found.state == state == job.writer.state
    assert (found.seq, found.hash) == (job.writer.acked.seq, job.writer.acked.hash)
    assert replay(world.bucket, KEYS, parallel=4) == found


def a_log(appends: int = 5) -> tuple[World, OpenedJob]:
    world = World()
    job = world.open("a")
    for n in range(1, appends + 1):
        job.writer.append(intent(n))
        drain(job)
        world.clock.at += 1
    return world, job


def test_a_log_is_signed_by_its_last_segment_and_its_snapshot() -> None:
    key, other = bytes(32), b"o" * 32

    def tagged(sign: bytes) -> bytes:
        return codec.encode_segment(codec.Author("j", 2, "r", sign), seq=7, prev=b"p" * 32, time=9.5, records=[])

    def of_snapshot(sign: bytes) -> bytes:
        made = codec.Snapshot(format=1, job="j", seq=6, hash=b"h" * 32, state=State(), time=9.0)
        return codec.encode_snapshot(made, sign)

    signed = Replay(last=tagged(key))
    assert is_signed(signed, key) and not is_signed(signed, b"") and not is_signed(signed, other)
    assert not is_signed(Replay(last=tagged(b"")), key) and not is_signed(Replay(last=b"x"), key)
    assert not is_signed(msgspec.structs.replace(signed, damage=Damage(7, "x", 6, 9.0)), key)
    for base, whole in ((key, True), (b"", False), (other, False)):
        assert is_signed(Replay(last=tagged(key), snapshot=6, base=of_snapshot(base)), key) is whole
    assert not is_signed(Replay(last=tagged(other), snapshot=6, base=of_snapshot(key)), key)


def test_replay_up_to_a_record() -> None:
    world, job = a_log()
    assert replay(world.bucket, KEYS, 3).state.calls == 2
    snapshots(world, job).take()
    found = replay(world.bucket, KEYS, 3)
    assert (found.state.calls, found.snapshot, found.damage) == (2, 0, None)
    beyond = replay(world.bucket, KEYS, 99)
    assert beyond.damage is not None and beyond.damage.good == 6


@pytest.mark.parametrize("hint", range(9))
def test_the_end_of_the_log_is_found_whatever_the_lease_says_of_it(hint: int) -> None:
    """And listing begins just before what the lease says: one request for a log of any length."""
    world, _ = a_log()
    listed: list[str] = []

    class Counted(BucketDecorator):
        def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
            listed.append(start_after)
            return super().list(prefix, start_after)

    counted = Counted(world.bucket)
    assert read_tail(counted, KEYS, hint).seq == 6
    assert listed == ([KEYS.segment(hint - 1)] if hint > 1 else [""]) + [""] * (hint > 6)


@pytest.mark.parametrize("taken", [(), (1,), (2, 4), (6,)])
@pytest.mark.parametrize("upto", range(7))
def test_every_state_up_to_a_record_is_had_backwards(taken: tuple[int, ...], upto: int) -> None:
    """Whatever snapshots there are, each once, down to the first record."""
    world = World()
    job = world.open("a")
    for n in range(1, 7):
        if n > 1:
            job.writer.append(intent(n))
            drain(job)
        if n in taken:
            snapshots(world, job).take()
    found = [*iter_replays_back(world.bucket, KEYS, upto)]
    assert [at.seq for at in found] == [*range(upto, 0, -1)]
    assert [at.state.calls for at in found] == [seq - 1 for seq in range(upto, 0, -1)]


def test_a_snapshot_saves_reading() -> None:
    world, job = a_log()
    snapshots(world, job).take()
    job.writer.append(end(1))
    drain(job)
    found = replay(world.bucket, KEYS)
    assert (found.snapshot, found.segments_read, found.seq) == (6, 1, 7)
    assert [c.intent.call for c in found.state.open] == [2, 3, 4, 5]


def damaged(world: World, seq: int, data: bytes | None) -> Replay:
    world.inner.delete(KEYS.segment(seq))
    if data is not None:
        world.inner.put(KEYS.segment(seq), data)
    return replay(world.bucket, KEYS)


def segment(
    seq: int, epoch: int = 1, prev: bytes = bytes(32), run: str = "a", records: tuple[bytes, ...] = ()
) -> bytes:
    return codec.encode_segment(codec.Author("shop", epoch, run), seq=seq, prev=prev, time=0.0, records=records)


def an_opening(good: bytes, *, epoch: int, opening: int, run: str = "a") -> bytes:
    """A segment of `epoch` and run a that begins with an opening of epoch `opening` by `run`."""
    first = World().open(run).replay.state.openings[0].opening
    raw = codec.encode_record(msgspec.structs.replace(first, epoch=opening))[0]
    return segment(4, prev=codec.decode_segment(good, job="shop", seq=4).prev, epoch=epoch, records=(raw,))


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize(
    "make, why",
    [
        (lambda good: None, "missing"),
        (lambda good: good[:-1], "damaged"),
        (lambda good: b"", "damaged"),
        (lambda good: segment(4), "does not chain"),
        (
            lambda good: segment(4, prev=codec.decode_segment(good, job="shop", seq=4).prev, run="b"),
            "epoch 1 follows epoch 1",
        ),
        (
            lambda good: segment(4, prev=codec.decode_segment(good, job="shop", seq=4).prev, epoch=2),
            "epoch 2 follows epoch 1",
        ),
        (lambda good: an_opening(good, epoch=1, opening=1), "epoch 1 follows epoch 1"),
        (lambda good: an_opening(good, epoch=2, opening=3), "epoch 2 follows epoch 1"),
        (lambda good: an_opening(good, epoch=2, opening=2, run="b"), "epoch 2 follows epoch 1"),
    ],
)
def test_damage_is_named_with_what_can_be_had(make: Callable[[bytes], bytes | None], why: str, parallel: int) -> None:
    world, _ = a_log()
    good = world.inner.get(KEYS.segment(4)).data
    found = damaged(world, 4, make(good))
    assert found.damage is not None
    assert (found.damage.seq, found.damage.good, found.seq) == (4, 3, 3)
    assert why in found.damage.why
    assert found.damage.time == 1_000_001.0
    assert found.state.calls == 2


def test_what_retention_took_is_not_called_missing() -> None:
    world, job = a_log()
    snapshots(world, job).take()
    world.inner.delete(KEYS.segment(3))
    found = replay(world.bucket, KEYS, 4)
    assert found.damage is not None
    assert found.damage.why == "record 3 of job shop is no longer kept; what is kept begins at record 6."


def test_a_damaged_end_is_damage_too() -> None:
    world, _ = a_log()
    found = damaged(world, 6, b"junk")
    assert found.damage is not None and found.damage.good == 5


def test_damage_behind_a_snapshot_does_not_matter_to_replay() -> None:
    world, job = a_log()
    snapshots(world, job).take()
    assert damaged(world, 4, b"junk").damage is None


@pytest.mark.parametrize("fault", ["junk", "hash", "number"])
def test_a_snapshot_that_does_not_count_is_passed_over(fault: str) -> None:
    world, job = a_log()
    made = snapshots(world, job).take()
    assert made is not None and read_snapshot(world.bucket, KEYS, made.seq) == made
    world.inner.delete(KEYS.snapshot(6))
    other = {"hash": b"x" * 32} if fault == "hash" else {"seq": 5}
    bad = b"junk" if fault == "junk" else codec.encode_snapshot(msgspec.structs.replace(made, **other))
    world.inner.put(KEYS.snapshot(6), bad)
    assert list(iter_snapshots(world.bucket, KEYS)) == []
    assert replay(world.bucket, KEYS).segments_read == 6


def test_a_snapshot_counts_by_the_next_segments_prev_when_its_own_is_gone() -> None:
    world, job = a_log()
    snapshots(world, job).take()
    job.writer.append(end(1))
    drain(job)
    world.inner.delete(KEYS.segment(6))
    assert read_snapshot(world.bucket, KEYS, 6) is not None
    world.inner.delete(KEYS.segment(7))
    assert read_snapshot(world.bucket, KEYS, 6) is None


def test_a_reader_that_meets_retention_lists_again() -> None:
    world, job = a_log()
    first_look = world.bucket.list

    def list_then_lose(prefix: str, start_after: str = "") -> Iterator[Entry]:
        entries = list(first_look(prefix, start_after))
        if prefix == KEYS.log and len(entries) == 6:
            snapshots(world, job).take()
            for seq in range(1, 6):
                world.inner.delete(KEYS.segment(seq))
        return iter(entries)

    with mock.patch.object(world.bucket, "list", list_then_lose):
        found = replay(world.bucket, KEYS, parallel=1)
    assert (found.damage, found.snapshot, found.state.calls) == (None, 6, 5)


def test_a_snapshot_covers_what_is_acknowledged_only() -> None:
    world, job = a_log()
    job.writer.append(intent(6))
    world.bucket.fates = ["dropped"]
    assert job.writer.commit_once() == "undecided"
    made = snapshots(world, job).take()
    assert made is not None and (made.seq, made.state.calls) == (6, 5)


def test_the_policy() -> None:
    policy = SnapshotPolicy(segments=10, size=1000)
    assert not policy.due(9, 999)
    assert policy.due(10, 0) and policy.due(1, 1000)
    assert not policy.due(0, 2000)
    world, job = a_log(5)
    taken = Snapshots(
        world.bucket, KEYS, job.writer, Mirror(Path("/nonexistent"), job.blobs), SnapshotPolicy(segments=6)
    )
    assert taken.take_if_due() is not None  # 5 appends and the opening
    assert taken.take_if_due() is None


@pytest.mark.parametrize("by", ["segments", "size"])
def test_a_snapshot_is_due_by_what_came_since_the_last_one(by: str) -> None:
    world, job = a_log(5)
    count, size = job.writer.acked.segments, job.writer.acked.size
    far = 1 << 40
    policy = SnapshotPolicy(segments=count, size=far) if by == "segments" else SnapshotPolicy(far, size)
    taken = Snapshots(world.bucket, KEYS, job.writer, Mirror(Path("/nonexistent"), job.blobs), policy)
    assert taken.due() and taken.take() is not None
    last = job.writer.acked
    assert not taken.due()
    due_at = 0
    for n in range(1, 20):
        job.writer.append(intent(n + 10))
        drain(job)
        since = job.writer.acked
        enough = since.segments - last.segments >= count if by == "segments" else since.size - last.size >= size
        assert taken.due() == enough
        due_at = due_at or n * enough
    assert due_at > 1


def test_a_second_snapshot_at_the_same_place_is_the_first() -> None:
    world, job = a_log()
    first = snapshots(world, job).take()
    world.clock.at += 5
    assert snapshots(world, job).take() == first


def test_after_a_snapshot_the_writer_stands_on_it() -> None:
    world = World()
    job = world.open("a")

    def grow(old: bytes, more: bytes) -> bytes:
        from tests.unit.wal.test_files import delta

        record, new = delta(job.blobs, old, [(len(old), more)], len(old) + len(more))
        job.writer.append(record)
        drain(job)
        return new

    content = grow(grow(b"", b"one"), b"two")
    before = job.writer.state
    with tempfile.TemporaryDirectory() as folder:
        assert snapshots(world, job, folder).take() is not None
    assert job.writer.state.files["f"].layers == ()
    grow(content, b"three")
    after = job.writer.state.files["f"]
    assert len(after.layers) == 1 and after.base_size == 6
    assert replay(world.bucket, KEYS).state == job.writer.state
    # What was begun anew since, or stands on other chunks, is not rebased.
    anew = State(files={"f": msgspec.structs.replace(after, chunks=(), base_size=0)})
    assert rebase(anew, before, job.writer.state) == anew
    moved = State(files={"f": msgspec.structs.replace(before.files["f"], chunks=("x",), base_size=1)})
    assert rebase(moved, before, job.writer.state) == moved
    other = State(files={"f": before.files["f"]})
    assert rebase(other, job.writer.state, State()) == other
    assert rebase(job.writer.state, before, before) == job.writer.state


def test_a_snapshot_compacts_the_sessions_that_the_job_has_left_too() -> None:
    """Those of other agents, and transcripts; one that is damaged stops no snapshot."""
    from tests.unit.wal.test_files import delta
    from wal_agent.wal.blobs import write_file

    world = World()
    job = world.open("a")

    def say(text: bytes, session: str) -> None:
        record, _ = delta(job.blobs, b"", [(0, text)], len(text))
        job.writer.append(FileGone(time=1.0, path="s.jsonl"))
        job.writer.append(msgspec.structs.replace(record, path="s.jsonl", session=session))
        drain(job)

    say(b"first", "1")
    say(b"second" * 100_000, "2")  # in a blob
    say(b"third", "3")
    job.writer.append(Handoff(time=2.0, before="gemini", agent="claude"))
    drain(job)
    assert [p.file.session for p in job.writer.state.past] == ["1", "2"]
    (blob,) = [e.data.blob for layer in job.writer.state.past[1].file.layers for e in layer.edits]
    assert blob is not None
    world.inner.delete(KEYS.blob(blob))
    with tempfile.TemporaryDirectory() as folder:
        assert snapshots(world, job, folder).take() is not None
        assert list(Path(folder).iterdir()) == [], "no copy is kept of what does not change"
    state = replay(world.bucket, KEYS).state
    assert [p.file.session for p in state.past] == ["1"]
    for file, text in ((state.past[0].file, b"first"), (state.shelf["gemini"].files["s.jsonl"], b"third")):
        assert file.layers == () and file.chunks
        with tempfile.TemporaryDirectory() as folder:
            write_file(job.blobs, file, Path(folder) / "f")
            assert (Path(folder) / "f").read_bytes() == text
    assert job.writer.state.shelf == state.shelf


def test_records_for_people_go_over_gaps() -> None:
    world, _ = a_log()
    world.inner.delete(KEYS.segment(3))
    assert [seq for seq, _ in iter_segments(world.bucket, KEYS)] == [1, 2, 4, 5, 6]
    assert [seq for seq, _ in iter_segments(world.bucket, KEYS, 4)] == [4, 5, 6]
    assert [seq for seq, _ in iter_readable(world.bucket, KEYS)] == [1, 2, 4, 5, 6]
    assert [seq for seq, _ in iter_readable(world.bucket, KEYS, 2)] == [2, 4, 5, 6]


def test_an_empty_log() -> None:
    assert replay(World().bucket, KEYS) == Replay()


@pytest.mark.parametrize("races", [1, reader.LISTS - 1, reader.LISTS])
def test_the_end_of_the_log_is_listed_again_where_it_moved_on_meanwhile(races: int) -> None:
    world, _ = a_log(2)
    gets: list[str] = []

    class Racing(BucketDecorator):
        def get(self, key: str) -> Object:
            gets.append(key)
            if len(gets) <= races:
                raise NotFound(key)
            return super().get(key)

    if races < reader.LISTS:
        assert read_tail(Racing(world.bucket), KEYS).seq == 3 and len(gets) == races + 1
    else:
        with pytest.raises(Damaged, match="record 3 of job shop is listed but cannot be read"):
            read_tail(Racing(world.bucket), KEYS)


def timed(*times: float) -> World:
    """Records at these times, the opening first."""
    world = World()
    world.clock.at = times[0]
    job = world.open("a")
    for n, at in enumerate(times[1:], 1):
        world.clock.at = at
        job.writer.append(intent(n))
        drain(job)
    return world


@pytest.mark.parametrize(("time", "seq"), [(99.0, 0), (100.0, 1), (149.0, 1), (150.0, 2), (151.0, 3), (9e9, 4)])
def test_a_time_means_the_last_record_made_by_then(time: float, seq: int) -> None:
    world = timed(100.0, 150.0, 151.0, 200.0)
    assert reader.seq_at_time(world.bucket, KEYS, time) == seq
    assert reader.seq_at_time(World().bucket, KEYS, time) == 0
    world.inner.delete(KEYS.segment(2))
    assert reader.seq_at_time(world.bucket, KEYS, time) == (1 if seq == 2 else seq), "gaps of retention"


def test_a_time_is_found_in_a_few_reads() -> None:
    world, gets = timed(*map(float, range(1, 65))), list[str]()

    class Counted(BucketDecorator):
        def get(self, key: str) -> Object:
            gets.append(key)
            return super().get(key)

    assert reader.seq_at_time(Counted(world.bucket), KEYS, 40.0) == 40 and len(gets) <= 7


def test_a_record_of_an_earlier_epoch_or_that_names_another_before_it_is_damage_in_its_place() -> None:
    """For people, who read on behind it."""
    world, job = a_log(2)
    world.take_over("b")
    raw = [world.inner.get(KEYS.segment(seq)).data for seq in range(1, 5)]

    def put(seq: int, prev: bytes, epoch: int) -> None:
        made = codec.encode_segment(codec.Author("shop", epoch, "a"), seq=seq, prev=prev, time=1.0, records=[])
        world.inner.put(KEYS.segment(seq), made)

    put(5, codec.digest(raw[3]), 1)
    put(6, bytes(32), 2)
    put(8, bytes(32), 1)
    found = {seq: one.what if isinstance(one, Damaged) else "" for seq, one in iter_readable(world.bucket, KEYS)}
    assert found == {
        **dict.fromkeys((1, 2, 3, 4, 8), ""),  # nothing is known of what was before 8
        5: "record 5 of job shop is damaged: epoch 1 follows epoch 2.",
        6: "record 6 of job shop is damaged: it does not chain to record 5.",
    }
    with pytest.raises(Damaged, match="record 5"):
        [*iter_segments(world.bucket, KEYS)]
    assert [seq for seq, _ in iter_segments(world.bucket, KEYS, 8)] == [8] and job.lease.epoch == 1


@pytest.mark.parametrize(
    ("epoch", "run", "records", "carried", "fits"),
    [
        (1, "a", (), 0, True),
        (1, "a", (), 1, True),
        (2, "b", (), 0, False),  # an epoch begins with its opening
        (1, "b", (), 0, False),
        (1, "a", (), 2, False),  # records of a run that is yet to come
        (2, "b", ("opening",), 0, True),
        (1, "a", ("opening",), 0, False),
        (2, "c", ("opening",), 0, False),
        (3, "b", ("opening",), 0, False),
    ],
)
def test_what_may_follow_in_the_log(epoch: int, run: str, records: tuple[str, ...], carried: int, fits: bool) -> None:
    """I2. The opening record says epoch 2 and run b."""
    world = World()
    first = world.open("a").replay
    opening = msgspec.structs.replace(first.state.openings[0].opening, epoch=2 if epoch != 1 else 1, run="b")
    if epoch == 1:
        opening = msgspec.structs.replace(opening, run="a")
    raw = [codec.encode_record(opening)[0] for _ in records]
    data = codec.encode_segment(
        codec.Author("shop", epoch, run), seq=2, prev=first.hash, time=1.0, records=raw, carried=carried
    )
    if fits:
        after = reader.apply_segment(first, "shop", 2, data)
        assert (after.seq, after.hash, after.segments_read - first.segments_read) == (2, codec.digest(data), 1)
        assert after.bytes_read - first.bytes_read == len(data)
    else:
        with pytest.raises(Damaged, match="record 2 of job shop is damaged: epoch"):
            reader.apply_segment(first, "shop", 2, data)


@pytest.mark.parametrize(
    ("seq", "end", "why"), [(3, "", "missing"), (4, "", ""), (4, "aa" * 32, "not the one"), (5, "aa" * 32, "")]
)
def test_what_the_lease_knows_of_the_logs_end(seq: int, end: str, why: str) -> None:
    said = KnownEnd(4, end).lacks("shop", seq, bytes(32))
    assert (why in said) if why else said == ""
    assert KnownEnd.by(None) == KnownEnd() and KnownEnd(4, bytes(32).hex()).lacks("shop", 4, bytes(32)) == ""


def test_what_was_read_before_is_read_on_up_to_where_it_was_asked_for() -> None:
    world, job = a_log(4)
    before = replay(world.bucket, KEYS, 3)
    for upto, read_on in ((3, True), (4, True), (2, False), (None, True)):
        found = reader.continue_replay(world.bucket, KEYS, before, upto)
        assert (found.seq, found.damage) == (upto or 5, None)
        assert found.segments_read == (upto or 5), read_on
    world.inner.delete(KEYS.segment(4))
    lost = reader.continue_replay(world.bucket, KEYS, before)
    assert lost.damage is not None and lost.damage.seq == 4 and job.lease.epoch == 1


def test_snapshots_are_had_newest_first_up_to_a_record() -> None:
    world, job = a_log(2)
    for n in (3, 4):
        snapshots(world, job).take()
        job.writer.append(intent(n))
        drain(job)
    assert reader.list_snapshots(world.bucket, KEYS) == [3, 4]
    for upto, seqs in ((None, [4, 3]), (4, [4, 3]), (3, [3]), (2, [])):
        assert [s.seq for s in iter_snapshots(world.bucket, KEYS, upto)] == seqs
    world.inner.put(f"{KEYS.snapshots}notes", b"")
    assert reader.list_snapshots(world.bucket, KEYS) == [3, 4]


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
    forged = codec.encode_segment(codec.Author("shop", 1, true.run), seq=4, prev=true.prev, time=true.time, records=raw)
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
    doc = msgspec.structs.replace(lease.decode_lease(found.data, "shop"), end="\x1b[2Jx" * 99)
    world.inner.put(KEYS.lease, lease.encode_lease(doc), if_version=found.version)
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
    assert leases.unlock(JobStore(world.bucket, KEYS, world.clock, rng), seen=seen, reason="x").seq == 4


# ---- what a read costs


class Asked(BucketDecorator):
    """Writes down what is listed, and from where, and what is read. It is far away, so threads read ahead."""

    def __init__(self, world: World) -> None:
        super().__init__(world.inner)
        self.url = "far://"
        self.lists: list[tuple[str, str]] = []
        self.gets: list[str] = []

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self.lists.append((prefix, start_after.removeprefix(prefix)))
        return super().list(prefix, start_after)

    def get(self, key: str) -> Object:
        self.gets.append(key)
        return super().get(key)


@pytest.mark.parametrize(
    ("hint", "after"), [(0, [""]), (1, [""]), (2, ["0" * 19 + "1"]), (4, ["0" * 19 + "3"]), (9, ["0" * 19 + "8", ""])]
)
def test_the_end_is_listed_from_the_record_that_the_lease_names(hint: int, after: list[str]) -> None:
    bucket = Asked(a_log(3)[0])
    assert read_tail(bucket, KEYS, hint).seq == 4
    assert bucket.lists == [(KEYS.log, start) for start in after]


def test_an_empty_log_is_listed_once_for_its_end_and_strangers_objects_are_no_records() -> None:
    bucket = Asked(World())
    assert read_tail(bucket, KEYS, 1) == Tail() and len(bucket.lists) == 1 and not bucket.gets
    bucket.put(f"{KEYS.log}notes", b"")
    assert read_tail(bucket, KEYS) == Tail() and not bucket.gets


@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_records_are_listed_from_the_one_that_is_asked_for(start: int) -> None:
    bucket = Asked(a_log(3)[0])
    assert [seq for seq, _ in iter_segments(bucket, KEYS, start)] == [*range(start, 5)]
    assert bucket.lists == [(KEYS.log, f"{start - 1:020d}" if start > 1 else "")]


def test_a_caller_that_stops_at_a_record_has_read_no_further() -> None:
    bucket = Asked(a_log(5)[0])
    assert next(iter_segments(bucket, KEYS))[0] == 1 and bucket.gets == [KEYS.segment(1)]


def test_a_sound_log_is_listed_once_and_each_record_read_once() -> None:
    bucket = Asked(a_log(3)[0])
    found = replay(bucket, KEYS)
    assert (found.seq, found.segments_read) == (4, 4)
    assert sorted(bucket.lists) == [(KEYS.log, ""), (KEYS.snapshots, "")]
    assert sorted(bucket.gets) == [KEYS.segment(seq) for seq in range(1, 5)]


@pytest.mark.parametrize(("url", "ahead"), [("file:///b", False), ("memory://", False), ("s3://b", True)])
def test_only_of_a_bucket_far_away_threads_read_ahead(url: str, ahead: bool, tmp_path: Path) -> None:
    """A thread costs more than to read a file does."""
    world, job = a_log(3)
    snapshots(world, job, tmp_path).take()
    by = set[threading.Thread]()

    class Threads(Asked):
        def get(self, key: str) -> Object:
            by.add(threading.current_thread())
            return super().get(key)

    bucket = Threads(world)
    bucket.url = url
    for read in (lambda: [*iter_readable(bucket, KEYS)], lambda: replay(bucket, KEYS)):
        by.clear()
        read()
        assert (by != {threading.current_thread()}) is ahead


def test_what_was_read_up_to_there_is_not_read_again() -> None:
    world, _ = a_log(3)
    before = replay(world.bucket, KEYS, 3)
    bucket = Asked(world)
    assert reader.continue_replay(bucket, KEYS, before, 3) == before and bucket.gets == []
    assert reader.continue_replay(bucket, KEYS, before, 4).seq == 4 and bucket.gets == [KEYS.segment(4)]
    assert [lists[0] for lists in bucket.lists] == [KEYS.log] * 2


def test_nothing_is_in_front_of_the_first_record() -> None:
    bucket = Asked(a_log(2)[0])
    assert [*iter_replays_back(bucket, KEYS, 0)] == [] and bucket.lists == []
    assert [at.seq for at in iter_replays_back(bucket, KEYS, 1)] == [1]


def test_an_object_with_the_number_zero_is_no_record() -> None:
    world, _ = a_log(2)
    world.inner.put(KEYS.segment(0), b"junk")
    found = replay(world.bucket, KEYS)
    assert (found.seq, found.damage) == (3, None) and read_tail(world.bucket, KEYS).seq == 3


def test_a_state_that_no_run_can_have_written_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hostile log costs hours and gigabytes."""
    world, _ = a_log(2)
    monkeypatch.setattr(reader, "exceeded_limit", lambda state: "it has too much" if state.calls > 1 else "")
    found = replay(world.bucket, KEYS)
    assert found.damage is not None and (found.seq, found.damage.seq) == (2, 3)
    assert found.damage.why == "record 3 of job shop is damaged: it has too much."


def test_a_record_that_the_bucket_calls_damaged_is_named_in_its_words() -> None:
    """As an encrypted bucket does with an object that somebody has changed."""
    world, _ = a_log(2)

    class Changed(Asked):
        def get(self, key: str) -> Object:
            if key == KEYS.segment(3):
                raise Damaged("it was changed")
            return super().get(key)

    found = replay(Changed(world), KEYS)
    assert found.damage is not None and (found.seq, found.damage.seq, found.damage.missing) == (2, 3, False)
    assert found.damage.why == "record 3 of job shop is damaged: it was changed"


@pytest.mark.parametrize(("newest", "lost", "gone"), [(3, 4, False), (4, 4, True), (5, 4, True), (0, 4, False)])
def test_what_is_in_front_of_the_newest_snapshot_went_by_retention(
    newest: int, lost: int, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [mock.Mock(seq=newest)] if newest else []
    monkeypatch.setattr(reader, "iter_snapshots", lambda *_: iter(made))
    for missing in (True, False):
        found = Replay(damage=reader.Damage(lost, "why", lost - 1, 0.0, missing=missing))
        damage = reader._explain_damage(World().bucket, KEYS, found).damage
        assert damage is not None and (damage.why != "why") is (gone and missing)
    assert reader._explain_damage(World().bucket, KEYS, Replay()) == Replay()

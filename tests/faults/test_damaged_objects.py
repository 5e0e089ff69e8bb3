"""Segments, snapshots and blobs that are cut, flipped, swapped, missing, from elsewhere, or claim what they are not
(I3, I4); see trial.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.prober import Prober
from tests.faults.ruins import (
    KEYS,
    LAST,
    MAIN,
    SNAPSHOTS,
    STRANGERS,
    Machine,
    a_job,
    contents,
    last_snapshot,
    opened,
    put,
)
from tests.faults.trial import Ruin, sane
from tests.servers import fresh_bucket, shared
from tests.tiers import examples, once
from wal_agent.bucket.base import Bucket, MemoryBucket
from wal_agent.errors import Damaged
from wal_agent.wal import codec, lease
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys, is_blob
from wal_agent.wal.reader import read_tail, replay
from wal_agent.wal.state import State
from wal_agent.wal.store import JobStore

# ---- the objects of the log ----------------------------------------------------------------------------------------


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def bomb(size: int = 10 << 30) -> bytes:
    """A zstd frame whose header claims `size` bytes."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b1110_0000]) + size.to_bytes(8, "little") + b"\x01\x00\x00"


def stranger(scratch: Path) -> MemoryBucket:
    """Another job."""
    bucket = MemoryBucket()
    a_job(bucket, scratch, Keys("other"))
    return bucket


Change = Callable[[Bucket, str, Path], None]
CHANGES: dict[str, Change] = {
    "empty": lambda bucket, key, _: put(bucket, key, b""),
    "half": lambda bucket, key, _: put(bucket, key, half(bucket.get(key).data)),
    "longer": lambda bucket, key, _: put(bucket, key, bucket.get(key).data + b"x"),
    "flipped": lambda bucket, key, _: put(bucket, key, flipped(bucket.get(key).data, len(bucket.get(key).data) // 2)),
    "missing": lambda bucket, key, _: put(bucket, key, None),
    "a bomb": lambda bucket, key, _: put(bucket, key, bomb()),
    "a real bomb": lambda bucket, key, _: put(bucket, key, zstd.compress(bytes(100_000_000))),
    "nested": lambda bucket, key, _: put(bucket, key, codec.compress(b"\x91" * 1_000_000)),
    "of another job": lambda bucket, key, scratch: put(
        bucket, key, stranger(scratch).get(key.replace(KEYS.job, "other", 1)).data
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seq", [8, LAST])
def test_a_segment_behind_the_snapshots(ruin: Ruin, seq: int, change: str, tmp_path: Path) -> None:
    """I3: it is named, and everything before it can be had."""
    ruin.damage(lambda bucket: CHANGES[change](bucket, KEYS.segment(seq), tmp_path / "s"))
    ruin.refused(f"record {seq} of job shop is (damaged|missing)", "wal-agent restore --", good=seq - 1)
    ruin.holds(seq - 1)
    ruin.holds(5, "--at", "5")
    log = ruin.reads("log")
    assert log.code == 73 and "make step-1" in log.out, "what is whole is shown"
    assert re.search(f"ecord {seq} of job shop is (damaged|missing)", log.ours[-1])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seq", once([1, 5, SNAPSHOTS[1]], 5))
def test_a_segment_that_a_snapshot_covers(ruin: Ruin, seq: int, change: str, tmp_path: Path) -> None:
    """What a snapshot that counts covers is not needed; one that names a damaged segment counts no more, and the older
    one takes its place, up to the damage."""
    ruin.damage(lambda bucket: CHANGES[change](bucket, KEYS.segment(seq), tmp_path / "s"))
    if seq < SNAPSHOTS[1] or change == "missing":
        ruin.healed()
    else:
        ruin.refused(f"record {seq} of job shop is damaged", "wal-agent restore --", good=seq - 1)
        ruin.holds(seq - 1)


def test_without_its_beginning_and_its_snapshots_nothing_can_be_had(ruin: Ruin) -> None:
    def damage(bucket: Bucket) -> None:
        put(bucket, KEYS.segment(1), b"")
        for seq in SNAPSHOTS:
            put(bucket, KEYS.snapshot(seq), b"")

    ruin.damage(damage)
    ruin.refused("record 1 of job shop is damaged.*Nothing before it can be restored", "--job NAME")
    said = ruin.reads("restore", "--to", "out")
    assert said.code == 73 and "nothing was saved" in said.err


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_snapshot_is_passed_over(ruin: Ruin, change: str, tmp_path: Path) -> None:
    """R5: an older one, and the segments behind it, say the same."""
    for seq in reversed(SNAPSHOTS):
        ruin.damage(lambda bucket, seq=seq: CHANGES[change](bucket, KEYS.snapshot(seq), tmp_path / f"s{seq}"))  # type: ignore[misc]
        assert json.loads(ruin.reads("status", "--json").out)["session_bytes"] == len(ruin.history[LAST]) + 7
    ruin.healed()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (KEYS.segment(8), KEYS.segment(9)),
        (KEYS.segment(8), KEYS.segment(2)),
        (KEYS.segment(8), KEYS.snapshot(7)),
        (KEYS.segment(8), KEYS.lease),
        (KEYS.snapshot(4), KEYS.snapshot(7)),
    ],
)
def test_two_objects_in_each_others_place(ruin: Ruin, a: str, b: str) -> None:
    def swap(bucket: Bucket) -> None:
        x, y = bucket.get(a).data, bucket.get(b).data
        put(bucket, a, y)
        put(bucket, b, x)

    ruin.damage(swap)
    if KEYS.lease in (a, b):
        ruin.refused("The lease of job shop is damaged", "wal-agent unlock --job shop")
    elif KEYS.segment(8) in (a, b):
        ruin.refused("record 8 of job shop is damaged", "wal-agent restore --", good=7)
    else:
        ruin.healed()


def test_a_segment_a_second_time(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: put(bucket, KEYS.segment(LAST + 1), bucket.get(KEYS.segment(LAST)).data))
    ruin.refused("record 10 of job shop is damaged: it calls itself record 9", "wal-agent restore --", good=LAST)
    ruin.holds(LAST)


def test_numbers_that_no_log_reaches(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: put(bucket, f"{KEYS.log}{'9' * 20}", bucket.get(KEYS.segment(LAST)).data))
    ruin.refused("record 10 of job shop is missing", "wal-agent restore --", good=LAST)


def same(a: State, b: State) -> None:
    """They say the same, though of files one may stand on a snapshot's chunks and the other on deltas."""
    assert {n: f.sha256 for n, f in a.files.items()} == {n: f.sha256 for n, f in b.files.items()}
    assert msgspec.structs.replace(a, files={}) == msgspec.structs.replace(b, files={})


def test_every_97th_byte_of_every_object(ruin: Ruin, made: tuple[Path, list[bytes]]) -> None:
    """In turn, through the reader itself: a flipped byte is found, or it means nothing; never anything else."""
    bucket = MemoryBucket()
    with opened(made[0].as_uri()) as stored:
        for key, data in contents(stored).items():
            assert data is not None
            bucket.put(key, data)
    sound = replay(bucket, KEYS, parallel=1)
    assert sound.damage is None and sound.seq == LAST
    tried = 0
    for key in [e.key for e in bucket.list("") if not e.key.startswith(KEYS.blobs)]:
        good = bucket.get(key).data
        for at in range(0, len(good), 97):
            put(bucket, key, flipped(good, at))
            tried += 1
            found = replay(bucket, KEYS, parallel=1)
            if found.damage is None:
                same(found.state, sound.state)
            else:
                assert key == KEYS.segment(found.damage.seq), key
                assert found.damage.good == found.damage.seq - 1 == found.seq
            with suppress(Damaged):
                read_tail(bucket, KEYS)
                lease.decode_lease(bucket.get(KEYS.lease).data, KEYS.job)
        put(bucket, key, good)
    assert tried > 40


def test_every_97th_byte_of_a_blob(made: tuple[Path, list[bytes]]) -> None:
    with opened(made[0].as_uri()) as stored:
        name = last_snapshot(stored).state.files[MAIN].chunks[0]
        good = stored.get(KEYS.blob(name)).data
    bucket = MemoryBucket()
    blobs = Blobs(JobStore(bucket, KEYS))
    for at in range(0, len(good), 97):
        put(bucket, KEYS.blob(name), flipped(good, at))
        with pytest.raises(Damaged, match=name):
            blobs.get(name)


# ---- blobs ---------------------------------------------------------------------------------------------------------


def blobs_of(bucket: Bucket) -> dict[str, set[str]]:
    """What holds the main file now: the chunks of the newest snapshot, and the blobs of segments, by their key."""
    chunks = {KEYS.blob(c) for c in last_snapshot(bucket).state.files[MAIN].chunks}
    every = {e.key for e in bucket.list(KEYS.blobs) if is_blob(e.key.rpartition("/")[2]) and e.size > 1000}
    return {"chunks": chunks, "sent": every - chunks}


@pytest.mark.parametrize("change", ["empty", "half", "longer", "flipped", "missing", "a bomb"])
def test_a_chunk_of_the_session(ruin: Ruin, change: str, tmp_path: Path) -> None:
    """What needs the bytes says which are lost, and the newest record that is whole is offered by a
    command that can be pasted. `status` reads no blob, so it finds what is missing or has another length."""

    def damage(bucket: Bucket) -> None:
        for key in blobs_of(bucket)["chunks"]:
            CHANGES[change](bucket, key, tmp_path)

    ruin.damage(damage)
    status = ruin.reads("status")
    assert status.code == (0 if change == "flipped" else 73)
    foreseen = ruin.reads("recover", "--dry-run")
    for said in (foreseen, ruin.runs(), *([status] if status.code else [])):
        assert said.code == 73 and re.search("Blob [0-9a-f]{64}.* of job shop is (damaged|missing)", said.ours[-1])
        assert "wal-agent restore --" in said.ours[-1]
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        ruin_seq = read_tail(bucket, KEYS).seq
    said = ruin.holds(ruin_seq, main=7, code=73)
    assert f"{MAIN} is of an earlier time" in said.ours[0]
    for told in (foreseen, said, *([status] if status.code else [])):
        shutil.rmtree(ruin.machine.work / "shop-record-6", ignore_errors=True)
        found = re.search(r"Record 6 \(.*?\) can be had whole: `wal-agent (restore [^`]*)`", told.err)
        assert found is not None, told.err
        assert ruin.machine(*shlex.split(found[1])).code == 0
        assert (ruin.machine.work / "shop-record-6/session" / MAIN).read_bytes() == ruin.history[6]


def test_blobs_that_only_old_segments_name(ruin: Ruin) -> None:
    def damage(bucket: Bucket) -> None:
        for key in blobs_of(bucket)["sent"]:
            put(bucket, key, b"junk")

    ruin.damage(damage)
    ruin.healed()


def test_all_blobs_gone(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: bucket.delete(*[e.key for e in bucket.list(KEYS.blobs)]))
    said = ruin.machine("restore", "--to", "out")
    assert sane(said).code == 73 and f"{MAIN} cannot be had" in said.ours[0]
    assert {p.name for p in (ruin.machine.work / "out/session").rglob("*") if p.is_file()} <= {"next.md"}


# ---- on stores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", once(["azurite", "fake-gcs", "ministack"], "fake-gcs", "ministack"))
def test_the_same_on_a_store(name: str, prober: Prober, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared(name)
    for key, value in server.env.items():
        monkeypatch.setenv(key, value)
    url = fresh_bucket(server)
    with opened(url) as bucket:
        history = a_job(bucket, tmp_path / "scratch")
    machine = Machine(tmp_path, prober, url, server.env)
    try:
        ruin = Ruin(machine, history)
        ruin.damage(lambda bucket: [bucket.put(f"{KEYS.job}/{name}", b"x") for name in STRANGERS[:4]])
        assert json.loads(ruin.reads("status", "--json").out)["damage"] == ""
        ruin.damage(lambda bucket: put(bucket, KEYS.snapshot(7), bomb()))
        ruin.holds(LAST)
        ruin.damage(lambda bucket: put(bucket, KEYS.segment(LAST), None))
        ruin.refused("record 9 of job shop is missing", "wal-agent restore --", good=8)
        ruin.damage(lambda bucket: put(bucket, KEYS.segment(8), bomb()))
        ruin.refused("record 8 of job shop is damaged", "wal-agent restore --", good=7)
        ruin.holds(7)
        ruin.damage(lambda bucket: put(bucket, KEYS.lease, b"junk"))
        ruin.refused("The lease of job shop is damaged", "wal-agent unlock --job shop")
    finally:
        machine.end()


# ---- any bytes -----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=400))
def test_a_lease_of_any_bytes(data: bytes) -> None:
    for raw in (data, b'{"format": 1,' + data):
        with pytest.raises(Damaged, match="The lease of job shop is damaged") as error:
            lease.decode_lease(raw, "shop")
        assert len(str(error.value)) < 400 and str(error.value).isprintable()


class Pieces:
    """The sound job's objects, to be mutated."""

    objects: dict[str, bytes] = {}


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_mutation_of_any_object_is_found_or_means_nothing(
    made: tuple[Path, list[bytes]], data: st.DataObject
) -> None:
    """I3, R5: the replay of a mutated log is the sound one, or damage that is named with a sound beginning."""
    if not Pieces.objects:
        with opened(made[0].as_uri()) as stored:
            Pieces.objects = {k: v for k, v in contents(stored).items() if v is not None}
    bucket = MemoryBucket()
    for key, value in Pieces.objects.items():
        bucket.put(key, value)
    sound = {seq: replay(bucket, KEYS, seq, parallel=1).state for seq in range(1, LAST + 1)}
    keys = [k for k in Pieces.objects if "/log/" in k or "/snapshots/" in k]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        value = Pieces.objects[key]
        at = data.draw(st.integers(0, len(value)))
        cut = data.draw(st.integers(0, 40))
        put(bucket, key, value[:at] + data.draw(st.binary(max_size=40)) + value[at + cut :])
    found = replay(bucket, KEYS, parallel=1)
    if found.damage is not None:
        assert found.damage.good == found.seq and str(found.damage.why).isprintable() and len(found.damage.why) < 500
    if found.seq:
        same(found.state, sound[found.seq])

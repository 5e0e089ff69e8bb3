"""What a newer wal-agent wrote is told apart from damage, and nothing here replaces it. The commands:
tests/faults/test_newer.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recovery.lab import Lab
from tests.unit.wal.spooling import Disk, call, cut_off, down, up
from tests.unit.wal.world import KEYS, World, intent
from wal_agent.bucket import file
from wal_agent.bucket.file import FileBucket
from wal_agent.bucket.folder import MARKER
from wal_agent.budget import FOREIGN
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, Newer
from wal_agent.fleet import watch
from wal_agent.recovery.restore_target import RestoreMarker, read_marker, write_marker
from wal_agent.wal import codec, lease
from wal_agent.wal import codec as packing
from wal_agent.wal.job import close_job
from wal_agent.wal.lease import replace_damaged_lease
from wal_agent.wal.reader import Tail
from wal_agent.wal.retention import Retention


def later(data: bytes, **fields: object) -> bytes:
    """A segment or snapshot of format 2."""
    value = msgspec.msgpack.decode(packing.decompress(data, FOREIGN.segment))
    return packing.pack({**value, "format": 2, **fields})


def replaced(world: World, key: str, data: bytes) -> None:
    world.inner.delete(key)
    world.inner.put(key, data)


def content(world: World) -> dict[str, bytes]:
    return {e.key: world.inner.get(e.key).data for e in world.inner.list("")}


# ---- what is newer, and what is damaged


def segment(record: dict[str, Any], **more: object) -> bytes:
    made: dict[str, Any] = {
        "format": 1,
        "job": "j",
        "epoch": 1,
        "seq": 3,
        "run": "r",
        "prev": bytes(32),
        "time": 0.0,
        "records": [record],
    }
    return packing.pack({**made, **more})


GONE = {"t": "file_gone", "time": 1.0, "path": "x"}
FILE = {"t": "file", "time": 1.0, "path": "x", "size": 1, "sha256": "0" * 64, "session": "s"}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (segment(GONE, format=2), "format 2"),
        (segment(GONE, format=10**18), "format 1000000000000000000"),
        (packing.pack({"format": 3}), "format 3"),
        (segment({"t": "tool_budget"}), "record type `tool_budget`"),
        (segment({**GONE, "trashed": True}), "field `trashed`"),
        (
            segment({**FILE, "edits": [{"offset": 0, "data": {"size": 1, "data": b"x", "codec": "br"}}]}),
            "field `codec`",
        ),
        (segment(GONE, signed=b"x"), "field `signed`"),
        (segment({"t": "end", "time": 1.0, "call": 1, "how": "rolled_back", "by": "hook"}), "word `rolled_back`"),
    ],
)
def test_what_a_later_version_may_have_added_is_newer(data: bytes, what: str) -> None:
    with pytest.raises(Newer) as caught:
        codec.decode_segment(data, job="j", seq=3)
    assert caught.value.what == f"Record 3 of job j was written by a newer wal-agent ({what})."
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    "data",
    [
        segment(GONE, format=0),
        segment(GONE, format=-1),
        segment(GONE, format="2"),
        segment(GONE, format=2.0),
        segment(GONE, format=None),
        segment({"t": "Tool\x1b[2J"}),
        segment({"t": "x" * 41}),
        segment({"t": 5}),
        segment({"time": 1.0}),
        segment({**GONE, "time": "late"}),
        segment({**GONE, "Not A Field": 1}),
        segment(GONE, seq=0),
        segment(GONE, records={"t": "tool_budget"}),
        packing.pack([{"format": 2}]),
        packing.pack({"FORMAT": 2}),
    ],
)
def test_what_none_could_write_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged):
        codec.decode_segment(data, job="j", seq=3)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_of_a_frame_is_never_newer(at: int, by: int) -> None:
    raw = bytearray(file.encode_frame(file.Frame(1, b"n" * 8, b"payload")))
    raw[at % len(raw)] ^= by
    with pytest.raises(Damaged):
        file.decode_frame(bytes(raw), "job/x")


# ---- nothing is replaced


def test_a_writer_that_finds_one_at_its_place_ends_and_leaves_it() -> None:
    """I2: a newer wal-agent has taken the job over; whose it is cannot be read, so the run ends with 78."""
    world = World()
    job = world.open("a")
    theirs = later(world.inner.get(KEYS.segment(1)).data, seq=2)
    world.inner.put(KEYS.segment(2), theirs)
    ticket = job.writer.append(intent(1))
    assert job.writer.commit_once() == "ended"
    assert isinstance(job.writer.ended, Newer)
    with pytest.raises(Newer):
        ticket.wait(0.0)
    assert world.inner.get(KEYS.segment(2)).data == theirs


def test_a_renewal_that_finds_one_ends() -> None:
    world = World()
    job = world.open("a")
    theirs = json.dumps({**json.loads(world.inner.get(KEYS.lease).data), "format": 2}).encode()
    replaced(world, KEYS.lease, theirs)
    with pytest.raises(Newer, match="The lease of job shop"):
        job.lease.renew()
    with pytest.raises(Newer, match="The lease of job shop"):
        job.lease.settle("closed", budget=1.0)
    assert world.inner.get(KEYS.lease).data == theirs


@pytest.mark.parametrize("layout", [{"format": 2}, {"format": 2, "job": ["shop"], "epoch": "x"}])
def test_a_lease_is_not_repaired(layout: dict[str, object]) -> None:
    world = World()
    close_job(world.open("a"), "released")
    replaced(world, KEYS.lease, json.dumps(layout).encode())
    before = content(world)
    with pytest.raises(Newer):
        replace_damaged_lease(
            msgspec.structs.replace(world.store, budget=1.0),
            tail=Tail(1, 1),
            ttl=30.0,
            key="",
            reason="",
        )
    assert content(world) == before


def test_a_frame_is_not_replaced_by_a_put(tmp_path: Path) -> None:
    bucket = FileBucket(tmp_path)
    version = bucket.put("job/lease.json", b"old")
    path = tmp_path / "job/lease.json="
    raw = path.read_bytes()
    path.write_bytes(theirs := raw[:8] + (2).to_bytes(2, "big") + b"\x09" * 70)
    for act in (lambda: bucket.put("job/lease.json", b"new", if_version=version), lambda: bucket.get("job/lease.json")):
        with pytest.raises(Newer, match="format 2"):
            act()
    assert path.read_bytes() == theirs


def test_a_bucket_whose_marker_is_newer_is_not_used(tmp_path: Path) -> None:
    FileBucket(tmp_path).put("a", b"")
    (tmp_path / MARKER).write_text(json.dumps({"format": 2, "id": "0" * 32}))
    for act in (lambda b: b.put("b", b""), lambda b: b.get("a"), lambda b: [*b.list("")], lambda b: b.delete("a")):
        with pytest.raises(Newer):
            act(FileBucket(tmp_path))
    assert (tmp_path / "a=").exists() and not (tmp_path / "b=").exists()


def test_retention_deletes_nothing_beside_a_newer_snapshot() -> None:
    world = World()
    job = world.open("a")
    for seq in (2, 3):
        job.writer.append(intent(seq))
        job.writer.commit_once()
    world.inner.put(KEYS.snapshot(3), packing.pack({"format": 2, "state": "other"}))
    world.clock.at += 1e6
    before = content(world)
    with pytest.raises(Newer, match="Snapshot 3"):
        Retention(world.bucket, KEYS, age=0.0).run()
    assert content(world) == before


def test_a_spool_is_read_before_the_lease_is_taken(tmp_path: Path) -> None:
    """R9: an opening in front of what cannot be carried in would leave it behind."""
    world = World()
    disk = Disk(world, tmp_path / "spools")
    job = disk.start("a")
    down(world)
    call(job, "one")
    cut_off(job)
    up(world)
    (kept,) = disk.spools.rglob("0" * 19 + "2")
    kept.write_bytes(theirs := later(kept.read_bytes()))
    disk.reboot()
    world.clock.at += 100
    before = content(world)
    with pytest.raises(Newer, match="Record 2"):
        disk.start("b")
    assert content(world) == before and kept.read_bytes() == theirs


def test_a_note_of_a_restore_is_not_written_over(tmp_path: Path) -> None:
    shadow = Lab(tmp_path).machine("a").target.shadow()
    shadow.folder.parent.mkdir(parents=True)
    write_marker(shadow, RestoreMarker("0" * 40))
    (note,) = shadow.folder.parent.glob("*-restoring")
    assert read_marker(shadow) == RestoreMarker("0" * 40)
    note.write_text(json.dumps({"format": 2, "commits": []}))
    with pytest.raises(Newer, match="restoring"):
        read_marker(shadow)


def test_the_memory_of_the_watchers_is_not_replaced() -> None:
    world = World()
    world.inner.put(watch.KEY, b'{"format": 2, "log": []}')
    with pytest.raises(Newer, match=watch.KEY):
        watch.ResultStore(world.inner, SystemClock(), world.rng)
    with pytest.raises(Newer):
        lease.decode_lease(b'{"format": 2}', "shop")

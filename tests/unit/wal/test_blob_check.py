"""wal/damage.py: whether the bucket has the blobs that a restore needs, and what it costs to know (12.13)."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from tests.unit.wal.world import KEYS, World, drain
from wal_agent.bucket import encryption
from wal_agent.bucket.base import Bucket, MemoryBucket
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.bucket.encryption import EncryptedBucket, Key
from wal_agent.bucket.file import FileBucket
from wal_agent.records import Edit, FileDelta, Pack, Payload, Workspace
from wal_agent.wal import damage
from wal_agent.wal.blobs import CHUNK, Blobs
from wal_agent.wal.damage import CheckedBlobs, find_damaged_blobs, find_missing_blobs, needed_blobs, newest_restorable
from wal_agent.wal.state import FileState, State
from wal_agent.wal.store import JobStore


class Far(MemoryBucket):
    """Asked one by one, as a store far away is."""

    def __init__(self) -> None:
        super().__init__()
        self.url = "s3://far"


def blobs_on(bucket: Bucket) -> Blobs:
    return Blobs(JobStore(bucket, KEYS, rng=random.Random(1)), epoch=1)


def a_state(blobs: Blobs, count: int) -> State:
    """A file of `count` chunks and a delta, and a tree of one pack."""
    chunks = blobs.put_each(n.to_bytes(2) * (CHUNK // 2 if n < count - 1 else 5) for n in range(count))
    delta = blobs.put_payload(b"d" * 100_000)
    size = (count - 1) * CHUNK + 10
    layer = FileDelta(time=1, path="f", size=size, sha256="", edits=(Edit(offset=9, data=delta),), session="s")
    file = FileState(session="s", size=size, sha256="", base_size=size, chunks=tuple(chunks), layers=(layer,))
    pack = Pack(size=200_000, sha256="", parts=(blobs.put_payload(b"p" * 200_000), Payload(size=1, data=b"x")))
    return State(files={"f": file}, workspace=Workspace(time=1, holds=0, commit="c", packs=(pack,), whole=True))


@pytest.mark.parametrize("kind", ["memory", "far", "file"])
@pytest.mark.parametrize("sealed", [True, False])
def test_what_is_there_is_found_whatever_is_around_it(kind: str, sealed: bool, tmp_path: Path) -> None:
    inner: Bucket = FileBucket(tmp_path) if kind == "file" else Far() if kind == "far" else MemoryBucket()
    bucket: Bucket = EncryptedBucket(inner, Key(bytes(range(32)))) if sealed else inner
    blobs = blobs_on(bucket)
    wanted, known = needed_blobs(a_state(blobs, 3)), CheckedBlobs()
    assert len(wanted) == 5 and find_missing_blobs(bucket, KEYS, wanted, known) == [] and known.there == wanted.keys()
    assert find_damaged_blobs(blobs, wanted, known) == []
    more = encryption.SEALED_OVERHEAD if sealed else 0
    for name, (size, what) in sorted(wanted.items()):
        data = inner.get(KEYS.blob(name)).data
        assert len(data) == size + more
        inner.delete(KEYS.blob(name))
        (lack,) = find_missing_blobs(bucket, KEYS, wanted, CheckedBlobs())
        assert (lack.name, lack.what) == (name, what) and "is missing" in lack.why
        inner.put(KEYS.blob(name), data[:-1])
        (lack,) = find_missing_blobs(bucket, KEYS, wanted, CheckedBlobs())
        assert lack.name == name and "is damaged" in lack.why
        inner.delete(KEYS.blob(name))
        inner.put(KEYS.blob(name), data[:-1] + bytes([data[-1] ^ 1]))
        assert find_missing_blobs(bucket, KEYS, wanted, CheckedBlobs()) == [], "its length is right"
        (lack,) = find_damaged_blobs(blobs, wanted, CheckedBlobs())
        assert lack.name == name and "damaged" in lack.why
        inner.delete(KEYS.blob(name))
        inner.put(KEYS.blob(name), data)


@pytest.mark.parametrize(("count", "requests"), [(20, 22), (damage.EACH, 1)])
def test_the_requests_are_bounded(count: int, requests: int) -> None:
    """One for each blob, or one listing; what is known is not asked again."""
    bucket = MeterBucket(Far())
    state = a_state(blobs_on(bucket), count)
    before, known = bucket.snapshot(), CheckedBlobs()
    assert (
        find_missing_blobs(bucket, KEYS, needed_blobs(state), known)
        == []
        == find_missing_blobs(bucket, KEYS, needed_blobs(state), known)
    )
    after = bucket.snapshot()
    assert (after.list.requests - before.list.requests, after.get.requests) == (requests, before.get.requests)


def test_what_a_later_delta_wrote_over_is_not_needed() -> None:
    whole = FileDelta(
        time=1, path="f", size=9, sha256="", edits=(Edit(offset=0, data=Payload(size=9, data=bytes(9))),), session="s"
    )
    name = hashlib.sha256(b"").hexdigest()
    file = FileState(session="s", size=9, sha256="", base_size=5, chunks=(name,), layers=(whole,))
    assert needed_blobs(State(files={"f": file})) == {}


def test_a_name_that_is_none_is_missing() -> None:
    file = FileState(session="s", size=5, sha256="", base_size=5, chunks=("../../x",))
    (lack,) = find_missing_blobs(MemoryBucket(), KEYS, needed_blobs(State(files={"f": file})), CheckedBlobs())
    assert "is missing" in lack.why


def test_the_newest_place_whose_blobs_are_there_and_right() -> None:
    world = World()
    job = world.open("a")
    versions = [b"1" * 70_000, b"2" * 70_000]
    payloads = [job.blobs.put_payload(data) for data in versions]
    for data, payload in zip(versions, payloads, strict=True):
        sha256, edits = hashlib.sha256(data).hexdigest(), (Edit(offset=0, data=payload),)
        job.writer.append(FileDelta(time=1, path="f", size=len(data), sha256=sha256, edits=edits, session="s"))
        drain(job)
    first, second = (str(payload.blob) for payload in payloads)

    def newest(known: CheckedBlobs, blobs: Blobs | None = None) -> int:
        found = newest_restorable(world.inner, KEYS, 3, known, blobs)
        return found.seq if found else 0

    assert newest(CheckedBlobs()) == newest(CheckedBlobs(), job.blobs) == 3
    assert newest(CheckedBlobs(bad={second: "damaged"})) == 2
    world.inner.delete(KEYS.blob(second))
    world.inner.put(KEYS.blob(second), b"x" * 70_000)
    known = CheckedBlobs()
    assert (newest(known), newest(known, job.blobs)) == (3, 2) and known.bad.keys() == {second}
    world.inner.delete(KEYS.blob(second))
    assert newest(CheckedBlobs()) == 2
    world.inner.delete(KEYS.blob(first))
    assert newest(CheckedBlobs()) == 0, "the opening alone restores nothing"

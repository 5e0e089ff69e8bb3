"""wal/blobs.py: durable before it is named, verified when it comes back."""

from __future__ import annotations

import hashlib

import pytest

from tests.unit.wal.world import KEYS, World
from wal_agent.errors import Damaged, Unavailable
from wal_agent.records import Payload
from wal_agent.wal.blobs import INLINE, PIN, Blobs


def blobs(world: World, parallel: int = 1) -> Blobs:
    return Blobs(world.bucket, KEYS, world.clock, world.rng, parallel=parallel)


def test_small_is_inline_and_bulk_is_a_blob() -> None:
    world = World()
    for size in (0, 1, INLINE, INLINE + 1, 3 * INLINE):
        payload = blobs(world).put_payload(b"x" * size)
        assert (payload.blob is None) == (size <= INLINE)
        assert blobs(world).fetch(payload) == b"x" * size
    assert len(list(world.inner.list(KEYS.blobs))) == 2


@pytest.mark.parametrize("fates", [["lost"], ["dropped"], ["dropped", "lost"]])
def test_an_undecided_put_is_sent_again(fates: list[str]) -> None:
    world = World()
    world.bucket.fates = fates
    name = blobs(world).put(b"data")
    assert world.inner.get(KEYS.blob(name)).data == b"data"


def test_the_error_comes_out_when_the_bucket_stays_away() -> None:
    world = World()
    world.bucket.fates = ["dropped"] * 1000
    with pytest.raises(Unavailable):
        blobs(world).put(b"data")


def test_several_at_a_time_keep_their_order() -> None:
    datas = [bytes([n]) * (INLINE + 1) for n in range(10)] + [b"small"]
    names = blobs(World(), parallel=4).put_each(iter(datas))
    assert names == [hashlib.sha256(d).hexdigest() for d in datas]


@pytest.mark.parametrize(
    "payload",
    [
        Payload(size=1),
        Payload(size=2, data=b"x"),
        Payload(size=1, data=b"x", blob="0" * 64),
        Payload(size=1, blob="0" * 64),
        Payload(size=1, blob="../../etc/passwd"),
    ],
)
def test_a_payload_that_is_not_what_it_says(payload: Payload) -> None:
    with pytest.raises(Damaged):
        blobs(World()).fetch(payload)


def test_a_payload_has_one_place_only() -> None:
    world = World()
    mine = blobs(world)
    with pytest.raises(Damaged, match="exactly one"):
        mine.fetch(Payload(size=1, data=b"x", blob=mine.put(b"x")))


def test_a_blob_with_other_bytes() -> None:
    world = World()
    name = hashlib.sha256(b"right").hexdigest()
    world.inner.put(KEYS.blob(name), b"wrong")
    with pytest.raises(Damaged, match="another hash"):
        blobs(world).get(name)


def test_what_was_used_here_is_pinned_for_a_while() -> None:
    world = World()
    mine = blobs(world)
    name = mine.put(b"data")
    mine.put(b"data")
    assert mine.pinned(name)
    world.clock.at += PIN + 1
    mine.forget_old_pins()
    assert not mine.pinned(name)

"""wal/blobs.py: durable before it is named, verified when it comes back."""

from __future__ import annotations

import hashlib

import pytest

from tests.unit.wal.world import KEYS, World
from wal_agent.errors import Damaged, Unavailable
from wal_agent.records import Payload
from wal_agent.wal.blobs import INLINE, Blobs


def blobs(world: World, parallel: int = 1, epoch: int = 3) -> Blobs:
    return Blobs(world.store, epoch=epoch, parallel=parallel)


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


def test_a_crash_behind_a_put_leaves_a_blob_that_nothing_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill tests of I9 rest on this place."""
    world, seen = World(), list[tuple[str, int]]()
    monkeypatch.setattr(
        "wal_agent.wal.blobs.failpoint", lambda place: seen.append((place, len([*world.inner.list(KEYS.blobs)])))
    )
    mine = blobs(world)
    mine.put(b"data")
    mine.put(b"data")
    assert seen == [("blob.after_put", 1)] * 2


def test_the_error_comes_out_when_the_bucket_stays_away() -> None:
    world = World()
    world.bucket.fates = ["dropped"] * 1000
    with pytest.raises(Unavailable):
        blobs(world).put(b"data")


def test_several_at_a_time_keep_their_order() -> None:
    datas = [bytes([n]) * (INLINE + 1) for n in range(10)] + [b"small"]
    names = blobs(World(), parallel=4).put_each(iter(datas))
    assert names == [hashlib.sha256(d).hexdigest() + "-3" for d in datas]


@pytest.mark.parametrize(
    "payload",
    [
        Payload(size=1),
        Payload(size=2, data=b"x"),
        Payload(size=1, data=b"x", blob="0" * 64),
        Payload(size=1, blob="0" * 64),
        Payload(size=1, blob="0" * 64 + "-1"),
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
    name = hashlib.sha256(b"right").hexdigest() + "-1"
    world.inner.put(KEYS.blob(name), b"wrong")
    with pytest.raises(Damaged, match="another hash"):
        blobs(world).get(name)


def test_a_name_without_an_epoch_is_read_too() -> None:
    world = World()
    name = hashlib.sha256(b"old").hexdigest()
    world.inner.put(KEYS.blob(name), b"old")
    assert blobs(world).get(name) == b"old"


def test_who_has_no_epoch_puts_nothing() -> None:
    world = World()
    with pytest.raises(ValueError, match="not a blob's name"):
        blobs(world, epoch=0).put(b"data")


def test_no_two_runs_and_no_two_rounds_create_one_name() -> None:
    """R4: a delete that was decided before, and arrives late, takes nothing that was put since."""
    world = World()
    mine = blobs(world)
    first = mine.put(b"data")
    assert mine.put(b"data") == first
    mine.names.next_round()
    second, other = mine.put(b"data"), blobs(world, epoch=4).put(b"data")
    assert len({first, second, other}) == 3
    world.inner.delete(KEYS.blob(first))
    assert mine.get(second) == mine.get(other) == b"data"


def test_a_name_stays_pinned_until_it_is_named_and_was_last_used_long_ago() -> None:
    world = World()
    mine = blobs(world)
    name = mine.put(b"data")
    assert not mine.names.may_go(name)
    mine.names.next_round()
    world.clock.at += 101
    mine.names.unpin([], 100)
    assert not mine.names.may_go(name), "its record is still on the way"
    mine.names.unpin([name], 102)
    assert not mine.names.may_go(name), "it may have been used again since"
    mine.names.unpin([name], 100)
    assert mine.names.may_go(name)


def test_names_of_this_round_and_of_other_runs_are_not_ours_to_let_go() -> None:
    world = World()
    mine = blobs(world)
    name = mine.put(b"data")
    world.clock.at += 1
    mine.names.unpin([name], 0)
    assert not mine.names.may_go(name)
    mine.names.next_round()
    assert mine.names.may_go(name)
    assert not mine.names.may_go(blobs(world, epoch=2).put(b"data"))

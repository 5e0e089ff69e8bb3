"""wal/writer.py with a spool (R9): when it spools, in which order, and that R3 holds all the same."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.supervise.crew import PATIENCE, until
from tests.unit.wal.spooling import Disk, call, calls, cut_off, down, up
from tests.unit.wal.world import KEYS, World, drain, intent
from wal_agent.errors import Fenced
from wal_agent.wal import segment as codec
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.writer import SPOOL_AFTER


class Shop:
    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.disk = Disk(self.world, folder / "spools")
        self.job: OpenedJob = self.disk.start("a")

    @property
    def files(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for path in (self.disk.spools / "shop-a").glob("0*/*"):
            if path.name.isdigit():
                with suppress(FileNotFoundError):  # the writer's threads may drop it meanwhile
                    found[int(path.name)] = path.read_bytes()
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_nothing_is_spooled_before_an_append_has_waited_so_long(shop: Shop) -> None:
    """R9: a slow request is no outage. From then on everything that waits is spooled, one segment a step."""
    world, writer = shop.world, shop.job.writer
    down(world)
    first = writer.append(intent(1))
    assert writer.commit_once() == "undecided"
    world.clock.at += SPOOL_AFTER - 0.1
    second = writer.append(intent(2))
    assert not writer.spool_once() and first.word == "undecided"
    world.clock.at += 0.1
    assert writer.spool_once() and (first.word, second.word) == ("spooled", "undecided")
    assert writer.spool_once() and second.word == "spooled"
    assert not writer.spool_once()
    third = writer.append(intent(3))
    assert writer.spool_once() and third.word == "spooled" and writer.spooled == 3


def test_the_spool_holds_the_very_bytes_that_are_put_one_at_a_time(shop: Shop) -> None:
    """R3: one seq, one content; nothing is sent before the one in front of it is decided."""
    world = shop.world
    down(world)
    tickets = [call(shop.job, uid) for uid in ("one", "two", "three")]
    files = shop.files
    assert sorted(files) == [2, 3, 4]
    sent = {key for key, _ in world.bucket.puts if key.startswith(KEYS.log)}
    assert sent == {KEYS.segment(1), KEYS.segment(2)}
    assert codec.decode_segment(files[4], job="shop", seq=4).prev == codec.digest(files[3])
    up(world)
    for seq, ticket in enumerate(tickets, 2):
        assert sorted(shop.files) == list(range(seq, 5))
        assert shop.job.writer.commit_once() == "acked"
        assert world.inner.get(KEYS.segment(seq)).data == files[seq] and (ticket.word, ticket.seq) == ("acked", seq)
    assert shop.files == {} and shop.job.writer.spooled == 0 and shop.job.writer.commit_once() == "idle"
    again = shop.job.writer.append(intent(4))
    assert not shop.job.writer.spool_once() and again.word == "undecided"


def test_what_is_acknowledged_while_it_is_stored_leaves_the_spool(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two threads meet: the file is written when the ack of the same segment comes."""
    writer, spool = shop.job.writer, shop.job.spool
    assert spool is not None
    ticket = writer.append(intent(1))
    store = spool.store

    def slow(seq: int, data: bytes) -> None:
        assert writer.commit_once() == "acked"
        store(seq, data)

    monkeypatch.setattr(spool, "store", slow)
    assert writer.spool_once(at_once=True)
    assert ticket.word == "acked" and shop.files == {} and spool.empty


def test_behind_what_is_spooled_everything_is_at_once(shop: Shop) -> None:
    """The bucket is back and takes one segment after the other; what comes meanwhile waits in order on the disk."""
    down(shop.world)
    for uid in ("one", "two"):
        call(shop.job, uid)
        shop.world.clock.at += SPOOL_AFTER
    up(shop.world)
    assert shop.job.writer.commit_once() == "acked"
    shop.world.clock.at -= SPOOL_AFTER  # the oldest that waits is young
    ticket = shop.job.writer.append(intent(3))
    assert shop.job.writer.spool_once() and ticket.word == "spooled"


def test_a_put_that_hangs_does_not_hold_the_spool_up(shop: Shop) -> None:
    """R9: both threads as in a run; the bucket answers nothing while the calls go on."""
    world, writer = shop.world, shop.job.writer
    writer.spool_after = 0.0
    hanging, answer, stop = threading.Event(), threading.Event(), threading.Event()

    def hang(_: str) -> None:
        hanging.set()
        answer.wait(PATIENCE)

    world.bucket.before_put = hang
    threads = [threading.Thread(target=work, args=(stop,)) for work in (writer.run, writer.run_spooling)]
    for thread in threads:
        thread.start()
    tickets = [writer.append(intent(n)) for n in (1, 2)]
    assert hanging.wait(PATIENCE)
    assert [t.wait(PATIENCE) for t in tickets] == ["spooled"] * 2
    answer.set()
    until(lambda: [t.word for t in tickets] == ["acked"] * 2, "the bucket has them")
    until(lambda: shop.files == {}, "the spool is empty")
    stop.set()
    for thread in threads:
        writer._work.set()
        writer._waiting.set()
        thread.join(PATIENCE)
    assert [number for number, _ in calls(world)] == [1, 2]


def test_a_fence_keeps_what_was_spooled_and_fails_what_was_not(shop: Shop, tmp_path: Path) -> None:
    world, job = shop.world, shop.job
    down(world)
    call(job, "one")
    waiting = job.writer.append(intent(2))
    up(world)
    world.clock.at += 1000
    Disk(world, tmp_path / "other").start("b", accept_loss=True)
    assert job.writer.commit_once() == "ended"
    with pytest.raises(Fenced):
        waiting.wait(0)
    assert not job.writer.spool_once(at_once=True) and sorted(shop.files) == [2]


def test_a_snapshot_covers_nothing_that_is_only_spooled(shop: Shop) -> None:
    """R5."""
    shop.job.writer.append(intent(1))
    drain(shop.job)
    down(shop.world)
    call(shop.job, "one")
    assert shop.job.writer.acked.seq == 2 and len(shop.job.writer.state.open) == 1


def test_a_seal_flushes_the_spool(shop: Shop) -> None:
    """R6."""
    down(shop.world)
    call(shop.job, "one")
    up(shop.world)
    assert shop.job.writer.seal(10.0) and shop.job.spool is not None and shop.job.spool.empty
    cut_off(shop.job)

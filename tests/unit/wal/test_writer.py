"""wal/writer.py: group commit, R3's undecided puts, fencing, and spooling (R9)."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.supervise.crew import PATIENCE, until
from tests.unit.wal.spooling import Disk, call, calls, cut_off, down, up
from tests.unit.wal.world import KEYS, Ended, World, drain, end, intent
from wal_agent.bucket.base import Object, Version
from wal_agent.bucket.decorators import backoff
from wal_agent.errors import Damaged, Fenced, NotFound, Unavailable, WalAgentError
from wal_agent.records import AnyRecord
from wal_agent.wal import codec
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State
from wal_agent.wal.writer import (
    CALL,
    DEFERRED,
    LATER,
    NOW,
    SOON,
    SPOOL_AFTER,
    SPOOL_POLL,
    Sealed,
    Ticket,
    Wait,
    WriterListener,
)


def test_appends_that_wait_together_share_a_segment() -> None:
    world = World()
    job = world.open("a")
    first, second = job.writer.append(intent(1)), job.writer.append(intent(2), end(1))
    assert job.writer.backlog.items == 2 and first.status == "undecided"
    assert job.writer.commit_once() == "acked"
    assert (first.status, second.status, first.seq, second.seq) == ("acked", "acked", 2, 2)
    assert job.writer.commit_once() == "idle"
    assert [c.intent.call for c in job.writer.state.open] == [2]


def test_the_places_of_a_crash_are_around_the_put_and_behind_the_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill tests of I1 and R3 are worth what these places are: each with what the bucket and the caller know."""
    world = World()
    job = world.open("a")
    ticket = job.writer.append(intent(1))
    seen: list[tuple[str, int, str]] = []

    def visit(place: str) -> None:
        seen.append((place, replay(world.inner, KEYS).seq, ticket.status))

    monkeypatch.setattr("wal_agent.wal.writer.failpoint", visit)
    assert job.writer.commit_once() == "acked"
    assert seen == [
        ("append.before_put", 1, "undecided"),
        ("append.after_put", 2, "undecided"),
        ("append.after_ack", 2, "acked"),
    ]


def test_a_full_segment_leaves_the_rest_for_the_next() -> None:
    job = World().open("a")
    big = [job.writer.append(intent(n, "x" * 400_000)) for n in (1, 2, 3)]
    drain(job)
    assert [t.seq for t in big] == [2, 2, 3]


def test_what_is_acknowledged_is_counted_since_the_replay_began() -> None:
    """The policy of snapshots goes by it, and a lease names the last record."""
    world = World()
    writer = world.open("a").writer
    before = writer.acked
    for n in (1, 2):
        writer.append(intent(n))
        world.clock.at += 1
        assert writer.commit_once() == "acked"
    stored = [world.inner.get(KEYS.segment(seq)).data for seq in (2, 3)]
    after = writer.acked
    assert (after.seq, after.hash, after.time) == (3, codec.digest(stored[1]), world.clock.now())
    assert (after.segments - before.segments, after.size - before.size) == (2, sum(map(len, stored)))
    assert [c.seq for c in after.state.open] == [2, 3]


def test_the_backlog_is_what_is_in_flight_and_what_is_queued() -> None:
    world = World()
    writer = world.open("a").writer
    assert (writer.backlog.size, writer.backlog.items, writer.backlog.age, writer.pending) == (0, 0, 0.0, False)
    sizes = [len(codec.encode_record(r)[0]) for r in (intent(1), end(1), intent(2))]
    writer.append(intent(1), end(1))
    world.bucket.fates = ["dropped"]
    world.clock.at += 2
    assert (writer.backlog.age, writer.pending, writer.unspooled) == (2.0, True, 2)
    assert writer.commit_once() == "undecided"
    assert (writer.pending, writer.unspooled) == (True, 2)
    writer.append(intent(2))
    world.clock.at += 3
    assert (writer.backlog.size, writer.backlog.items, writer.backlog.age) == (sum(sizes), 2, 5.0)
    assert (writer.pending, writer.unspooled, writer.spooled) == (True, 3, 0)
    assert writer.commit_once() == "acked" and writer.backlog.age == 3.0
    assert writer.commit_once() == "acked" and not writer.pending


def test_the_time_of_a_put_is_smoothed_and_counts_only_what_landed() -> None:
    world = World()
    writer = world.open("a").writer

    def put(n: int, seconds: float, fate: str = "") -> float:
        def slow(key: str) -> None:
            world.clock.at += seconds

        writer.append(intent(n))
        world.bucket.before_put, world.bucket.fates = slow, [fate] if fate else []
        writer.commit_once()
        return writer._put_time

    assert put(1, 0.08) == pytest.approx(0.08)
    assert put(2, 0.16) == pytest.approx(0.09)
    assert put(3, 60.0, "dropped") == pytest.approx(0.09)


class Steady(random.Random):
    """No jitter."""

    def random(self) -> float:
        return 0.5


@pytest.mark.parametrize("how", ["flush", "seal", "run"])
def test_an_undecided_put_is_sent_again_after_pauses_that_double(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin anew once something was acknowledged."""
    world = World()
    writer = world.open("a").writer
    monkeypatch.setattr(writer, "_rng", Steady())
    pauses: list[float] = []
    writer.append(intent(1))
    world.bucket.fates = ["dropped"] * 3
    first = backoff(1, Steady())
    if how == "run":
        stop = threading.Event()

        def wait(seconds: float | None = None) -> bool:
            pauses.append(seconds or 0.0)
            return False

        def idle() -> None:
            if len(pauses) == 3:
                writer.append(intent(2))
                world.bucket.fates = ["dropped"]
            else:
                stop.set()

        monkeypatch.setattr(stop, "wait", wait)
        monkeypatch.setattr(writer, "_await_work", idle)
        writer.run(stop)
        assert pauses == [first, 2 * first, 4 * first, first]
    else:
        monkeypatch.setattr(world.clock, "sleep", pauses.append)
        assert writer.flush(60.0) if how == "flush" else writer.seal(60.0)
        assert pauses == [first, 2 * first, 4 * first]
    assert not writer.pending


def test_no_pause_outlasts_the_budget() -> None:
    world = World()
    writer = world.open("a").writer
    writer.append(intent(1))
    world.bucket.fates = ["dropped"] * 100
    began = world.clock.at
    assert not writer.flush(1.0) and world.clock.at - began == pytest.approx(1.0)
    assert not writer.flush(0.0) and world.clock.at - began == pytest.approx(1.0)


def test_as_much_as_fits_a_segment_is_one_append() -> None:
    writer = World().open("a").writer
    room = codec.MAX_SEGMENT - codec.OVERHEAD
    one = len(codec.encode_record(intent(1, "x" * 400_000))[0])
    other = intent(2, "x" * (400_000 + room - 2 * one))
    assert writer.append(intent(1, "x" * 400_000), other).status == "undecided"
    with pytest.raises(ValueError, match="fit no segment"):
        writer.append(intent(1, "x" * 400_001), other)
    with pytest.raises(ValueError, match="nothing to append"):
        writer.append()
    assert writer.commit_once() == "acked"


def test_every_listener_gets_each_segment_with_the_state_behind_it() -> None:
    world = World()
    writer = world.open("a").writer
    heard: list[tuple[str, int, int]] = []

    class Listener(WriterListener):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_acked(self, records: Sequence[AnyRecord], state: State) -> None:
            heard.append((self.name, len(records), len(state.open)))

    for name in ("one", "two"):
        writer.add_listener(Listener(name))
    writer.append(intent(1))
    writer.append(intent(2), end(1))
    writer.commit_once()
    assert heard == [("one", 3, 1), ("two", 3, 1)]


def test_a_number_of_a_call_that_the_log_has_is_not_given_again() -> None:
    """Records of another run of this job may come in from its spool."""
    writer = World().open("a").writer
    writer.append(intent(7))
    assert writer.next_call() == 1 and writer.commit_once() == "acked" and writer.next_call() == 8


@pytest.mark.parametrize("fate", ["unreadable", "gone"])
def test_what_is_at_my_seq_and_cannot_be_read_now_is_asked_again(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    writer = world.open("a").writer
    ticket = writer.append(intent(1))
    world.bucket.fates = ["lost"]
    assert writer.commit_once() == "undecided"
    with monkeypatch.context() as patch:

        def away(key: str) -> Object:
            raise NotFound(key) if fate == "gone" else Unavailable("away")

        patch.setattr(world.bucket, "get", away)
        assert writer.commit_once() == "undecided" and ticket.status == "undecided"
    assert writer.commit_once() == "acked" and ticket.seq == 2


@pytest.mark.parametrize("fate", ["lost", "dropped"])
def test_an_undecided_put_is_sent_again_byte_for_byte_and_nothing_else_is(fate: str) -> None:
    world = World()
    job = world.open("a")
    ticket = job.writer.append(intent(1))
    world.bucket.fates = [fate]
    assert job.writer.commit_once() == "undecided"
    later = job.writer.append(intent(2))
    world.clock.at += 5  # a segment that was encoded again would have another time, and other bytes
    assert job.writer.commit_once() == "acked"
    assert ticket.status == "acked" and later.status == "undecided"
    sent = [data for key, data in world.bucket.puts if key == KEYS.segment(2)]
    assert len(sent) == 2 and sent[0] == sent[1]


def test_a_higher_epoch_at_my_seq_is_a_fence_for_good() -> None:
    world = World()
    old = world.open("a")
    ended = Ended()
    old.writer.add_listener(ended)
    new = world.take_over("b")
    ticket, queued = old.writer.append(intent(1)), old.writer.append(intent(2))
    assert old.writer.commit_once() == "ended"
    assert old.writer.commit_once() == "ended"
    with pytest.raises(Fenced, match="taken over by host-b"):
        ticket.wait(0)
    with pytest.raises(Fenced):
        assert queued.status
    with pytest.raises(Fenced):
        old.writer.append(intent(3))
    assert len(ended.errors) == 1 and isinstance(ended.errors[0], Fenced)
    assert new.replay.seq == 2


def test_what_can_only_be_a_fault_is_called_damage() -> None:
    world = World()
    job = world.open("a")
    stranger = codec.encode_segment(codec.Author("shop", 1, "a"), seq=2, prev=bytes(32), time=0.0, records=[])
    world.inner.put(KEYS.segment(2), stranger)
    ticket = job.writer.append(intent(1))
    assert job.writer.commit_once() == "ended"
    with pytest.raises(Damaged, match="not what this run"):
        assert ticket.status


def test_what_could_not_be_read_back_never_gets_in() -> None:
    job = World().open("a")
    with pytest.raises(ValueError, match="cannot be read back"):
        job.writer.append(intent("1"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fits no segment"):
        job.writer.append(intent(1, "x" * codec.MAX_SEGMENT))
    with pytest.raises(ValueError, match="fit no segment"):
        job.writer.append(intent(1, "x" * 600_000), intent(2, "x" * 600_000))
    assert job.writer.commit_once() == "idle"


def test_a_flush_puts_deferred_records_too_and_refuses_nothing() -> None:
    world = World()
    job = world.open("a")
    deferred = job.writer.append(intent(1), wait=DEFERRED)
    assert job.writer.commit_once() == "idle"
    assert job.writer.flush(10.0) and deferred.status == "acked"
    later = job.writer.append(intent(2), wait=DEFERRED)
    assert job.writer.commit_once() == "idle" and later.status == "undecided", "as before"
    world.bucket.fates = ["dropped"] * 100
    assert not job.writer.flush(10.0)


class Away(World):
    """A world whose bucket takes 30 ms for a put; one has been made, so that the writer knows."""

    def __init__(self) -> None:
        super().__init__()
        self.job = self.open("a")
        put = self.bucket.put

        def slow(key: str, data: bytes, *, if_version: Version | None = None) -> Version:
            self.clock.at += 0.03
            return put(key, data, if_version=if_version)

        self.bucket.put = slow  # type: ignore[method-assign]
        self.job.writer.append(intent(1))
        drain(self.job)
        self.bucket.puts.clear()


def test_an_intent_takes_what_waits_for_company_into_its_own_segment() -> None:
    world = Away()
    writer = world.job.writer
    ended, saved = writer.append(end(1), wait=SOON), writer.append(intent(2), wait=LATER)
    assert writer.commit_once() == "idle", "no put stands in front of the intent"
    asked = writer.append(intent(3))
    assert writer.commit_once() == "acked"
    assert ended.seq == saved.seq == asked.seq and len(world.bucket.puts) == 1
    assert writer.commit_once() == "idle"


def test_an_outcome_waits_a_bounded_time_and_takes_captures_with_it() -> None:
    world = Away()
    writer = world.job.writer
    saved, ended = writer.append(intent(2), wait=LATER), writer.append(end(1), wait=SOON)
    world.clock.at += 0.23
    assert writer.commit_once() == "idle"
    world.clock.at += 0.02
    assert writer.commit_once() == "acked" and ended.seq == saved.seq


@pytest.mark.parametrize("how", ["seal", "flush"])
def test_no_outcome_waits_where_the_run_ends(how: str) -> None:
    world = Away()
    writer = world.job.writer
    tickets = [writer.append(end(1), wait=SOON), writer.append(intent(2), wait=LATER)]
    assert writer.seal(10.0) if how == "seal" else writer.flush(10.0)
    assert [ticket.status for ticket in tickets] == ["acked", "acked"] and len(world.bucket.puts) == 1


def test_each_kind_of_append_wakes_the_thread_that_commits() -> None:
    world = World()
    job = world.open("a")
    stop = threading.Event()
    thread = threading.Thread(target=job.writer.run, args=(stop,))
    thread.start()
    try:
        assert job.writer.append(intent(1)).wait(PATIENCE) == "acked"
        assert job.writer.append(end(1), wait=SOON).wait(PATIENCE) == "acked"
        late = job.writer.append(intent(2), wait=DEFERRED)
        assert job.writer.append(intent(3), wait=CALL).wait(PATIENCE) == "acked" and late.status == "acked"
    finally:
        stop.set()
        job.writer.append(intent(4))
        thread.join()


def test_a_flush_of_a_fenced_writer_leaves_the_error_to_the_next() -> None:
    world = World()
    old = world.open("a")
    world.take_over("b")
    old.writer.append(intent(1))
    assert old.writer.flush(10.0) and isinstance(old.writer.ended, Fenced)


def test_seal_flushes_and_refuses() -> None:
    world = World()
    job = world.open("a")
    ticket = job.writer.append(intent(1))
    world.bucket.fates = ["lost", "dropped"]
    assert job.writer.seal(10.0)
    assert ticket.status == "acked"
    with pytest.raises(Sealed):
        job.writer.append(intent(2))


def test_seal_says_when_it_could_not_decide() -> None:
    world = World()
    job = world.open("a")
    job.writer.append(intent(1))
    world.bucket.fates = ["dropped"] * 100
    assert not job.writer.seal(10.0)


def test_seal_of_a_fenced_writer_says_so() -> None:
    world = World()
    old = world.open("a")
    world.take_over("b")
    old.writer.append(intent(1))
    with pytest.raises(Fenced):
        old.writer.seal(10.0)


def test_call_numbers_go_on_where_the_log_ends() -> None:
    world = World()
    job = world.open("a")
    assert [job.writer.next_call(), job.writer.next_call()] == [1, 2]
    job.writer.append(intent(1), intent(2))
    drain(job)
    assert world.take_over("b").writer.next_call() == 3


def test_a_bucket_that_breaks_its_contract_ends_the_writer_loudly() -> None:
    world = World()
    job = world.open("a")
    ticket = job.writer.append(intent(1))

    def broken(key: str) -> None:
        raise RuntimeError("boom")

    world.bucket.before_put = broken
    ended = Ended()
    job.writer.add_listener(ended)
    with pytest.raises(RuntimeError):
        job.writer.run(threading.Event())
    with pytest.raises(WalAgentError, match="boom"):
        ticket.wait(0)
    with pytest.raises(WalAgentError):
        job.writer.append(intent(2))
    assert len(ended.errors) == 1


def test_many_threads_append_while_the_loop_runs() -> None:
    world = World()
    job = world.open("a")
    stop = threading.Event()
    loop = threading.Thread(target=job.writer.run, args=(stop,))
    loop.start()

    def work() -> None:
        for _ in range(20):
            assert job.writer.append(intent(job.writer.next_call())).wait(60) == "acked"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    job.writer.append(intent(job.writer.next_call()))  # wakes the loop
    loop.join(60)
    found = replay(world.bucket, KEYS)
    assert found.damage is None
    assert sorted(c.intent.call for c in found.state.open)[:80] == list(range(1, 81))


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
    assert not writer.spool_once() and first.status == "undecided"
    world.clock.at += 0.1
    assert writer.spool_once() and (first.status, second.status) == ("spooled", "undecided")
    assert writer.spool_once() and second.status == "spooled"
    assert not writer.spool_once()
    third = writer.append(intent(3))
    assert writer.spool_once() and third.status == "spooled" and writer.spooled == 3


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
        assert world.inner.get(KEYS.segment(seq)).data == files[seq] and (ticket.status, ticket.seq) == ("acked", seq)
    assert shop.files == {} and shop.job.writer.spooled == 0 and shop.job.writer.commit_once() == "idle"
    again = shop.job.writer.append(intent(4))
    assert not shop.job.writer.spool_once() and again.status == "undecided"


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
    assert ticket.status == "acked" and shop.files == {} and spool.empty


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
    assert shop.job.writer.spool_once() and ticket.status == "spooled"


def test_a_put_that_hangs_does_not_hold_the_spool_up(shop: Shop) -> None:
    """R9: both threads as in a run; the bucket answers nothing while the calls go on."""
    world, writer = shop.world, shop.job.writer
    hanging, answer, stop = threading.Event(), threading.Event(), threading.Event()

    def hang(_: str) -> None:
        hanging.set()
        answer.wait(PATIENCE)

    world.bucket.before_put = hang
    threads = [
        threading.Thread(target=writer.run, args=(stop,)),
        threading.Thread(target=writer.run_spooling, args=(stop, 0.0)),
    ]
    for thread in threads:
        thread.start()
    tickets = [writer.append(intent(n)) for n in (1, 2)]
    assert hanging.wait(PATIENCE)
    assert [t.wait(PATIENCE) for t in tickets] == ["spooled"] * 2
    answer.set()
    until(lambda: [t.status for t in tickets] == ["acked"] * 2, "the bucket has them")
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


# ---- who waits for whom


class Waiting:
    """An event that writes down what is done with it."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def set(self) -> None:
        self.done.append("set")

    def clear(self) -> None:
        self.done.append("clear")

    def wait(self, seconds: float) -> None:
        self.done.append(seconds)


def test_a_ticket_is_undecided_and_has_no_place_until_the_log_has_it() -> None:
    ticket = Ticket()
    assert (ticket.status, ticket.seq) == ("undecided", 0)
    ticket.spool()
    assert (ticket.status, ticket.seq) == ("spooled", 0)
    ticket.ack(7)
    assert (ticket.status, ticket.seq) == ("acked", 7)


@pytest.mark.parametrize(("spooling", "wakes"), [(True, ["set", "set"]), (False, [])])
def test_the_thread_that_spools_is_woken_by_what_must_not_be_lost(shop: Shop, spooling: bool, wakes: list[str]) -> None:
    """A deferred record is made again by the next capture; a run without a spool has no such thread."""
    writer, event = shop.job.writer, Waiting()
    writer._waiting = event  # type: ignore[assignment]
    if not spooling:
        writer.stop_spooling()
    for wait in (NOW, DEFERRED, SOON):
        writer.append(intent(1), wait=wait)
    assert event.done == wakes


def test_the_thread_that_spools_looks_often_in_an_outage_and_else_once_a_second(shop: Shop) -> None:
    writer, stop = shop.job.writer, threading.Event()

    class Once(Waiting):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            if len(self.done) == 2:
                writer.append(intent(1))
            else:
                stop.set()

    event = Once()
    writer._waiting = event  # type: ignore[assignment]
    down(shop.world)
    writer.run_spooling(stop)
    assert event.done == ["clear", 1.0, "set", "clear", SPOOL_POLL]


def test_the_thread_that_commits_waits_for_what_is_due_and_else_a_second() -> None:
    world = World()
    writer, event = world.open("a").writer, Waiting()
    writer._work = event  # type: ignore[assignment]
    writer._await_work()
    assert event.done == [1.0] and writer._wake_at == world.clock.at + 1.0
    writer.append(intent(1), wait=Wait(least=0.25, most=0.25))
    writer._await_work()
    assert event.done == [1.0, "set", 0.25], "what is due before it wakes it"
    writer.append(intent(1), wait=DEFERRED)
    assert len(event.done) == 3, "what is not, does not"


def test_what_was_appended_before_the_last_step_is_not_waited_for_again() -> None:
    """The sign of an append is taken down before the step that may put it: else the thread would never rest."""
    world = World()
    writer, event, stop = world.open("a").writer, Waiting(), threading.Event()

    def wait() -> None:
        event.done.append("idle")
        stop.set()

    writer._work, writer._await_work = event, wait  # type: ignore[assignment, method-assign]
    writer.append(intent(1))
    writer.run(stop)
    assert event.done == ["clear", "clear", "idle"]


@pytest.mark.parametrize("how", ["flush", "seal"])
def test_without_time_nothing_is_put_and_with_little_all_that_can_be(how: str) -> None:
    world = World()
    writer = world.open("a").writer
    writer.append(intent(1))
    puts, act = len(world.bucket.puts), writer.flush if how == "flush" else writer.seal
    assert not act(0.0) and not act(-1.0) and len(world.bucket.puts) == puts
    assert act(0.5) and len(world.bucket.puts) == puts + 1
    assert act(0.0), "nothing is left to do"


@pytest.mark.parametrize("held", ["_committing", "_spooling"])
def test_a_seal_waits_for_a_thread_at_work_as_long_as_its_budget_is(held: str) -> None:
    world = World()
    writer, timeouts = world.open("a").writer, list[float]()

    class Held:
        def acquire(self, *, timeout: float) -> bool:
            timeouts.append(timeout)
            return False

    setattr(writer, held, Held())
    assert not writer.seal(3.0) and not writer.seal(-1.0) and timeouts == [3.0, 0.0]


def test_a_run_that_does_not_spool_stores_nothing() -> None:
    world = World()
    writer = world.open("a").writer
    writer.append(intent(1))
    assert not writer.spool_once() and not writer.spool_once(at_once=True) and writer.unspooled == 1


def test_the_backlog_is_as_old_as_the_oldest_of_all_that_waits(shop: Shop) -> None:
    world, writer = shop.world, shop.job.writer
    down(world)
    for uid in ("one", "two"):
        call(shop.job, uid)
        world.clock.at += 2
    for n in (3, 4):
        writer.append(intent(n))
        world.clock.at += 1
    assert (writer.backlog.age, writer.backlog.items) == (6.0, 4)
    up(world)
    assert [writer.commit_once() for _ in range(2)] == ["acked", "acked"] and writer.backlog.age == 2.0
    assert (writer.spooled, writer.unspooled) == (0, 2)

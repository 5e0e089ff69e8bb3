"""wal/job.py: what a run spooled comes into the log once, in order, whoever is cut off when (R9)."""

from __future__ import annotations

import errno
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.wal.spooling import Disk, call, calls, cut_off, down, log, openings, spooled, up
from tests.unit.wal.world import KEYS, TTL, World, drain, end, intent
from wal_agent.errors import ConfigError, Damaged, Fenced, LeaseHeld, Unavailable
from wal_agent.records import AgentStarted, End, Payload
from wal_agent.wal import codec
from wal_agent.wal import spool as spools
from wal_agent.wal.job import close_job
from wal_agent.wal.reader import replay
from wal_agent.wal.state import MAX_OPENINGS

LOST, LANDED = "dropped", "lost"
POINTS = ["spool.before_begin", "spool.before_rename", "spool.after_rename", "spool.before_drop", "append.after_ack"]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def disk(world: World, tmp_path: Path) -> Disk:
    return Disk(world, tmp_path / "spools")


class Killed(BaseException):
    pass


def die(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("fate", [LOST, LANDED])
def test_the_next_run_on_the_machine_has_what_was_spooled_before_it_plans(world: World, disk: Disk, fate: str) -> None:
    """R9: also when the first of it had landed and only the reply was lost; numbers of calls go on behind it."""
    first = disk.start("a")
    first.writer.append(intent(first.writer.next_call(), "saved"))
    drain(first)
    down(world)
    world.bucket.fates[0] = fate
    call(first, "one")
    call(first, "two")
    spooled(first, end(2))
    cut_off(first)
    up(world)
    second = disk.start("b")
    assert calls(world) == [(1, "saved"), (2, "one"), (3, "two")]
    assert [o.intent.call for o in second.replay.state.open] == [1, 3]
    assert second.replay.state == replay(world.inner, KEYS).state
    assert second.writer.next_call() == 4
    assert openings(world) == [(1, "first"), (2, "dead")]
    assert second.spool is not None and second.spool.folder.name == "shop-a" and second.spool.empty


def test_what_is_carried_in_is_still_of_the_run_that_made_it(
    world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery looks for the old run's processes, and judges its calls by its host: both go by the epoch."""
    first = disk.start("a")
    down(world)
    spooled(first, AgentStarted(time=1.0, pid=5, session="s", resumed=False))
    call(first, "one")
    cut_off(first)
    up(world)
    with monkeypatch.context() as patch:  # the first that carries them in comes only so far as to its own disk
        patch.setattr("wal_agent.wal.job.send_spooled", die)
        with pytest.raises(Killed):
            disk.start("b")
    state = disk.start("c").replay.state
    assert state.home == 1 and [o.epoch for o in state.open] == [1]
    assert state == replay(world.inner, KEYS).state


@pytest.mark.parametrize("point", POINTS)
def test_cut_off_while_carrying_in_again_and_again(
    world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """I3 of what was spooled, exactly once: three runs die at the same place, at another visit of it each."""
    first = disk.start("a")
    down(world)
    for uid in ("one", "two", "three"):
        call(first, uid)
    cut_off(first)
    up(world)

    for visit, run in enumerate("bcd", 1):
        left = visit if point in ("spool.before_drop", "append.after_ack") else 1

        def die_there(name: str) -> None:
            nonlocal left
            left -= name == point
            if left == 0:
                raise Killed

        with monkeypatch.context() as patch:
            for module in ("wal_agent.wal.spool", "wal_agent.wal.writer"):
                patch.setattr(f"{module}.failpoint", die_there)
            try:
                cut_off(disk.start(run))
            except Killed:
                pass
    last = disk.start("e")
    assert calls(world) == [(1, "one"), (2, "two"), (3, "three")]
    assert replay(world.inner, KEYS).damage is None
    assert last.spool is not None and last.spool.empty


def test_an_outage_while_carrying_in_leaves_the_job_marked(world: World, disk: Disk, tmp_path: Path) -> None:
    """R9, V12: exit 69, and still no other machine takes the job over."""
    first = disk.start("a")
    down(world)
    call(first, "one")
    cut_off(first)
    up(world)
    world.bucket.before_put = lambda _: setattr(world.bucket, "fates", ["", *["dropped"] * 10_000])
    with pytest.raises(Unavailable):
        disk.start("b", spool=False)
    up(world)
    world.clock.at += 10 * TTL
    with pytest.raises(LeaseHeld, match="only host-b has"):
        Disk(world, tmp_path / "elsewhere").start("c")
    disk.start("d")
    assert calls(world) == [(1, "one")]


def test_a_run_that_does_not_spool_carries_in_and_is_then_as_any_other(
    world: World, disk: Disk, tmp_path: Path
) -> None:
    first = disk.start("a")
    down(world)
    call(first, "one")
    cut_off(first)
    up(world)
    second = disk.start("b", spool=False)
    seen = world.seen()
    assert seen is not None and seen.doc.spool == "" and second.spool is None
    assert list(disk.spools.iterdir()) == []
    world.clock.at += TTL + 1
    third = Disk(world, tmp_path / "elsewhere").start("c", spool=False)
    assert third.replay.state.openings[-1].opening.cause == "dead" and calls(world) == [(1, "one")]


def test_no_timeout_takes_a_spooling_job(world: World, disk: Disk, tmp_path: Path) -> None:
    """R9: another machine refuses for ever and says what can be done; it opens with --accept-loss, without the spool,
    and the owner is fenced with its spool kept and named."""
    first = disk.start("a")
    down(world)
    call(first, "one")
    up(world)
    world.clock.at += 100 * TTL
    other = Disk(world, tmp_path / "elsewhere")
    with pytest.raises(LeaseHeld) as refused:
        other.start("b")
    assert "only host-a has" in refused.value.what and "--accept-loss" in refused.value.hint
    second = other.start("b", accept_loss=True)
    assert "only host-a may have" in other.told[0]
    assert calls(world) == []
    assert first.writer.commit_once() == "ended" and isinstance(first.writer.ended, Fenced)
    cut_off(first)
    with pytest.raises(LeaseHeld):
        disk.start("c")
    close_job(second, "released")
    disk.start("d")
    assert [text for text in disk.told if "never came into the log" in text and "shop-a" in text]
    assert calls(world) == [] and (disk.spools / "shop-a").is_dir()


def test_a_late_put_of_the_dead_run_does_no_harm(world: World, disk: Disk) -> None:
    """R1, R3: what the network still holds finds its place taken, or has landed before the opening."""
    first = disk.start("a")
    down(world)
    call(first, "one")
    call(first, "two")
    cut_off(first)
    up(world)
    late = world.bucket.puts[-1]
    disk.start("b")
    with pytest.raises(Exception, match="another version"):
        world.inner.put(*late)
    assert calls(world) == [(1, "one"), (2, "two")]


def put_in(disk: Disk, copy: Path) -> None:
    """The machine starts from an older copy of its disk."""
    if disk.spools.exists():
        shutil.rmtree(disk.spools)
    shutil.copytree(copy, disk.spools)
    disk.reboot()
    disk.world.clock.at += TTL + 1


@pytest.mark.parametrize("more", [0, 1], ids=["all of it", "and more of its own"])
def test_a_copy_of_a_spool_that_was_carried_in_is_set_aside(
    world: World, disk: Disk, tmp_path: Path, more: int
) -> None:
    """R9, I8: the disk is copied in an outage; the original's next run sends all, is cut off, and the copy starts. What
    it has is in the log once, in its order; the person reads where the copy is kept, at each start until it is gone."""
    first, copy = disk.start("a"), tmp_path / "copy"
    down(world)
    call(first, "one")
    call(first, "two")
    cut_off(first)
    shutil.copytree(disk.spools, copy)
    up(world)
    second = disk.start("b")
    for n in range(more):
        second.writer.append(intent(second.writer.next_call(), f"more {n}"))
        drain(second)
    cut_off(second)
    put_in(disk, copy)
    told = len(disk.told)
    third = disk.start("c")
    assert [uid for _, uid in calls(world)] == ["one", "two", "more 0"][: 2 + more]
    assert third.replay.state == replay(world.inner, KEYS).state and third.spool is not None and third.spool.empty
    aside = disk.spools / "shop-a.aside-1"
    assert spools.count_segments(aside) == 2 and str(aside) in disk.told[told]
    assert close_job(third, "released") == "released"
    told = len(disk.told)
    disk.start("d")
    assert str(aside) in disk.told[told]


@pytest.mark.parametrize("point", ["spool.before_rename", "spool.after_rename"])
def test_a_copy_whose_original_sent_nothing_is_carried_in(
    world: World, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """R9: the run between was cut off before the log had anything of it. The copy is as good as the original then; that
    one is set aside when it starts once more."""
    first, copy, original = disk.start("a"), tmp_path / "copy", tmp_path / "original"
    down(world)
    call(first, "one")
    cut_off(first)
    shutil.copytree(disk.spools, copy)
    up(world)

    def die_there(name: str) -> None:
        if name == point:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("wal_agent.wal.spool.failpoint", die_there)
        disk.start("b")
    shutil.copytree(disk.spools, original)
    put_in(disk, copy)
    cut_off(disk.start("c"))
    assert calls(world) == [(1, "one")] and not list(disk.spools.glob("*.aside-*"))
    put_in(disk, original)
    disk.start("d")
    assert calls(world) == [(1, "one")] and replay(world.inner, KEYS).damage is None
    assert [path.name for path in disk.spools.glob("*.aside-*")] == ["shop-a.aside-1"]


def test_two_starts_at_once_on_one_machine(world: World, disk: Disk) -> None:
    """I2: the second finds the spool in use, or the lease gone; it takes nothing from the first."""
    first = disk.start("a")
    down(world)
    call(first, "one")
    cut_off(first)
    up(world)

    def faster(_: str) -> None:
        with pytest.raises(LeaseHeld):
            disk.start("x")

    world.bucket.before_put = faster
    disk.start("b")
    assert calls(world) == [(1, "one")] and [epoch for epoch, _ in openings(world)] == [1, 2]


def test_a_clean_end_removes_the_folder_and_a_run_that_cannot_flush_leaves_it(world: World, disk: Disk) -> None:
    """R6, R9: the job is given up only when the log has everything."""
    first = disk.start("a")
    down(world)
    first.writer.append(intent(first.writer.next_call(), "one"))
    assert close_job(first, "closed") == "left"
    assert first.spool is not None and first.spool.count == 1
    cut_off(first)
    up(world)
    second = disk.start("b")
    assert calls(world) == [(1, "one")]
    second.writer.append(end(1))
    assert close_job(second, "closed") == "closed"
    assert list(disk.spools.iterdir()) == []
    seen = world.seen()
    assert seen is not None and seen.doc.state == "closed"


def test_however_many_starts_failed_a_good_spool_comes_into_the_log(
    world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, R4: the state names only the newest openings; the one that the spool ends at is found in the log."""
    first = disk.start("a")
    down(world)
    call(first, "one")
    call(first, "two")
    cut_off(first)
    up(world)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spools, "_write", full)
        for n in range(MAX_OPENINGS + 2):
            with pytest.raises(ConfigError, match="No space left"):
                disk.start(f"b{n}")
    state = disk.start("c").replay.state
    assert state.opened == MAX_OPENINGS + 4
    assert calls(world) == [(1, "one"), (2, "two")]


def test_what_waits_costs_no_more_memory_than_its_bytes(world: World, disk: Disk) -> None:
    """I9: a build's output is packed to a fraction; neither the run that spools it nor the one that carries it in
    holds all of it unpacked."""
    first = disk.start("a")
    down(world)
    spooled(first, end(1))
    many, result = 60, b"compiling\n" * 6000

    def grown(work: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            kept = work()
            most = tracemalloc.get_traced_memory()[1]
            del kept
            return most
        finally:
            tracemalloc.stop()

    def spool_all() -> None:
        world.bucket.puts.clear()
        for n in range(many):
            body = Payload(size=len(result), data=result)
            first.writer.append(End(time=1.0, call=n + 2, how="done", by="hook", result=body))
            assert first.writer.spool_once()

    assert grown(spool_all) < many * len(result) / 3
    cut_off(first)
    up(world)
    assert grown(lambda: disk.start("b")) < many * len(result) / 3
    assert len([r for _, r in log(world) if isinstance(r, End)]) == many + 1


@pytest.mark.parametrize("harm", ["cut", "gone", "other", "unchained"])
def test_a_damaged_spool_is_never_passed_over(world: World, disk: Disk, harm: str) -> None:
    """Told with the folder and the way out; the job stays where it is."""
    first = disk.start("a")
    down(world)
    for uid in ("one", "two", "three"):
        call(first, uid)
    cut_off(first)
    up(world)
    files = sorted((disk.spools / "shop-a").glob("0*/*"))
    assert len(files) == 3
    match harm:
        case "cut":
            files[1].write_bytes(files[1].read_bytes()[:-1])
        case "gone":
            files[0].unlink()
        case "other":
            files[1].write_bytes(files[2].read_bytes())
        case "unchained":
            old = codec.decode_segment(files[1].read_bytes(), job="shop", seq=3)
            raw = [codec.encode_record(r)[0] for r in old.records]
            stranger = codec.encode_segment(codec.Author("shop", 1, "a"), seq=3, prev=bytes(32), time=0.0, records=raw)
            files[1].write_bytes(stranger)
    with pytest.raises(Damaged, match="shop-a") as found:
        disk.start("b")
    assert "--accept-loss" in found.value.hint
    with pytest.raises(Damaged, match="shop-a"):  # also where the opening of the start before fills the gap
        disk.start("b2")
    (disk.spools / "shop-a").rename(disk.spools / "moved")
    world.clock.at += TTL + 1
    disk.start("c", accept_loss=True)
    assert calls(world) == []


def test_a_damaged_log_leaves_the_job_where_its_spool_is(world: World, disk: Disk) -> None:
    """R6, R9: the plan refuses and the run gives the job back, but not to another machine."""
    first = disk.start("a")
    first.writer.append(intent(1, "saved"))
    drain(first)
    down(world)
    call(first, "one")
    cut_off(first)
    up(world)
    world.inner.delete(KEYS.segment(1))
    second = disk.start("b", spool=False)
    assert second.replay.damage is not None and second.spool is not None and second.spool.count == 1
    assert close_job(second, "released") == "left"
    seen = world.seen()
    assert seen is not None and (seen.doc.state, seen.doc.spool) == ("held", str(second.spool.folder))


def test_a_record_that_no_run_spools_is_damage(world: World, disk: Disk) -> None:
    """Hostile input: an opening in the spool would take the log over."""
    first = disk.start("a")
    opening = world.inner.get(KEYS.segment(1)).data
    assert first.spool is not None
    first.spool.store(1, opening)
    cut_off(first)
    with pytest.raises(Damaged, match="no run of epoch 1"):
        disk.start("b")


def test_a_full_disk_is_a_denial(world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: what is neither in the bucket nor on the disk is undecided; nothing behind it is spooled either."""
    first = disk.start("a")
    down(world)
    monkeypatch.setattr(spools, "MAX_SPOOL", 10)
    ticket = first.writer.append(intent(1, "one"))
    first.writer.append(intent(2, "two"))
    assert first.writer.commit_once() == "undecided"
    assert not first.writer.spool_once(at_once=True)
    assert ticket.status == "undecided" and first.writer.spooled == 0
    up(world)
    drain(first)
    assert ticket.wait(0) == "acked" and calls(world) == [(1, "one"), (2, "two")]


def test_ends_of_calls_keep_their_order(world: World, disk: Disk) -> None:
    """I8: each call has one end, behind its intent, across three runs on the machine."""
    for n, run in enumerate("abc", 1):
        job = disk.start(run)
        down(world)
        call(job, run)
        spooled(job, End(time=1.0, call=n, how="done", by="hook"))
        cut_off(job)
        up(world)
    state = disk.start("d").replay.state
    assert state.open == () and calls(world) == [(1, "a"), (2, "b"), (3, "c")]
    assert [r.call for _, r in log(world) if isinstance(r, End)] == [1, 2, 3]

"""wal/job.py, wal/spool_replay.py, supervise/acquire.py: a spool whose disk is full or read-only, and ends that come between."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import threading
from pathlib import Path

import pytest

from tests.unit.supervise.crew import PATIENCE
from tests.unit.wal.spooling import Disk, call, calls, cut_off, down, openings, spooled, up
from tests.unit.wal.world import FIELDS, KEYS, World, claim, drain, end, host, intent
from wal_agent.errors import ConfigError, LeaseHeld
from wal_agent.supervise.acquire import Interrupted, Spooling, acquire_job
from wal_agent.wal import spool as spools
from wal_agent.wal.job import close_job, describe_unsaved


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def disk(world: World, tmp_path: Path) -> Disk:
    return Disk(world, tmp_path / "spools")


def leave(world: World, disk: Disk, *uids: str) -> None:
    """A run that spooled these calls and is gone."""
    job = disk.start("a")
    down(world)
    for uid in uids:
        call(job, uid)
    cut_off(job)
    up(world)


def test_no_lease_is_taken_where_the_disk_has_no_room_to_carry_in(
    world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool is written once more before it is sent: told while nothing has changed yet."""
    leave(world, disk, "one", "two")
    before, usage, needed = world.seen(), shutil.disk_usage(disk.spools), 2 * spools.BLOCK
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
        with pytest.raises(ConfigError, match=rf"takes {needed} bytes.* {needed - 1} free"):
            disk.start("b")
    assert world.seen() == before and [epoch for epoch, _ in openings(world)] == [1]
    disk.start("c")
    assert calls(world) == [(1, "one"), (2, "two")]


def test_carrying_in_is_told_and_a_signal_ends_it(world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: what was not sent yet stays for the next start."""
    leave(world, disk, "one", "two", "three")

    def pending() -> None:
        if calls(world):
            raise Interrupted(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("wal_agent.supervise.acquire.check_signals", pending)
        with pytest.raises(Interrupted) as stopped:
            disk.start("b")
    assert stopped.value.lease is None, "it names what only this machine has, so nobody gives it up"
    assert calls(world) == [(1, "one")]
    monkeypatch.undo()
    disk.start("c")
    assert calls(world) == [(1, "one"), (2, "two"), (3, "three")]
    assert disk.told == [f"carrying in {n} segments from this machine's spool" for n in (3, 2)]


def test_a_spool_that_cannot_be_locked_is_said(world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only disk is no other start: waiting for one would never end."""
    leave(world, disk, "one")

    def read_only(_: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(spools, "_locked", read_only)
        with pytest.raises(ConfigError, match=r"shop-a.*Read-only"):
            disk.start("b")
    disk.start("c")
    assert calls(world) == [(1, "one")]


def test_who_waits_rests_between_two_tries(world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start keeps being faster: with --wait the bucket is not asked as fast as it answers."""
    tries: list[float] = []

    def beaten(*_: object, **__: object) -> None:
        tries.append(world.clock.at)
        if len(tries) == 3:
            raise ConfigError("enough")
        raise LeaseHeld("beaten")

    monkeypatch.setattr("wal_agent.supervise.acquire.open_job", beaten)
    args = (FIELDS, world.clock, random.Random(1), True, disk.told.append, Spooling(disk.spools))
    with pytest.raises(ConfigError, match="enough"):
        acquire_job(world.bucket, KEYS, host("b"), claim("b"), *args)
    assert tries[0] + 1 <= tries[1] <= tries[2] - 1


class Asked:
    """A lock that says when somebody waits for it."""

    def __init__(self, lock: threading.Lock, asked: threading.Event) -> None:
        self._lock, self._asked = lock, asked
        self.release = lock.release

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, *, timeout: float) -> bool:
        self._asked.set()
        return self._lock.acquire(timeout=timeout)


def test_a_close_waits_for_what_is_just_leaving_the_spool(
    world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: nothing waits for the bucket any more, but the thread that commits has not removed the file yet."""
    job = disk.start("a")
    down(world)
    call(job, "one")
    spooled(job, end(1))
    up(world)
    assert job.spool is not None
    drop, leaving, closing = job.spool.drop, threading.Event(), threading.Event()

    def slow(seq: int) -> None:
        if not job.writer.pending:
            leaving.set()
            assert closing.wait(PATIENCE)
        drop(seq)

    monkeypatch.setattr(job.spool, "drop", slow)
    thread = threading.Thread(target=drain, args=(job,))
    thread.start()
    assert leaving.wait(PATIENCE)
    monkeypatch.setattr(job.writer, "_committing", Asked(job.writer._committing, closing))
    how = close_job(job, "closed")
    closing.set()
    thread.join(PATIENCE)
    assert how == "closed"


def test_what_neither_the_bucket_nor_the_disk_took_is_counted(
    world: World, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: a person must not look in the spool for what was never written there."""
    job = disk.start("a")
    assert job.spool is not None
    down(world)
    call(job, "one")
    folder = job.spool.folder
    assert describe_unsaved(job).startswith(f"1 segment is in {folder}: the next start")
    monkeypatch.setattr(spools, "MAX_SPOOL", spools.BLOCK)
    job.writer.append(intent(2, "two"), end(2))
    assert not job.writer.spool_once()
    job.writer.append(end(1))
    assert close_job(job, "closed") == "left"
    said = describe_unsaved(job)
    assert said.startswith(
        f"3 records could not be written to {folder} and end with this run. 1 segment is in {folder}"
    )


def test_a_run_that_does_not_spool_sends_nobody_to_a_folder(world: World) -> None:
    job = world.open("a")
    down(world)
    job.writer.append(intent(1))
    assert close_job(job, "closed") == "left"
    assert describe_unsaved(job) == "What was acknowledged is safe; the next run recovers from there."

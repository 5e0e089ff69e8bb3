"""wal/spool.py: what is stored, what is read back, and what a disk may do to it (R9)."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.supervise.crew import PATIENCE
from tests.unit.wal.spooling import Disk, call, calls, cut_off, down, openings, spooled, up
from tests.unit.wal.world import FIELDS, World, claim, drain, end, intent
from wal_agent.errors import ConfigError, Damaged, Exhausted, LeaseHeld
from wal_agent.supervise.lease_keeper import AcquireOptions, Interrupted, acquire_job
from wal_agent.supervise.options import Screen
from wal_agent.wal import spool as spools
from wal_agent.wal.job import close_job, describe_unsaved
from wal_agent.wal.spool import Spool, SpoolOwner, last_contiguous, orphaned_spools, spool_presence

OWNER = SpoolOwner("shop", "file:///b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spools"


def made(folder: Path, run: str = "a") -> Spool:
    spool = Spool.create(folder, run, OWNER)
    spool.begin(1, [])
    return spool


def test_its_lock_says_whether_its_owner_lives(folder: Path) -> None:
    """R9: the proof of death that holds across a reboot."""
    spool = made(folder)
    named = str(spool.folder)
    assert spool_presence(folder, named, OWNER) == "held" and Spool.adopt(folder, named, OWNER) is None
    spool.store(2, b"x")
    spool.release()
    assert spool_presence(folder, named, OWNER) == "free"
    again = Spool.adopt(folder, named, OWNER)
    assert again is not None and again.count == 1 and not again.empty
    assert spool_presence(folder, named, OWNER) == "held"


def test_it_is_private(folder: Path) -> None:
    spool = made(folder)
    spool.store(2, b"x")
    for path in [spool.folder, *spool.folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "named", ["", "/", "/etc", "{}/..", "{}/.", "{}/x/../y", "{}", "{}/no", "{}/a\0b", "../spools/a"]
)
def test_a_name_from_the_bucket_leads_nowhere_else(folder: Path, named: str) -> None:
    made(folder).release()
    assert spool_presence(folder, named.format(folder), OWNER) == "absent"


def test_what_is_not_ours_is_not_here(folder: Path, tmp_path: Path) -> None:
    spool = made(folder)
    spool.release()
    named = str(spool.folder)
    assert spool_presence(folder, named, SpoolOwner("shop", "file:///other")) == "absent"
    assert spool_presence(folder, named, SpoolOwner("other", "file:///b")) == "absent"
    assert Spool.adopt(folder, named, SpoolOwner("other", "file:///b")) is None
    assert spool_presence(folder, named, OWNER) == "free", "its lock was not taken"
    (folder / "link").symlink_to(spool.folder)
    assert spool_presence(folder, str(folder / "link"), OWNER) == "absent"
    spool.folder.chmod(0o755)
    assert spool_presence(folder, named, OWNER) == "absent"
    spool.folder.chmod(0o700)
    assert spool_presence(folder, named, OWNER) == "free"
    (spool.folder / "owner.json").write_bytes(b"\xff{")
    assert spool_presence(folder, named, OWNER) == "absent"


def test_only_what_no_lease_names_and_nobody_uses_is_forsaken(folder: Path) -> None:
    """Records are kept for a person; an empty folder goes."""
    used, living, full, empty = (made(folder, run) for run in ("used", "living", "full", "empty"))
    full.store(7, b"x")
    for spool in (used, full, empty):
        spool.release()
    assert orphaned_spools(folder, OWNER, used.folder) == [full.folder]
    assert sorted(p.name for p in folder.iterdir()) == ["shop-full", "shop-living", "shop-used"]
    assert living.empty and orphaned_spools(folder / "none", OWNER, None) == []


def test_it_takes_so_much_and_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9; what was dropped makes room. The smallest segment counts as a block: it costs a run more than its bytes."""
    monkeypatch.setattr(spools, "MAX_SPOOL", 2 * spools.BLOCK)
    spool = made(folder)
    spool.store(2, b"x" * (spools.BLOCK + 1))
    with pytest.raises(OSError, match="full"):
        spool.store(3, b"x")
    spool.drop(2)
    spool.store(3, b"x")
    spool.store(4, b"x")
    with pytest.raises(OSError, match="full"):
        spool.store(5, b"x")
    spool.begin(2, [(5, b"x")])
    spool.store(6, b"x")
    with pytest.raises(OSError, match="full"):
        spool.store(7, b"x")
    assert spool.count == 2


def test_the_places_of_a_crash_are_where_the_disk_is_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill tests of R9 are worth what these places are: each with what the disk has there."""
    spool = made(folder)
    seen: list[tuple[str, set[str]]] = []

    def visit(place: str) -> None:
        seen.append((place, {p.relative_to(spool.folder).as_posix() for p in spool.folder.rglob("?" * 20)}))

    monkeypatch.setattr(spools, "failpoint", visit)
    spool.store(2, b"x")
    spool.drop(2)
    spool.begin(2, [])
    one, two, record = f"{1:020d}", f"{2:020d}", f"{1:020d}/{2:020d}"
    assert seen == [
        ("spool.before_store", {one}),
        ("spool.after_store", {one, record}),
        ("spool.before_drop", {one, record}),
        ("spool.before_begin", {one}),
        ("spool.before_rename", {one}),
        ("spool.after_rename", {one, two}),
    ]


def test_only_what_is_known_to_hold_nothing_is_empty(folder: Path) -> None:
    """Else a lease would name no spool while the disk has records that the log lacks."""
    spool = made(folder)
    assert spool.empty and spool.count == 0
    spool.store(2, b"x")
    assert not spool.empty and spool.count == 1
    spool.drop(2)
    assert spool.empty
    assert Spool.create(folder, "b", OWNER).empty, "new, and not begun"
    spool.release()
    spool.release()
    again = Spool.adopt(folder, str(spool.folder), OWNER)
    assert again is not None and not again.empty, "not read yet"
    again.begin(2, [])
    assert again.empty


def test_what_can_be_removed_of_it_goes_and_its_lock_is_free(folder: Path) -> None:
    spool = made(folder)
    shutil.rmtree(spool.folder)
    spool.remove()
    spool.remove()
    assert Spool.create(folder, "a", OWNER).empty


def test_a_folder_that_cannot_be_made_is_said_before_the_job_is_opened(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("")
    with pytest.raises(ConfigError, match="--on-outage spool"):
        Spool.create(folder, "a", OWNER)


def test_a_new_epoch_leaves_nothing_of_the_old_one_and_no_unfinished_move(folder: Path) -> None:
    spool = made(folder)
    spool.store(2, b"old")
    (spool.folder / f"{2:020d}.new").mkdir()
    (spool.folder / f"{2:020d}.new" / f"{9:020d}").write_bytes(b"half")
    spool.begin(2, [(5, b"new")])
    assert {p.relative_to(spool.folder).as_posix() for p in spool.folder.rglob("*") if p.is_file()} == {
        "lock",
        "owner.json",
        f"{2:020d}/{5:020d}",
    }
    assert spool.count == 1


def test_the_newest_epoch_counts_where_an_old_one_could_not_be_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = made(folder)
    spool.store(2, b"old")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    spool.begin(2, [])
    assert spool.read() == spools.SpoolContent(2, ()) and spools.count_segments(spool.folder) == 0


@given(st.sets(st.integers(1, 30)))
def test_the_last_unbroken_row(numbers: set[int]) -> None:
    row = last_contiguous(sorted(numbers))
    assert bool(row) == bool(numbers)
    if row:
        assert row == list(range(row[0], max(numbers) + 1)) and row[0] - 1 not in numbers


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
        with pytest.raises(Exhausted, match=rf"takes {needed} bytes.* {needed - 1} free"):
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
        patch.setattr("wal_agent.supervise.lease_keeper.check_signals", pending)
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

    monkeypatch.setattr("wal_agent.supervise.lease_keeper.open_job", beaten)
    args = (FIELDS, AcquireOptions(disk.spools, wait=True), Screen(disk.told.append, print))
    with pytest.raises(ConfigError, match="enough"):
        acquire_job(world.store, claim("b"), *args)
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


def test_the_segments_of_an_epoch_are_on_the_disk_before_they_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: the folder is synced, renamed, and the rename synced; a power cut in between leaves no epoch with holes."""
    spool = made(folder)
    steps: list[str] = []
    real = os.rename

    def rename(old: str, new: str, **at: int) -> None:
        steps.append("renamed")
        real(old, new, **at)

    monkeypatch.setattr(spools, "sync", lambda fd: steps.append(f"synced {[e.name for e in os.scandir(fd)]}"))
    monkeypatch.setattr(os, "rename", rename)
    spool.begin(3, [(7, b"seven")])
    segments, renamed, epochs = steps[-3:]
    assert renamed == "renamed" and "7" in segments and "owner" not in segments and "owner" in epochs
    spool.store(8, b"eight")
    assert steps[-2] == "renamed" and "8" in steps[-1], "so is each that follows"


def test_what_the_bucket_did_not_take_at_the_end_is_spooled_at_once(disk: Disk, world: World) -> None:
    """R9: also a record that no outage has held up yet."""
    job = disk.start("a")
    assert job.spool is not None
    down(world)
    job.writer.append(intent(1))
    assert close_job(job, "released", budget=0.0) == "left" and job.spool.count == 1


def test_a_record_that_cannot_be_read_is_not_passed_over(folder: Path) -> None:
    """I3."""
    spool = made(folder)
    spool.store(2, b"x")
    with pytest.raises(Damaged, match="record 2"):
        spool.read()


def test_a_spool_that_cannot_be_locked_stops_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: what it holds must not be passed over."""
    spool = made(folder)
    spool.release()

    def refuse(fd: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(spools, "try_lock", refuse)
    descriptors = len([*Path("/dev/fd").iterdir()])
    with pytest.raises(ConfigError, match="No locks available"):
        Spool.adopt(folder, str(spool.folder), OWNER)
    assert len([*Path("/dev/fd").iterdir()]) == descriptors


def test_what_cannot_be_set_aside_stops_the_start_and_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: else the new epoch that the start begins next removes the records."""
    spool, real = made(folder), os.rename
    spool.store(2, b"x")

    def refuse(old: str, new: str, **at: int) -> None:
        if old == f"{1:020d}":
            raise OSError(errno.EROFS, "Read-only file system")
        real(old, new, **at)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ConfigError, match="Read-only"):
        spool.set_aside(1)
    assert spools.count_segments(spool.folder) == 1
    assert spool_presence(folder, str(folder / "shop-a.aside-1"), OWNER) == "free"


def test_what_is_set_aside_is_durable_in_its_new_folder_before_it_leaves_the_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: a power cut in between loses nothing."""
    spool, synced = made(folder), list[bool]()
    monkeypatch.setattr(spools, "sync", lambda fd: synced.append(f"{1:020d}" in [e.name for e in os.scandir(fd)]))
    spool.set_aside(1)
    assert synced[-2:] == [True, False]

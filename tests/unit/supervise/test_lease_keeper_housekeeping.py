"""supervise/lease_keeper.py: snapshots beside the run; nothing waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.supervise.crew import until
from tests.unit.wal.world import KEYS, World, drain, intent
from wal_agent.errors import Damaged
from wal_agent.supervise import lease_keeper as module
from wal_agent.supervise.lease_keeper import Housekeeping, sweep_mirrors
from wal_agent.wal.reader import iter_snapshots, replay
from wal_agent.wal.retention import SnapshotPolicy


class Keeper:
    """Housekeeping of a job in memory that looks every few milliseconds. A snapshot is due after five segments."""

    def __init__(self, folder: Path, may_act: Callable[[], bool] = lambda: True) -> None:
        self.world = World()
        self.job = self.world.open("a")
        self.folder = folder / "mirrors" / "a"
        self.looks = 0
        self.may = may_act
        self.failures: list[BaseException] = []
        self.keeper = Housekeeping(self.world.bucket, self.job, self.folder, self.may_act, self.failures.append)
        self.keeper._snapshots._policy = SnapshotPolicy(segments=5)

    def may_act(self) -> bool:
        self.looks += 1
        return self.may()

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.job.writer.append(intent(self.job.writer.next_call()))
            drain(self.job)

    def more_looks(self) -> None:
        seen = self.looks
        until(lambda: self.looks >= seen + 3, "it goes on looking")

    def snapshots(self) -> list[int]:
        return [s.seq for s in iter_snapshots(self.world.inner, KEYS)]


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr(module, "LOOK", 0.005)
    made = Keeper(tmp_path)
    made.keeper.start()
    yield made
    made.keeper.stop()


def test_a_snapshot_is_taken_when_it_is_due_and_replay_stands_on_it(keeper: Keeper) -> None:
    """R5."""
    keeper.grow(3)
    keeper.more_looks()
    assert keeper.snapshots() == []
    keeper.grow(2)
    until(keeper.snapshots, "a snapshot")
    assert replay(keeper.world.inner, KEYS, parallel=1).snapshot == keeper.snapshots()[0] >= 5
    keeper.more_looks()
    assert len(keeper.snapshots()) == 1 and keeper.failures == []


def test_it_does_nothing_without_the_lease(keeper: Keeper) -> None:
    """R4, R7: a fenced owner's view of what may go is old."""
    keeper.may = lambda: False
    keeper.more_looks()
    keeper.grow(10)
    keeper.more_looks()
    assert keeper.snapshots() == []
    keeper.may = lambda: True
    until(keeper.snapshots, "its turn")


def test_an_outage_is_passed_over(keeper: Keeper) -> None:
    keeper.may = lambda: False
    keeper.grow(10)
    keeper.world.bucket.fates = ["dropped"] * 2
    keeper.may = lambda: True
    until(keeper.snapshots, "a later try")
    assert keeper.failures == []


def test_a_failure_of_ours_is_told_once_and_is_the_end_of_it(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise Damaged("a blob is missing")

    monkeypatch.setattr(keeper.keeper._snapshots, "take_if_due", broken)
    until(lambda: not keeper.keeper._thread.is_alive(), "it ends")
    assert [str(f) for f in keeper.failures] == ["a blob is missing"]


def test_the_end_leaves_no_thread_and_no_copy(keeper: Keeper) -> None:
    """I7: the private copy of the session goes with the run."""
    assert keeper.folder.stat().st_mode & 0o777 == 0o700
    (keeper.folder / "copy").write_text("x")
    keeper.keeper.stop()
    assert not keeper.keeper._thread.is_alive() and not keeper.folder.exists()


def test_without_its_folder_there_are_no_snapshots_and_the_run_goes_on(tmp_path: Path) -> None:
    """Nothing is unsafe without snapshots, so a folder that cannot be made is told and stops nothing."""
    (tmp_path / "mirrors" / "a").mkdir(parents=True)
    keeper = Keeper(tmp_path)
    keeper.keeper.start()
    keeper.keeper.stop()
    assert [type(error) for error in keeper.failures] == [FileExistsError]


def test_sweeping_takes_the_copies_of_dead_runs_only(tmp_path: Path) -> None:
    for name in ("live", "dead"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "copy").write_text("x")
    sweep_mirrors(tmp_path, lambda name: name == "live")
    assert [p.name for p in tmp_path.iterdir()] == ["live"]
    sweep_mirrors(tmp_path / "none", lambda _: False)

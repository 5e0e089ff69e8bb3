"""supervise/autosave.py: one thread saves, soon after a change, on request, and every interval."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.supervise.crew import PATIENCE, until
from wal_agent.supervise.autosave import Autosave

NEVER = 3600.0


class Saves:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.threads: set[int] = set()
        self.failing: Exception | None = None
        self.failures: list[BaseException] = []

    def save(self) -> list[Path]:
        self.count += 1
        self.threads.add(threading.get_ident())
        if self.failing is not None:
            raise self.failing
        return [self.folder, self.folder / "not yet"]

    def start(self, interval: float = NEVER) -> Autosave:
        made = Autosave(self.save, interval, self.failures.append)
        made.start()
        return made


@pytest.fixture
def saves(tmp_path: Path) -> Saves:
    return Saves(tmp_path)


@pytest.fixture
def autosave(saves: Saves) -> Iterator[Autosave]:
    made = saves.start()
    yield made
    made.stop()


def test_it_saves_on_request_and_when_a_file_changes(saves: Saves, autosave: Autosave) -> None:
    autosave.poke()
    until(lambda: autosave._watched, "the folder is watched")
    assert autosave._watched == {saves.folder}
    seen = saves.count
    (saves.folder / "main.jsonl").write_text("{}\n")
    until(lambda: saves.count > seen, "a save for the change")
    assert len(saves.threads) == 1


def test_it_saves_every_interval_without_anything(saves: Saves) -> None:
    made = saves.start(interval=0.01)
    until(lambda: saves.count >= 3, "three saves")
    made.stop()


def test_a_save_that_failed_is_told_and_is_not_the_last(saves: Saves, autosave: Autosave) -> None:
    saves.failing = OSError("vanished")
    autosave.poke()
    until(lambda: saves.failures, "it is told")
    saves.failing = None
    seen = saves.count
    autosave.poke()
    until(lambda: saves.count > seen, "the next save")
    assert [str(f) for f in saves.failures] == ["vanished"]


def test_no_save_runs_after_the_stop(saves: Saves) -> None:
    """The last save of a run is the main thread's own: deltas build on each other."""
    inside, leave = threading.Event(), threading.Event()

    def slow() -> list[Path]:
        inside.set()
        leave.wait(PATIENCE)
        return saves.save()

    made = Autosave(slow, NEVER, saves.failures.append)
    made.start()
    made.poke()
    assert inside.wait(PATIENCE)
    threading.Timer(0.05, leave.set).start()
    made.stop()
    assert saves.count == 1
    made.poke()
    assert not made._thread.is_alive()

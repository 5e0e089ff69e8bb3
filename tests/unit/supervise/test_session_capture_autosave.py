"""supervise/session_capture.py: one thread saves, soon after a change, on request, and every interval."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.supervise.crew import PATIENCE, until
from wal_agent.supervise.session_capture import Autosave

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
    made.stop(PATIENCE, lambda: None)


def test_it_saves_on_request_and_when_a_file_changes(saves: Saves, autosave: Autosave) -> None:
    autosave.poke()
    until(lambda: autosave._watched, "the folder is watched")
    assert set(autosave._watched) == {saves.folder}
    until(lambda: saves.count == 2, "what changed before the folder was watched is saved too")
    seen = saves.count
    (saves.folder / "main.jsonl").write_text("{}\n")
    until(lambda: saves.count > seen, "a save for the change")
    assert len(saves.threads) == 1


def test_it_saves_every_interval_without_anything(saves: Saves) -> None:
    made = saves.start(interval=0.01)
    until(lambda: saves.count >= 3, "three saves")
    assert made.stop(PATIENCE, lambda: None)


def test_who_asks_for_a_save_waits_for_one_that_began_later(tmp_path: Path) -> None:
    """The save that is under way may have read the file before; one thread does all of them, in order."""
    saves = Saves(tmp_path)
    began, go_on = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def held() -> list[Path]:
        turn = min(saves.count, 1)
        began[turn].set()
        assert go_on[turn].wait(PATIENCE)
        return saves.save()

    made = Autosave(held, NEVER, saves.failures.append)
    made.start()
    made.poke()
    assert began[0].wait(PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(made.save_now, PATIENCE)
        until(lambda: made._asked, "it is asked for")
        (ended,) = made._asked
        go_on[0].set()
        assert began[1].wait(PATIENCE) and not ended.is_set()
        go_on[1].set()
        assert asked.result(PATIENCE) and saves.count >= 2
    assert len(saves.threads) == 1 and not saves.failures
    assert made.stop(PATIENCE, lambda: None)


def test_a_save_that_failed_is_told_and_is_not_the_last(saves: Saves, autosave: Autosave) -> None:
    saves.failing = OSError("vanished")
    autosave.poke()
    until(lambda: saves.failures, "it is told")
    saves.failing = None
    seen = saves.count
    autosave.poke()
    until(lambda: saves.count > seen, "the next save")
    assert [str(f) for f in saves.failures] == ["vanished"]


@pytest.mark.parametrize("error", [OSError(28, "inotify watch limit reached"), RuntimeError("can't start new thread")])
def test_a_folder_that_cannot_be_watched_is_reported_once_and_saved_on_request(
    saves: Saves, autosave: Autosave, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No inotify watch or thread is left."""

    def refuse(*args: object, **options: object) -> None:
        raise error

    assert autosave.watches and autosave._observer is not None
    monkeypatch.setattr(autosave._observer, "schedule", refuse)
    seen = saves.count
    autosave.poke()
    until(lambda: saves.count > seen and autosave.problem, "a save, and the sentence")
    assert "fs.inotify" in autosave.problem and saves.failures == []


class Slow:
    """A save that hangs until it is let go."""

    def __init__(self, saves: Saves) -> None:
        self.saves = saves
        self.inside, self.leave, self.last = threading.Event(), threading.Event(), threading.Event()
        self.order: list[str] = []
        self.autosave = Autosave(self.save, NEVER, saves.failures.append)
        self.autosave.start()
        self.autosave.poke()
        assert self.inside.wait(PATIENCE)

    def save(self) -> list[Path]:
        self.inside.set()
        self.leave.wait(PATIENCE)
        self.order.append("save")
        return self.saves.save()

    def finish(self) -> None:
        self.order.append("last")
        self.saves.save()
        self.last.set()


def test_the_last_save_follows_the_one_that_runs_and_none_follows_it(saves: Saves) -> None:
    """Deltas build on each other: all captures are one thread's."""
    slow = Slow(saves)
    threading.Timer(0.05, slow.leave.set).start()
    assert slow.autosave.stop(PATIENCE, slow.finish)
    assert slow.order == ["save", "last"] and len(saves.threads) == 1
    slow.autosave.poke()
    assert not slow.autosave._thread.is_alive()


def test_a_save_that_hangs_holds_up_no_end(saves: Saves) -> None:
    """A drain has its seconds, and a request to a bucket that is away may take as long as it likes."""
    slow = Slow(saves)
    assert not slow.autosave.stop(0.05, slow.finish)
    assert slow.order == []
    slow.leave.set()
    assert slow.last.wait(PATIENCE)


def test_a_last_save_that_fails_is_told(saves: Saves, autosave: Autosave) -> None:
    saves.failing = OSError("vanished")
    assert autosave.stop(PATIENCE, saves.save)
    assert [str(f) for f in saves.failures] == ["vanished"]


def test_the_watcher_writes_nothing_into_the_agents_terminal() -> None:
    """I6. In a process of its own: a test's logging is set up in another way."""
    warn = "logging.getLogger('watchdog.observers.x').warning('inactive')"
    program = f"import wal_agent.supervise.session_capture, logging; {warn}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")

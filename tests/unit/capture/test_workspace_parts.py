"""A big workspace is saved in parts: what people edit first, nothing twice, and each record says what it lacks."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.unit.capture.trees import Elsewhere, Log, User, capture_of, on_disk
from wal_agent.capture import workspace
from wal_agent.capture import workspace as module
from wal_agent.capture.candidates import FILE_COST, Add, Caps, take_first
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.records import Payload

PART = 60_000  # bytes
CAPS = Caps(total=PART * module.MAX_PARTS, file=1 << 20)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_PART", PART)
    monkeypatch.setattr(module, "MAX_PART", PART)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture
def log() -> Log:
    return Log()


def old(user: User, count: int, size: int = 20_000, name: str = "old") -> int:
    """Files from before the run, and their bytes."""
    for n in range(count):
        path = user.write(f"{name}/{n}", random.Random(n).randbytes(size))
        os.utime(path, (1000.0 + n, 1000.0 + n))
    return count * size


def rest(log: Log, capture: WorkspaceCapture, holds: int = 0) -> int:
    """Capture until nothing is left; how many captures it took."""
    for n in range(1, 100):
        log.take(capture, holds)
        if log.now.pending is None:
            return n
    raise AssertionError("it never came to its end")


def files_of(log: Log, folder: Path) -> set[bytes]:
    folder.mkdir()
    return set(Elsewhere(log, folder).files())


@pytest.mark.parametrize("repo", [True, False])
def test_an_edited_file_is_safe_at_once_beside_many_others(user: User, log: Log, tmp_path: Path, repo: bool) -> None:
    if repo:
        user.init()
        user.write("committed")
        user.commit()
    size = old(user, 12)
    user.write("edited.py", "x = 1\n")
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    first = log.must(capture)
    assert b"edited.py" in files_of(log, tmp_path / "first")
    assert first.pending is not None
    assert 0 < first.pending.size < size
    assert first.pending.files + first.files == 13 + repo
    assert first.pending.names
    user.write("edited.py", "x = 2\n")
    log.must(capture)
    assert Elsewhere(log, tmp_path).files()[b"edited.py"] == ("100644", b"x = 2\n")
    assert log.now.pending is not None
    assert rest(log, capture) > 1
    (tmp_path / "end").mkdir()
    assert Elsewhere(log, tmp_path / "end").files() == on_disk(user.top)
    assert log.take(capture) is None


def test_what_was_sent_is_not_sent_again(user: User, log: Log, tmp_path: Path) -> None:
    size = old(user, 40)
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    assert rest(log, capture) > 10
    assert log.sent < 1.1 * size
    assert [r.whole for r in log.records] == [True] + [False] * (len(log.records) - 1)
    assert log.now.parts == len(log.now.packs)
    for n in range(60):  # a long life behind it: the later packs are sent again as one, the first ones are not
        user.write("edited.py", f"x = {n}\n")
        log.must(capture)
    assert log.sent < 1.3 * size
    assert log.now.parts <= len(log.now.packs) < log.now.parts + 50
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_the_next_run_goes_on_with_it(user: User, log: Log, tmp_path: Path) -> None:
    size = old(user, 20)
    first = capture_of(user, tmp_path, log=log, caps=CAPS)
    for _ in range(3):
        log.must(first)
    assert log.now.pending is not None
    second = capture_of(user, tmp_path, log=log, caps=CAPS)
    second.go_on_from(log.now)
    rest(log, second)
    assert log.sent < 1.2 * size
    assert [r.whole for r in log.records].count(True) == 1
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_rewritten_files_are_not_kept_for_ever(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What replaces something is waste, also where it comes in parts: the packs stay in proportion to the files."""
    monkeypatch.setattr(workspace, "PACK_SLACK", 10_000)
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    for n in range(8):
        for m in range(3):
            user.write(f"built/{m}", random.Random(f"{n} {m}").randbytes(40_000))
        rest(log, capture)
        user.write("edited.py", f"x = {n}\n")
        log.must(capture)
    assert sum(pack.size for pack in log.now.packs) < 4 * 120_000
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_a_capture_holds_no_call_whose_files_are_pending(user: User, log: Log, tmp_path: Path) -> None:
    old(user, 12)
    past = time.time() + module.MARGIN + 60
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    capture._began = past  # all files are from before the run
    log.must(capture, 3)
    assert (log.now.pending is not None, log.now.holds, capture.lags) == (True, 3, False)
    capture._began = 0.0  # they may be of its calls
    log.must(capture, 7)
    assert (log.now.pending is not None, log.now.holds, capture.lags) == (True, 3, True)
    rest(log, capture, 9)
    assert (log.now.holds, capture.lags) == (9, False)


def test_calls_that_ended_while_an_earlier_one_runs_are_named(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a")
    capture = capture_of(user, tmp_path, log=log)
    record = capture.capture(4, 1000.0, (6, 7))
    assert record is not None
    assert (record.holds, record.also) == (4, (6, 7))
    capture.commit()
    assert capture.capture(4, 1001.0, (6, 7)) is None
    again = capture.capture(7, 1002.0)
    assert again is not None
    assert (again.holds, again.also, again.packs) == (7, (), ())


def test_history_that_is_heavy_waits_for_the_files(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    old(user, 12)
    head = user.commit()
    user.write("edited.py", "x = 1\n")
    user.write("old/3", "edited\n")
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    first = log.must(capture)
    assert {b"edited.py", b"old/3"} <= files_of(log, tmp_path / "first")
    assert first.pending is not None
    assert first.pending.repository
    assert first.packs[0].size < 2 * PART
    assert Elsewhere(log, tmp_path).contents.state.commits == ()
    rest(log, capture)
    (tmp_path / "end").mkdir()
    end = Elsewhere(log, tmp_path / "end")
    assert end.files() == on_disk(user.top)
    assert end.contents.state.commits == (head,)
    assert end.contents.index


def test_files_that_vanish_while_they_wait(user: User, log: Log, tmp_path: Path) -> None:
    old(user, 12)
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    log.must(capture)
    for n in range(12):
        (user.top / "old" / str(n)).unlink()
    user.write("new", "x\n")
    assert log.must(capture).pending is None
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_a_file_over_the_cap_is_left_out_and_the_others_are_saved(user: User, log: Log, tmp_path: Path) -> None:
    old(user, 6)
    user.write("giant", random.Random(1).randbytes(2 << 20))
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    rest(log, capture)
    assert log.now.left_out == ("giant: bigger than 1 MiB",)
    assert set(Elsewhere(log, tmp_path).files()) == set(on_disk(user.top)) - {b"giant"}


def test_outside_of_git_parts_leave_no_file_for_each_object(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY_LOOSE", 5)
    old(user, 100, size=100)
    capture = capture_of(user, tmp_path, log=log, caps=CAPS)
    assert rest(log, capture) > 1
    assert len(list(capture._shadow.objects.glob("??/*"))) <= 5
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_a_part_is_as_big_as_fits_in_its_time(user: User, log: Log, tmp_path: Path) -> None:
    capture = WorkspaceCapture(
        tmp_path / "state", user.top.resolve(), user.env, lambda data: Payload(size=len(data), data=data), (), CAPS
    )
    module.MAX_PART = 64 << 20  # the fixture puts it back
    capture._adapt(PART, 0.1, 0.2)
    assert capture._budget == 4 * PART
    capture._adapt(4 * PART, 3600.0, 3600.0)
    assert capture._budget == PART
    capture._adapt(PART, 3.0, 9.0)
    assert capture._budget == 2 * PART


# ---- which are first


def test_the_order_of_files() -> None:
    """Small before big, the newest first, and what git has as it is at the end."""
    big, small = 2 << 20, 100
    adds = [
        Add(b"big-new", big, True, 9.0),
        Add(b"clean", small, True, 10.0),
        Add(b"older", small, True, 5.0),
        Add(b"newer", small, True, 6.0),
        Add(b"big-old", big, True, 1.0),
    ]
    budget = 2 * (small + FILE_COST)
    taken, later = take_first(adds, budget, lambda: {b"clean"})
    assert [add.path for add in taken] == [b"newer", b"older"]
    assert [add.path for add in later] == [b"big-new", b"big-old", b"clean"]
    assert take_first(adds, 1 << 30) == (adds, [])


def test_a_file_that_is_written_all_the_time_keeps_no_new_file_waiting() -> None:
    adds = [Add(b"log", 10 << 20, False, 99.0), *(Add(b"%d" % n, 1 << 20, True, 1.0) for n in range(9))]
    taken, _ = take_first(adds, 4 << 20)
    assert b"log" in {add.path for add in taken}
    assert any(add.new for add in taken)

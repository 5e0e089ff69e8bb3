"""SessionCapture: all files, in an order that restores, all or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal_agent.agents.base import SessionFile
from wal_agent.capture.session import SessionCapture
from wal_agent.records import FileDelta, FileGone, Payload


def put(data: bytes) -> Payload:
    return Payload(size=len(data), data=data)


def files(folder: Path, *names: str) -> list[SessionFile]:
    return [SessionFile(name, folder / name) for name in names]


def names(records: list[FileDelta | FileGone]) -> list[str]:
    return [("-" if isinstance(r, FileGone) else "") + r.path for r in records]


@pytest.fixture
def mine() -> SessionCapture:
    return SessionCapture("s1", put)


def test_the_main_file_comes_last_and_alone_says_what_is_settled(mine: SessionCapture, tmp_path: Path) -> None:
    for name in ("main", "a", "b"):
        (tmp_path / name).write_text(name)
    found = mine.capture(files(tmp_path, "main", "a", "b"), now=1.0, settled=4)
    assert names(found) == ["a", "b", "main"]
    assert [r.settled for r in found if isinstance(r, FileDelta)] == [0, 0, 4]
    assert mine.capture(files(tmp_path, "main", "a", "b"), now=2.0, settled=4) == []


def test_files_appear_and_vanish(mine: SessionCapture, tmp_path: Path) -> None:
    (tmp_path / "main").write_text("m")
    assert names(mine.capture(files(tmp_path, "main", "late"), now=1.0)) == ["main"]
    (tmp_path / "late").write_text("l")
    assert names(mine.capture(files(tmp_path, "main", "late"), now=2.0)) == ["late"]
    (tmp_path / "late").unlink()
    assert names(mine.capture(files(tmp_path, "main"), now=3.0)) == ["-late"]
    assert mine.capture(files(tmp_path, "main"), now=4.0) == []
    (tmp_path / "late").write_text("l")
    assert names(mine.capture(files(tmp_path, "main", "late"), now=5.0)) == ["late"]


def test_a_file_that_is_only_no_longer_listed_is_not_gone(mine: SessionCapture, tmp_path: Path) -> None:
    for name in ("main", "a"):
        (tmp_path / name).write_text(name)
    mine.capture(files(tmp_path, "main", "a"), now=1.0)
    assert mine.capture(files(tmp_path, "main"), now=2.0) == []


def test_the_log_keeps_a_session_that_the_agent_deleted(mine: SessionCapture, tmp_path: Path) -> None:
    (tmp_path / "main").write_text("m")
    mine.capture(files(tmp_path, "main"), now=1.0)
    (tmp_path / "main").unlink()
    assert mine.capture(files(tmp_path, "main"), now=2.0) == []
    assert mine.capture([], now=3.0) == []
    assert len(mine.problems) == 1 and "gone" in mine.problems[0]


def test_what_cannot_be_captured_is_a_problem_in_words_and_stops_no_other(mine: SessionCapture, tmp_path: Path) -> None:
    (tmp_path / "main").write_text("m")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "main")
    assert names(mine.capture(files(tmp_path, "main", "pipe", "link"), now=1.0)) == ["main"]
    assert [p.split(" is ")[0] for p in mine.problems] == [str(tmp_path / "pipe"), str(tmp_path / "link")]


def test_a_failed_store_loses_nothing_of_any_file(tmp_path: Path) -> None:
    for name in ("main", "a"):
        (tmp_path / name).write_text(name)
    left = [1]

    def put_once(data: bytes) -> Payload:
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionError
        return put(data)

    mine = SessionCapture("s1", put_once)
    with pytest.raises(ConnectionError):
        mine.capture(files(tmp_path, "main", "a"), now=1.0)
    left[0] = 10
    assert names(mine.capture(files(tmp_path, "main", "a"), now=2.0)) == ["a", "main"]


def test_a_file_that_moved_to_another_path_is_followed(mine: SessionCapture, tmp_path: Path) -> None:
    (tmp_path / "stub").write_text("stub")
    mine.capture([SessionFile("main", tmp_path / "stub")], now=1.0)
    (tmp_path / "real").write_text("the real one")
    found = mine.capture([SessionFile("main", tmp_path / "real")], now=2.0)
    assert [r.size for r in found if isinstance(r, FileDelta)] == [12]


def test_resume_goes_on_from_the_logs_versions(tmp_path: Path) -> None:
    listed = files(tmp_path, "main", "same", "other", "new")
    for name in ("main", "same", "other"):
        (tmp_path / name).write_text(name)
    first = SessionCapture("s1", put).capture(listed, now=1.0)
    captured = {r.path: r for r in first if isinstance(r, FileDelta)}
    (tmp_path / "main").write_text("main, longer")
    (tmp_path / "other").write_text("elsewise")
    (tmp_path / "new").write_text("new")
    mine = SessionCapture("s1", put)
    mine.resume_from(listed, captured)
    found = mine.capture(listed, now=2.0)
    sent = {r.path: [(e.offset, e.data.size) for e in r.edits] for r in found if isinstance(r, FileDelta)}
    assert sent == {"other": [(0, 8)], "new": [(0, 3)], "main": [(4, 8)]}


def test_verify_finds_what_the_quick_look_misses(mine: SessionCapture, tmp_path: Path) -> None:
    path = tmp_path / "main"
    path.write_bytes(b"a" * 10_000)
    mine.capture(files(tmp_path, "main"), now=1.0)
    path.write_bytes(b"b" + b"a" * 10_005)
    assert len(mine.capture(files(tmp_path, "main"), now=2.0)) == 1
    found = mine.capture(files(tmp_path, "main"), now=3.0, verify=True)
    assert [e.offset for r in found if isinstance(r, FileDelta) for e in r.edits] == [0]


def test_a_file_that_vanishes_right_after_it_was_read_is_gone_at_the_next_call(tmp_path: Path) -> None:
    for name in ("main", "a"):
        (tmp_path / name).write_text(name)
    vanish: list[Path] = []

    def put_and_vanish(data: bytes) -> Payload:
        for path in vanish:
            path.unlink(missing_ok=True)
        return put(data)

    mine = SessionCapture("s1", put_and_vanish)
    mine.capture(files(tmp_path, "main", "a"), now=1.0)
    (tmp_path / "a").write_text("a, longer")
    vanish.append(tmp_path / "a")
    assert names(mine.capture(files(tmp_path, "main", "a"), now=2.0)) == ["a"]
    assert names(mine.capture(files(tmp_path, "main"), now=3.0)) == ["-a"]


def test_after_a_record_was_not_queued_every_file_is_sent_whole(mine: SessionCapture, tmp_path: Path) -> None:
    for name in ("main", "a", "late"):
        (tmp_path / name).write_text(name)
    listed = files(tmp_path, "main", "a", "late")
    mine.capture(listed, now=1.0, settled=1)
    (tmp_path / "main").write_text("main, longer")
    (tmp_path / "late").unlink()
    assert names(mine.capture(listed, now=2.0, settled=2)) == ["-late", "main"]
    mine.forget()
    found = mine.capture(listed, now=3.0)
    assert names(found) == ["-late", "a", "main"]
    sent = {r.path: [(e.offset, e.data.size) for e in r.edits] for r in found if isinstance(r, FileDelta)}
    assert sent == {"a": [(0, 1)], "main": [(0, 12)]}
    assert [r.settled for r in mine.capture(listed, now=4.0, settled=2) if isinstance(r, FileDelta)] == [2]
    assert mine.capture(listed, now=5.0, settled=2) == []


def test_a_file_that_vanishes_when_it_was_forgotten_is_told_as_gone(mine: SessionCapture, tmp_path: Path) -> None:
    for name in ("main", "a"):
        (tmp_path / name).write_text(name)
    mine.capture(files(tmp_path, "main", "a"), now=1.0)
    mine.forget()
    (tmp_path / "a").unlink()
    assert names(mine.capture(files(tmp_path, "main"), now=2.0)) == ["-a", "main"]

"""SessionCapture: all files, in an order that restores, all or nothing."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.agents.base import SessionFile
from wal_agent.capture.session import TAIL, SessionCapture
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
    assert str(tmp_path / "main") in mine.vanished and not mine.problems
    (tmp_path / "main").write_text("m")
    mine.capture(files(tmp_path, "main"), now=4.0)
    assert not mine.vanished


def test_what_cannot_be_captured_is_a_problem_in_words_and_stops_no_other(mine: SessionCapture, tmp_path: Path) -> None:
    (tmp_path / "main").write_text("m")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "main")
    assert names(mine.capture(files(tmp_path, "main", "pipe", "link"), now=1.0)) == ["main"]
    assert [p.split(" is ")[0] for p in mine.problems] == [str(tmp_path / "pipe"), str(tmp_path / "link")]


def test_a_file_that_may_not_be_read_is_a_problem_and_is_not_taken_for_gone(
    mine: SessionCapture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be known must not delete what the log has."""
    for name in ("main", "a"):
        (tmp_path / name).write_text(name)
    assert names(mine.capture(files(tmp_path, "main", "a"), now=1.0)) == ["a", "main"]
    closed, real_open, real_lstat = str(tmp_path / "a"), os.open, Path.lstat

    def refuse(path: Any, *more: Any, **named: Any) -> int:
        if str(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, *more, **named)

    def unknown(path: Path) -> os.stat_result:
        if str(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_lstat(path)

    (tmp_path / "main").write_text("more")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        patch.setattr(Path, "lstat", unknown)
        assert names(mine.capture(files(tmp_path, "main", "a"), now=2.0)) == ["main"]
    assert [*mine.problems] == [f"{closed} is not saved: Permission denied."]
    assert mine.capture(files(tmp_path, "main", "a"), now=3.0) == [] and not mine.problems


def test_a_file_that_keeps_changing_under_the_reader_is_a_problem_until_it_rests(
    mine: SessionCapture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("main", "a"):
        (tmp_path / name).write_text(name)
    with monkeypatch.context() as patch:
        patch.setattr("wal_agent.capture.session._finish_read", lambda *_: None)
        assert mine.capture(files(tmp_path, "main", "a"), now=1.0) == []
    assert [p.split(" ")[0] for p in mine.problems] == [str(tmp_path / "a"), str(tmp_path / "main")]
    assert names(mine.capture(files(tmp_path, "main", "a"), now=2.0)) == ["a", "main"] and not mine.problems


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


# ---- a file that was deleted under its agent, which goes on in a new one without the beginning ---------------------


def begins(fd: int) -> bool:
    return os.pread(fd, 5, 0) == b"HEAD "


class Log:
    """The main file as the log has it, and the captures that go there."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.sent = path, b"", 0
        self.mine = SessionCapture("s1", put)

    def listed(self) -> list[SessionFile]:
        return [SessionFile("main", self.path, begins)]

    def take(self, verify: bool = False) -> list[FileDelta | FileGone]:
        found = self.mine.capture(self.listed(), now=1.0, verify=verify)
        for change in found:
            assert isinstance(change, FileDelta)
            new = bytearray(self.data)
            for edit in change.edits:
                assert edit.data.data is not None
                assert edit.offset <= len(new)
                new[edit.offset : edit.offset + edit.data.size] = edit.data.data
            self.data = bytes(new[: change.size])
            self.sent = sum(edit.data.size for edit in change.edits)
            assert (len(self.data), hashlib.sha256(self.data).hexdigest()) == (change.size, change.sha256)
        return found

    def add(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "main")


def test_what_is_begun_anew_goes_behind_what_was_captured(log: Log) -> None:
    log.add(b"HEAD one\n")
    log.take()
    log.path.unlink()
    log.add(b"two\n")
    log.take()
    assert (log.data, log.sent) == (b"HEAD one\ntwo\n", 4)
    log.add(b"three\n")
    log.take()
    assert (log.data, log.sent) == (b"HEAD one\ntwo\nthree\n", 6)
    assert log.take(verify=True) == []
    log.path.unlink()
    log.add(b"four, longer than what it stands for\n")
    log.take(verify=True)
    assert log.data == b"HEAD one\ntwo\nthree\nfour, longer than what it stands for\n"
    assert log.mine.problems == ()


def test_a_beginning_that_comes_again_is_the_file(log: Log) -> None:
    log.add(b"HEAD one\n")
    log.take()
    log.path.write_bytes(b"two\n")
    log.take()
    log.path.write_bytes(b"HEAD one and two\n")
    log.take()
    assert log.data == b"HEAD one and two\n"


def test_one_that_never_had_a_beginning_is_taken_as_it_is(log: Log) -> None:
    log.add(b"one\n")
    log.take()
    log.add(b"two\n")
    log.take()
    assert (log.data, log.sent) == (b"one\ntwo\n", 4)


@pytest.mark.parametrize("verify", [True, False])
def test_a_resumed_session_is_not_replaced_by_what_came_after_it(log: Log, verify: bool) -> None:
    log.add(b"HEAD one\n")
    (first,) = log.take()
    assert isinstance(first, FileDelta)
    log.mine = SessionCapture("s1", put)
    log.mine.resume_from(log.listed(), {"main": first})
    log.path.write_bytes(b"two\n")
    for _ in range(2):
        assert log.take(verify) == []
        assert len(log.mine.problems) == 1
        assert "keeps the session as it was captured last" in log.mine.problems[0]
    log.path.write_bytes(b"HEAD one\nmore\n")
    log.take(verify)
    assert (log.data, log.sent, log.mine.problems) == (b"HEAD one\nmore\n", 5, ())


def test_after_a_record_was_not_queued_what_goes_behind_is_sent_whole(log: Log) -> None:
    log.add(b"HEAD one\n")
    log.take()
    log.path.write_bytes(b"two\n")
    log.take()
    log.add(b"three\n")
    log.mine.capture(log.listed(), now=1.0)
    log.mine.forget()
    log.take()
    assert (log.data, log.sent) == (b"HEAD one\ntwo\nthree\n", 10)


def test_what_the_log_has_is_not_known_and_the_file_is_begun_anew(log: Log) -> None:
    log.add(b"HEAD one\n")
    log.take()
    log.mine.forget()
    log.path.write_bytes(b"two\n")
    assert log.take() == []
    assert len(log.mine.problems) == 1


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "anew", "same inode", "whole"]),
            st.sampled_from([1, 7, 5_000, 131_072, 300_001]),
            st.booleans(),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_every_history_of_deletions_is_told_exactly(steps: list[tuple[str, int, bool, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder, "main"))
        log.add(b"HEAD \n")
        log.take()
        lost = b""
        for n, (step, size, look, verify) in enumerate(steps):
            new = (b"%d." % n * size)[:size]
            if step in ("anew", "same inode"):
                lost = log.data
                if step == "anew":
                    log.path.unlink()
                    log.path.write_bytes(new)
                else:  # of the deleted one, as file systems like to give it out
                    os.truncate(log.path, 0)
                    log.add(new)
            elif step == "whole":
                lost = b""
                log.path.write_bytes(b"HEAD " + new)
            else:
                log.add(new)
            os.utime(log.path, ns=(n, n))
            if look or step in ("anew", "same inode"):
                log.take(verify)
                assert log.data == lost + log.path.read_bytes()
        log.take(verify=True)
        assert log.data == lost + log.path.read_bytes()
        assert log.mine.problems == ()


def test_a_file_that_another_one_with_the_same_end_replaced_is_read_anew(mine: SessionCapture, tmp_path: Path) -> None:
    """I4: grown and alike in its last bytes, but another file; nothing of the old one counts."""
    end, path = b"end" * TAIL, tmp_path / "main"
    path.write_bytes(b"old" + end)
    mine.capture(files(tmp_path, "main"), now=1.0)
    (tmp_path / "new").write_bytes(b"NEW" + end + b"more")
    (tmp_path / "new").replace(path)
    (found,) = mine.capture(files(tmp_path, "main"), now=2.0)
    assert isinstance(found, FileDelta) and found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_capture_keeps_no_file_open(mine: SessionCapture, tmp_path: Path) -> None:
    """A run saves for days."""
    for n in range(3):
        (tmp_path / "main").write_text(f"{n}" * (n + 1))
        mine.capture(files(tmp_path, "main"), now=float(n))
    assert str(tmp_path / "main") not in {os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()}

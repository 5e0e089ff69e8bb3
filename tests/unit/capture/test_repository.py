"""capture/repository.py: what is read of a user's repository, and its bounds. A script on PATH stands for git."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal_agent.capture import repository
from wal_agent.capture.git import Git
from wal_agent.capture.repository import (
    History,
    Location,
    operation_in_progress,
    progress_heads,
    read_progress_files,
)
from wal_agent.capture.shadow import Shadow

ONE, TWO = "1" * 40, "2" * 40


@pytest.mark.parametrize(
    ("names", "operation"),
    [
        ((), ""),
        (("ORIG_HEAD",), ""),
        (("MERGE_HEAD",), "merge"),
        (("MERGE_HEAD_", "xMERGE_HEAD"), "merge"),  # a name begins as a sign does
        (("CHERRY_PICK_HEAD",), "cherry-pick"),
        (("REVERT_HEAD",), "revert"),
        (("sequencer/todo",), "cherry-pick"),
        (("BISECT_LOG",), "bisect"),
        (("rebase-merge/onto",), "rebase"),
        (("rebase-apply/onto",), "rebase"),
        (("rebase-apply/applying",), "am"),
        (("MERGE_HEAD", "rebase-merge/onto"), "rebase"),
    ],
)
def test_what_is_in_progress_has_gits_word(names: tuple[str, ...], operation: str) -> None:
    assert operation_in_progress(names) == operation


def test_heads_of_an_operation_are_object_ids_and_nothing_else() -> None:
    files = {"MERGE_HEAD": f"{ONE}\n{TWO}\n".encode(), "REVERT_HEAD": b"\xff --all", "MERGE_MSG": ONE.encode()}
    assert progress_heads(files) == (ONE, TWO)
    assert progress_heads({"rebase-merge/onto": ONE.encode(), "rebase-merge/x": TWO.encode()}) == (ONE,)


def test_files_of_an_operation_are_read_as_far_as_the_bounds_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MERGE_HEAD", "MERGE_MSG", "sequencer/todo", "sequencer/bad\x07"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    whole = [("MERGE_HEAD", b"12345"), ("MERGE_MSG", b"12345"), ("sequencer/todo", b"12345")]
    assert [*read_progress_files(tmp_path)] == whole
    for bound, fits in (("MAX_PROGRESS_FILES", 3), ("MAX_PROGRESS_SIZE", 15)):
        with monkeypatch.context() as patch:
            patch.setattr(repository, bound, fits)
            assert [*read_progress_files(tmp_path)] == whole
            patch.setattr(repository, bound, fits - 1)
            assert [*read_progress_files(tmp_path)] == whole[:2]
    monkeypatch.setattr(repository, "MAX_PROGRESS_FILE", 4)
    assert [*read_progress_files(tmp_path)] == []


def test_an_index_is_copied_when_it_is_another_one_and_never_when_it_is_too_big(tmp_path: Path) -> None:
    source, target = tmp_path / "index", tmp_path / "copy"
    source.write_bytes(b"123")
    first = repository._copy_index(source, target, 3)
    assert first is not None and target.read_bytes() == b"123"
    times = source.stat()
    target.write_bytes(b"abc")
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert repository._copy_index(source, target, 3) == first and target.read_bytes() == b"abc", (
        "known by size and time"
    )
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert repository._copy_index(source, target, 3) not in (None, first) and target.read_bytes() == b"123"
    assert target.stat().st_mtime_ns == times.st_mtime_ns + 1
    assert repository._copy_index(source, target, 2) is None and not target.exists()
    target.write_bytes(b"old")
    source.unlink()
    assert repository._copy_index(source, target, 3) is None and not target.exists()


@pytest.fixture
def place(tmp_path: Path) -> Location:
    (tmp_path / ".git").mkdir()
    return Location(tmp_path, git_dir=tmp_path / ".git", common=tmp_path / ".git")


def history(tmp_path: Path, script: str) -> History:
    """With a git that writes its words down, one line for each, and does as the script says."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n{script}\n')
    program.chmod(0o755)
    (tmp_path / "shadow").mkdir()
    return History(Shadow(tmp_path / "shadow", Git({"PATH": f"{program.parent}:{os.environ['PATH']}"})))


WEIGHED = """case "$*" in
*--objects*) grep -q ^1 && { echo "aa x"; echo "bb y"; }; exit 0;;
*--batch-check*) echo 30; echo 12;;
*) echo "%s %s";;
esac"""


def test_what_was_weighed_once_is_not_weighed_again(
    tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = history(tmp_path, WEIGHED % (ONE, TWO))
    monkeypatch.setattr(repository, "MOST_HISTORY", 42)
    assert made.commits(place, ONE, (), (TWO,)) == ((ONE,), (ONE,), False)
    assert made.commits(place, ONE, (), (TWO,)) == ((ONE,), (ONE,), False)
    assert (list(made._weighed), made.weight) == ([ONE], 42)
    monkeypatch.setattr(repository, "MOST_HISTORY", 41)
    assert made._affordable(place, {ONE: (TWO,)}) == {}, "too much in all"


def test_a_job_without_commits_asks_nothing(tmp_path: Path, place: Location) -> None:
    made = history(tmp_path, "exit 1")
    assert made.commits(place, "", (), ()) == ((), (), False)
    assert not (tmp_path / "asked").exists()


def test_the_first_commit_is_searched_once_and_not_in_a_shallow_clone(tmp_path: Path, place: Location) -> None:
    made = history(tmp_path, f'case "$*" in *config*) exit 1;; *) echo {TWO}; echo {ONE};; esac')
    assert made.who(place, "") == ()
    assert made.who(place, ONE) == (f"root:{ONE}",)
    assert History(made._shadow).who(place, ONE) == (f"root:{ONE}",)
    assert (tmp_path / "asked").read_text().count("--max-parents=0") == 1
    (tmp_path / ".git" / "shallow").write_text(ONE)
    assert History(made._shadow).who(place, ONE) == ()

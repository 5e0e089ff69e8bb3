"""A machine is lost while its workspace was being saved in parts: what is there comes back, what is not is told, and
nothing here is taken for deleted (I4)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.unit.recovery.lab import Lab, Machine, files, git, repository, write
from wal_agent.capture import workspace as module
from wal_agent.capture.candidates import Caps
from wal_agent.recovery.report import describe_tree, tree_lines
from wal_agent.recovery.restore_tree import coverage_check

PART = 40_000


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(module, "LEAST_PART", PART)
    monkeypatch.setattr(module, "MAX_PART", PART)
    monkeypatch.setattr(module, "Caps", lambda: Caps(total=PART * module.MAX_PARTS))
    return Lab(tmp_path)


def fill(folder: Path) -> None:
    """Ten older files that do not fit one part, and one that was just written."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(10):
        (folder / f"old-{n}").write_bytes(random.Random(n).randbytes(20_000))
        os.utime(folder / f"old-{n}", (1000.0 + n, 1000.0 + n))
    write(folder, edited="x = 1\n")


def half_saved(lab: Lab) -> Machine:
    first = lab.machine("a")
    fill(first.work)
    first.capture()
    assert lab.captured.pending is not None
    return first


def test_an_empty_machine_gets_what_was_saved_and_is_told_what_was_not(lab: Lab) -> None:
    first, second = half_saved(lab), lab.machine("b")
    done = second.restore()
    here = files(second.work)
    assert here["edited"] == ("f", b"x = 1\n")
    assert len(here) == lab.captured.files < 11
    assert here.items() <= files(first.work).items()
    pending = lab.captured.pending
    assert pending is not None
    assert any("not saved" in line and f"{pending.files} files" in line for line in tree_lines(done))
    assert f"{pending.files} files" in describe_tree(done, False)


def test_files_that_waited_stay_as_they_are_in_another_folder(lab: Lab) -> None:
    first, second = half_saved(lab), lab.machine("b")
    fill(second.work)
    write(second.work, edited="older\n", mine="mine\n")
    second.restore()
    here = files(second.work)
    assert here.items() >= files(first.work).items()
    assert "mine" not in here  # the lost machine did not have it; what is replaced is kept elsewhere


def test_the_restored_folder_goes_on_being_saved(lab: Lab) -> None:
    half_saved(lab)
    second, third = lab.machine("b"), lab.machine("c")
    second.restore()
    write(second.work, later="y\n")
    while second.capture() is not None:
        pass
    assert lab.captured.pending is None
    third.restore()
    assert files(third.work) == files(second.work)


def test_the_folder_itself_stays_and_the_next_capture_goes_on(lab: Lab) -> None:
    first = half_saved(lab)
    before = files(first.work)
    again = lab.machine("a")
    assert again.decide().why == "newest"  # type: ignore[union-attr]
    while again.capture() is not None:
        pass
    assert lab.captured.pending is None
    assert files(first.work) == before


def test_evidence_rests_on_nothing_while_files_wait(lab: Lab) -> None:
    half_saved(lab)
    second = lab.machine("b")
    second.restore()
    covers = coverage_check(second.target.shadow(), second.work, lab.captured)
    assert not covers(str(second.work / "edited"))
    assert not covers(str(second.work / "old-0"))


def test_a_repository_without_its_history_yet(lab: Lab) -> None:
    """The commits were to follow the files: the clone here keeps its own, and an empty folder gets a new repository."""
    first = lab.machine("a")
    repository(first.work)
    fill(first.work)
    git(first.work, "add", "-A")
    git(first.work, "commit", "-qm", "big")
    write(first.work, edited="x = 2\n")
    first.capture()
    pending = lab.captured.pending
    assert pending is not None
    assert pending.repository
    second, third = lab.machine("b"), lab.machine("c")
    git(lab.root, "clone", "-q", str(first.work), str(second.work))
    second.restore()
    assert files(second.work) == files(first.work)
    assert git(second.work, "status", "--porcelain") == " M edited"
    done = third.restore()
    assert files(third.work)["edited"] == ("f", b"x = 2\n")
    assert "commits" in describe_tree(done, False)
    assert git(third.work, "rev-parse", "--is-inside-work-tree") == "true"

"""A capture and a restore of the working tree, ended with all their processes in front of any system call that changes
a file: the next one on the same machine works (I4)."""

from __future__ import annotations

import os
import pickle
import random
import sys
from pathlib import Path

import pytest

from tests.conftest import TESTS
from tests.faults.evidence.halt import Halter, places, points
from tests.unit.capture.trees import Elsewhere, Log, User, capture_of, on_disk
from tests.unit.recovery.lab import Lab, files, git, repository, write
from wal_agent.recovery.restore_target import PutBack

PLACES = 12  # of each program; WAL_AGENT_TEST_POINTS=0 tries every one


def program(name: str, root: Path) -> list[str]:
    return [sys.executable, "-B", "-c", f"from {__name__} import {name}; {name}({str(root)!r})"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS.parent)}


# ---- the programs that are ended


def capture(root: str) -> None:
    """The first capture of a workspace; what it sends is thrown away, as on a machine that is lost."""
    Log().must(capture_of(User(Path(root)), Path(root), log=Log()))
    (Path(root) / "done").touch()


def restore(root: str) -> None:
    lab = lab_in(Path(root))
    lab.machine("b").restore()
    (Path(root) / "done").touch()


def lab_in(root: Path) -> Lab:
    """What an earlier machine captured, read from the test's file."""
    stored, state, moment = pickle.loads((root / "lab").read_bytes())
    lab = Lab(root, state, moment)
    for key, data in stored.items():
        lab.bucket.put(key, data)
    return lab


# ---- the tests

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("repo", ["git", "plain"])
def test_after_a_kill_in_the_first_capture_the_next_one_is_whole(repo: str, halter: Halter, tmp_path: Path) -> None:
    def ready(name: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        user = User(root)
        if repo == "git":
            user.init()
            user.write("a")
            user.commit()
        user.write("sub/b", b"new\n")
        return root

    whole = ready("whole")
    stops = halter.run(program("capture", whole), tmp_path, env=environment())
    assert (whole / "done").exists()
    for place in places(stops, points(PLACES), random.Random(8)):
        root = ready(str(place))
        halter.run(program("capture", root), tmp_path, place, env=environment())
        user, log = User(root), Log()
        record = log.must(capture_of(user, root, log=log))
        assert record.whole, place
        assert Elsewhere(log, root).files() == on_disk(user.top), place


@pytest.mark.parametrize("there", ["an empty machine", "a clone with changes"])
def test_after_a_kill_in_a_restore_the_next_start_puts_the_tree_back(
    there: str, halter: Halter, tmp_path: Path
) -> None:
    """The defect: killed inside `git init`, the folder had a HEAD and was no repository, and no later start could look
    at it, capture it or restore into it."""
    first = Lab(tmp_path / "first")
    machine = first.machine("a")
    repository(machine.work)
    write(machine.work, a="changed\n", new="new\n")
    machine.capture()
    stored = {entry.key: first.bucket.get(entry.key).data for entry in first.bucket.list("")}

    def ready(name: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        (root / "lab").write_bytes(pickle.dumps((stored, first.state, first.moment)))
        if there != "an empty machine":
            git(tmp_path, "clone", "-q", str(machine.work), str(root / "b" / "work"))
            write(root / "b" / "work", a="mine\n", mine="mine\n")
        return root

    whole = ready("whole")
    stops = halter.run(program("restore", whole), tmp_path, env=environment())
    assert (whole / "done").exists()
    for place in places(stops, points(PLACES), random.Random(8)):
        root = ready(str(place))
        halter.run(program("restore", root), tmp_path, place, env=environment())
        again = lab_in(root)
        second = again.machine("b")
        if isinstance(second.decide(), PutBack):
            second.restore()
        assert files(second.work) == files(machine.work), place
        git(second.work, "fsck")
        if there != "an empty machine":
            kept = sorted((root / "b" / "state").glob("workspaces/*-kept/*"))
            assert any(git(folder, "show", "local:work/mine", ok=False) == "mine" for folder in kept), place
        write(second.work, later="later\n")
        assert second.capture() is not None, place

"""SIGKILL in the middle of putting a working tree back: the next start does it again and loses nothing."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TESTS
from tests.unit.recovery.lab import Lab, Machine, files, git, raw, repository, write
from wal_agent import failpoints
from wal_agent.capture.git import Git
from wal_agent.recovery import rebuild_git, restore_workspace
from wal_agent.recovery.restore_target import PutBack


def killed(machine: Machine, moment: str) -> None:
    """Restore in a process of its own, which dies at that moment. No fork: it would copy locks that other threads
    hold."""
    lab = machine.lab
    stored = {entry.key: lab.bucket.get(entry.key).data for entry in lab.bucket.list("")}
    order = (moment, stored, (lab.root, lab.state, lab.moment), (machine.state_dir, machine.work))
    command = [sys.executable, "-c", f"from {__name__} import restore; restore()"]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run(command, input=pickle.dumps(order), env=env, check=False)
    assert done.returncode == -signal.SIGKILL


def restore() -> None:
    moment, stored, of_lab, of_machine = pickle.load(sys.stdin.buffer)
    lab = Lab(*of_lab)
    for key, data in stored.items():
        lab.bucket.put(key, data)
    MOMENTS[moment]()
    Machine(lab, *of_machine).restore()


def at(name: str) -> Callable[[], None]:
    def arm() -> None:
        failpoints._wanted, failpoints._left = name, 1

    return arm


def while_git(*words: str) -> Callable[[], None]:
    """As soon as this git runs; it lives on for its moment."""

    def arm() -> None:
        start = Git._start

        def starting(self: Git, argv: list[str], *more: Any) -> subprocess.Popen[bytes]:
            process = start(self, argv, *more)
            if all(word in argv for word in words):
                os.kill(os.getpid(), signal.SIGKILL)
            return process

        Git._start = starting  # type: ignore[method-assign, assignment]

    return arm


def before_the_repository_stands() -> None:
    def die(folder: Path) -> None:
        if (folder / rebuild_git.BUILT).exists():
            os.kill(os.getpid(), signal.SIGKILL)

    rebuild_git.remove_half_built = restore_workspace.remove_half_built = die  # type: ignore[attr-defined]


MOMENTS = {
    "before the tree": at("restore.before_tree"),
    "after the tree": at("restore.after_tree"),
    "while packs are read": while_git("index-pack"),
    "while files are written": while_git("read-tree", "-m", "-u"),
    "while it is looked at": while_git("diff-files"),
    "while the repository is made": while_git("pack-objects"),
    "before the repository is moved": before_the_repository_stands,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_on_an_empty_machine(tmp_path: Path, moment: str) -> None:
    lab = Lab(tmp_path)
    first, second = lab.machine("a"), lab.machine("b")
    repository(first.work)
    write(first.work, a="changed\n", **{f"file-{n}": f"{n}\n" for n in range(200)})
    first.capture()
    killed(second, moment)
    assert isinstance(second.decide(), PutBack), "it is not taken for done"
    second.restore()
    assert files(second.work) == files(first.work)
    assert git(second.work, "status", "--porcelain") == git(first.work, "status", "--porcelain")
    git(second.work, "fsck")


@pytest.mark.parametrize("moment", [m for m in MOMENTS if "repository is" not in m])
def test_in_a_clone_with_changes_of_its_own(tmp_path: Path, moment: str) -> None:
    lab = Lab(tmp_path)
    first, second = lab.machine("a"), lab.machine("b")
    origin = repository(tmp_path / "origin")
    for machine in (first, second):
        git(tmp_path, "clone", "-q", str(origin), str(machine.work))
    write(first.work, a="changed\n", **{f"file-{n}": f"{n}\n" for n in range(200)})
    first.capture()
    write(second.work, a="mine\n", mine="mine\n")
    before = raw(second.work / ".git")
    killed(second, moment)
    second.restore()
    assert files(second.work) == files(first.work)
    assert raw(second.work / ".git") == before
    kept = sorted(second.state_dir.glob("workspaces/*-kept/*"))
    assert any(git(folder, "show", "local:work/mine", ok=False) == "mine" for folder in kept)
    assert any(git(folder, "show", "local:work/a", ok=False) == "mine" for folder in kept)

"""A restore of the working tree that is cut, disturbed, or over another folder than it looks: nobody's work is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.recovery.lab import Lab, Machine, files, git, repository, write
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.errors import ConfigError
from wal_agent.recovery import workspace, worktree
from wal_agent.recovery.begun import want
from wal_agent.recovery.kept import KEEP, YOUNG
from wal_agent.recovery.workspace import Done, Keep, PutBack, Target


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def clones(lab: Lab, **captured: str) -> tuple[Machine, Machine]:
    """A machine whose tree is captured, and a clone of the same project."""
    first, second = lab.machine("a"), lab.machine("b")
    origin = repository(lab.root / "origin")
    for machine in (first, second):
        git(lab.root, "clone", "-q", str(origin), str(machine.work))
    write(first.work, **captured)
    first.capture()
    return first, second


def around(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    """Do this between the save of what is here and its replacement."""
    real = worktree.make_equal

    def make_equal(*words: Any) -> None:
        before()
        real(*words)

    monkeypatch.setattr(workspace, "make_equal", make_equal)


def got_back(lab: Lab, done: Done) -> dict[str, dict[str, object]]:
    """What the told command writes, by folder."""
    assert done.kept is not None
    out = Path(lab.root / f"out-{lab.moment}")
    out.mkdir()
    subprocess.run(["bash", "-ec", done.kept.get_files], cwd=out, check=True, capture_output=True)
    return {folder.name: {name: what[1] for name, what in files(folder).items()} for folder in out.iterdir()}


def kept(machine: Machine) -> list[Path]:
    return sorted(machine.state_dir.glob("workspaces/*-kept/*"))


# ---- cut, and done again ---------------------------------------------------------------------------------------------


def test_what_was_here_before_the_first_try_is_told_after_the_last(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = clones(lab, w="0\n", v="0\n")
    write(second.work, mine="mine\n")

    def fails() -> None:
        (second.work / "mine").unlink(missing_ok=True)
        write(second.work, v="0\n")
        raise ConfigError("the disk is full")

    with monkeypatch.context() as patch:
        around(patch, fails)
        for _ in range(KEEP + 2):
            lab.moment += 2
            with pytest.raises(ConfigError):
                second.restore()
    lab.moment += 2
    done = second.restore()
    assert done.files_kept and got_back(lab, done).keys() == {"before"}
    assert got_back_mine(lab, done) and len(kept(second)) == 1


def got_back_mine(lab: Lab, done: Done) -> bool:
    lab.moment += 1
    return got_back(lab, done)["before"]["mine"] == b"mine\n"


def test_work_between_two_tries_is_kept_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = clones(lab, w="0\n")
    write(second.work, mine="mine\n")

    def fails() -> None:
        (second.work / "mine").unlink()
        raise ConfigError("the disk is full")

    with monkeypatch.context() as patch:
        around(patch, fails)
        with pytest.raises(ConfigError):
            second.restore()
    write(second.work, a="changed since\n")
    found = got_back(lab, second.restore())
    assert found["before"]["mine"] == b"mine\n" and found["before-2"]["a"] == b"changed since\n"


def test_what_is_young_is_never_dropped(lab: Lab) -> None:
    first, second = clones(lab, w="0\n")
    for n in range(KEEP + 3):
        write(second.work, mine=f"{n}\n")
        second.restore()
        write(first.work, w=f"{n + 1}\n")
        first._capture = None
        first.capture()
    assert len(kept(second)) == KEEP + 3
    lab.moment += 2 * YOUNG
    write(second.work, mine="last\n")
    second.restore()
    assert len(kept(second)) == KEEP


# ---- something changes meanwhile -------------------------------------------------------------------------------------


def test_what_is_written_meanwhile_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = clones(lab, a="captured\n", newf="captured\n")
    write(second.work, b="local\n")
    once = iter([True])

    def typed() -> None:
        if next(once, False):
            write(second.work, a="typed meanwhile\n", newf="made meanwhile\n")

    around(monkeypatch, typed)
    done = second.restore()
    assert files(second.work) == files(first.work)
    found = got_back(lab, done)
    assert found["before"]["b"] == b"local\n"
    assert (found["before-2"]["a"], found["before-2"]["newf"]) == (b"typed meanwhile\n", b"made meanwhile\n")


def test_a_new_file_alone_is_seen_by_git_itself(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = clones(lab, newf="captured\n")
    once = iter([True])
    around(monkeypatch, lambda: write(second.work, newf="made meanwhile\n") if next(once, False) else None)
    assert got_back(lab, second.restore())["before"]["newf"] == b"made meanwhile\n"
    assert files(second.work) == files(first.work)


def test_a_folder_that_never_rests_is_left_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = clones(lab, a="captured\n")
    n = iter(range(99))
    around(monkeypatch, lambda: write(second.work, a=f"typed {next(n)}\n"))
    with pytest.raises(ConfigError, match="change while"):
        second.restore()
    assert (second.work / "a").read_text() == f"typed {workspace.TRIES - 1}\n"


# ---- which folder it is ----------------------------------------------------------------------------------------------


def test_a_new_clone_under_the_old_name_is_another_folder(lab: Lab) -> None:
    first, _ = clones(lab, a="the agent's work\n")
    shutil.rmtree(first.work)
    git(lab.root, "clone", "-q", str(lab.root / "origin"), str(first.work))
    first._capture = None
    assert isinstance(first.decide(), PutBack)
    first.restore()
    assert (first.work / "a").read_text() == "the agent's work\n"


@pytest.mark.parametrize("made", [True, False])
def test_a_fork_is_put_back_for_its_own_job_only(lab: Lab, made: bool) -> None:
    """Also where this machine never saw the folder: the mark on it is of the source's captures."""
    first, _ = clones(lab, a="1\n")
    here = first if made else lab.machine("new", first.work)
    fork = replace(here.target, job="fork")
    want(fork.shadow(), "fork", lab.captured.commit)

    def decide(target: Target) -> Keep | PutBack:
        return workspace.what_to_do(lab.captured, workspace.look(target, lab.captured))

    assert isinstance(decide(fork), PutBack) and decide(here.target) == Keep("newest")
    workspace.put_back(fork, lab.captured, lab.blobs, PutBack(False), lab.moment)
    assert decide(fork) == Keep("newest")


def test_an_empty_folder_in_somebody_elses_repository_gets_its_own(lab: Lab) -> None:
    """A home folder may be a repository of dotfiles."""
    first, _ = clones(lab, a="1\n")
    repository(lab.root / "home")
    second = lab.machine("b2", lab.root / "home" / "proj")
    second.work.mkdir()
    assert second.decide() == PutBack(make_repository=True)
    done = second.restore()
    assert files(second.work) == files(first.work) and done.repository is None
    assert git(second.work, "rev-parse", "HEAD") == git(first.work, "rev-parse", "HEAD")
    inside = lab.machine("c", lab.root / "home" / "sub")
    assert inside.decide() == PutBack(make_repository=False), "that folder is the other repository's"


def test_a_git_file_that_leads_nowhere_stays(lab: Lab) -> None:
    first, _ = clones(lab, a="1\n")
    second = lab.machine("c")
    write(second.work, **{".git": "gitdir: /nowhere/at/all\n", "b": "mine\n"})
    assert second.decide() == PutBack(make_repository=False)
    second.restore()
    assert files(second.work) == files(first.work)
    assert (second.work / ".git").read_text() == "gitdir: /nowhere/at/all\n"


# ---- what a capture could not hold -----------------------------------------------------------------------------------


def test_what_was_left_out_stays_as_it_is_here(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = clones(lab, a="1\n")
    (first.work / "gone").unlink()
    first.capture()
    write(second.work, model="big\n", data__x="big\n", other="mine\n")
    real = Shadow.contents

    def contents(shadow: Shadow, commit: str, *more: Path) -> Contents:
        found = real(shadow, commit, *more)
        out = (b"model", b"data", b"sub", b"a")
        return replace(found, state=msgspec.structs.replace(found.state, left_out=out))

    monkeypatch.setattr(Shadow, "contents", contents)
    done = second.restore()
    after = files(second.work)
    stays = {name: after.pop(name)[1] for name in ("model", "data/x")}
    assert stays == {"model": b"big\n", "data/x": b"big\n"}
    assert after == files(first.work), "what is in the tree is put back all the same"
    assert done.changes.gone == 2

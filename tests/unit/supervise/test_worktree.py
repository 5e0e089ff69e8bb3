"""What a start finds out about the working tree before its plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.recovery.cases import HOST, OTHER, opening, with_home
from tests.unit.recovery.lab import Lab, Machine, git, repository, write
from wal_agent.agents import AGENTS
from wal_agent.config import Settings
from wal_agent.recovery.plan import is_other_project
from wal_agent.recovery.report import tree_lines
from wal_agent.recovery.restore_target import Keep, PutBack
from wal_agent.supervise.recovery_input import Situation
from wal_agent.supervise.worktree import WorktreePlan, identity_here, plan_worktree


def seen(lab: Lab, machine: Machine, settings: Settings | None = None, epoch: int = 2) -> WorktreePlan:
    env = {**machine.target.env, "XDG_STATE_HOME": str(machine.state_dir.parent / "xdg")}
    at = Situation(opening(epoch, "dead", OTHER), with_home(lab.state, opening(1, host=HOST)), None, {})
    return plan_worktree(
        at, OTHER, machine.target.folder, settings or Settings("file:///b", "job"), AGENTS["gemini"], env
    )


def test_the_repository_here_is_looked_at_before_a_foreign_tree_is_put_into_it(tmp_path: Path) -> None:
    """Read-only: neither the workspace nor the state folder has anything new."""
    lab = Lab(tmp_path)
    first, same, other = (lab.machine(name) for name in ("first", "same", "other"))
    repository(first.work)
    git(tmp_path, "clone", "-q", str(first.work), str(same.work))
    repository(other.work)
    write(other.work, a="another\n")
    git(
        other.work,
        "commit",
        "-q",
        "--amend",
        "-am",
        "else",
        "--date=2001-01-01T00:00:00",
        GIT_COMMITTER_DATE="2001-01-01T00:00:00",
    )
    git(other.work, "checkout", "-q", "--orphan", "apart")
    git(other.work, "commit", "-qm", "apart")
    first.capture()
    assert lab.captured.repository is not None
    theirs = lab.captured.repository.identity
    for machine, is_foreign in ((same, False), (other, True)):
        before = sorted(tmp_path.rglob("*"))
        found = seen(lab, machine)
        assert found.decided == PutBack(make_repository=False) and found.identity == identity_here(machine.target)
        assert is_other_project(theirs, found.identity) is is_foreign
        assert sorted(tmp_path.rglob("*")) == before


def test_it_is_plain_data_too(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    first, second = lab.machine("first"), lab.machine("second")
    repository(first.work)
    first.capture()
    second.work.mkdir(parents=True)
    plan = seen(lab, second).plan
    assert (plan.action, plan.files, plan.makes_repository, plan.keeps_what_is_here) == ("put_back", 4, True, False)
    assert "the saved one would be put back: 4 files" in plan.rows()[0]


def test_files_that_no_commit_has_are_named_before_they_are_replaced(tmp_path: Path) -> None:
    """Changes nothing, neither in the folder nor in the state."""
    lab = Lab(tmp_path)
    first, second = lab.machine("first"), lab.machine("second")
    repository(first.work)
    git(tmp_path, "clone", "-q", str(first.work), str(second.work))
    write(first.work, a="by the agent\n")
    first.capture()
    assert seen(lab, second).foresee(lab.blobs, lab.moment).uncommitted == (), "a commit has all of them"
    write(second.work, a="mine\n", new="mine too\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    foreseen = seen(lab, second).foresee(lab.blobs, lab.moment)
    assert foreseen.uncommitted == ("a", "new")
    assert any("2 files (a, new)" in line for line in foreseen.rows())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    write(second.work, a="by the agent\n")
    assert seen(lab, second).foresee(lab.blobs, lab.moment).uncommitted == ("new",), "the restore has the same"


def test_where_captures_are_off_nothing_is_put_back(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    first, second = lab.machine("first"), lab.machine("second")
    write(first.work, a="a\n")
    first.capture()
    off = Settings("file:///b", "job", workspace="off")
    assert seen(lab, second, off).decided == Keep("not_saved")


def test_an_earlier_start_that_put_it_back_is_known_until_an_agent_ran(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    first, second = lab.machine("first"), lab.machine("second")
    write(first.work, a="a\n")
    first.capture()
    found = seen(lab, second, epoch=2)
    done = found.carry_out(lab.blobs, lab.moment, print)
    assert done.put_back and found.covers(done)(str(second.target.folder / "a"))
    again = seen(lab, second, epoch=3)
    assert (
        again.decided == Keep("newest") and again.before and again.covers(again.then)(str(second.target.folder / "a"))
    )
    assert again.effects(again.then).note(99).startswith("completed on the lost host")
    at = Situation(opening(4, "dead", OTHER), with_home(lab.state, opening(3, host=OTHER)), None, {})
    env = {**second.target.env, "XDG_STATE_HOME": str(second.state_dir.parent / "xdg")}
    ran = plan_worktree(at, OTHER, second.target.folder, Settings("file:///b", "job"), AGENTS["gemini"], env)
    assert (
        ran.decided == Keep("newest") and not ran.before and not ran.covers(ran.then)(str(second.target.folder / "a"))
    )


@pytest.mark.parametrize("up", [0, 1, 9])
def test_nothing_is_put_back_into_a_home_folder_or_above_it(tmp_path: Path, up: int) -> None:
    lab = Lab(tmp_path)
    first = lab.machine("first")
    write(first.work, a="a\n")
    first.capture()
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    folder = (home, *home.parents)[min(up, len(home.parents))]
    env = {**first.target.env, "HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "xdg")}
    at = Situation(opening(2, "dead", OTHER), with_home(lab.state, opening(1, host=HOST)), None, {})
    found = plan_worktree(at, OTHER, folder, Settings("file:///b", "job"), AGENTS["gemini"], env)
    assert found.decided == Keep("home") and not found.carry_out(lab.blobs, lab.moment, print).put_back
    for lines in (found.plan.rows(), tree_lines(found.then)):
        assert len(lines) == 1 and "nothing is put back here" in lines[0]
    below = plan_worktree(at, OTHER, home / "proj", Settings("file:///b", "job"), AGENTS["gemini"], env)
    assert isinstance(below.decided, PutBack)

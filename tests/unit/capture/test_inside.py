"""Repositories inside a workspace in which nothing changed cost no process of git, and no record."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.recovery.lab import NOW, git, repository, write
from wal_agent.capture import glance, workspace
from wal_agent.capture.candidates import BROUGHT_IN, OUTSIDE
from wal_agent.capture.inside import TreeCapture
from wal_agent.capture.repository import Location
from wal_agent.records import Payload, Workspace


class Desk:
    """A repository with a clone and a linked worktree in it."""

    def __init__(self, folder: Path, outside: bool = False) -> None:
        self.home, self.top = folder / "home", repository(folder / "work")
        repository(self.top / "clone")
        git(self.top, "worktree", "add", "-q", "-b", "side", "linked")
        for name in ("clone", "linked"):
            write(self.top / name, loose="loose\n", dirty="dirty\n")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        self.capture = TreeCapture(folder / "state", self.top.resolve(), env, put, outside=lambda _: outside)
        self._moment = NOW

    def look(self, holds: int = 0) -> dict[str, Workspace]:
        """One capture: its records by folder."""
        self._moment += 1
        records = self.capture.capture(holds, self._moment)
        self.capture.commit()
        return {record.folder: record for record in records}

    def rest(self) -> None:
        """Until nothing is new, and that is known."""
        while self.look():
            pass


def put(data: bytes) -> Payload:
    return Payload(size=len(data), data=data)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(glance, "JUST_NOW", 0.0)  # what changed between two looks has another time by now
    made = Desk(tmp_path)
    made.rest()
    return made


def processes(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]) -> int:
    begun: list[object] = []
    real = subprocess.Popen.__init__

    def init(self: subprocess.Popen[bytes], *args: object, **options: object) -> None:
        begun.append(args)
        real(self, *args, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", init)
        ask()
    return len(begun)


def test_where_nothing_changed_no_git_looks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes(monkeypatch, desk.look) == 5  # of the workspace around


def test_a_glance_takes_so_many_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "JUST_NOW", 0.0)
    (tmp_path / "file").touch()
    seen = []
    for most in (1, 2):  # the folder is one
        monkeypatch.setattr(glance, "MAX_GLANCED", most)
        seen.append(glance.glance_at(Location(tmp_path)) is not None)
    assert seen == [False, True]


def test_what_is_too_big_for_a_glance_or_changed_just_now_is_git_s_to_tell(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(glance, "JUST_NOW", 3600.0)
        assert processes(monkeypatch, desk.look) == 15
    desk.rest()
    monkeypatch.setattr(glance, "MAX_GLANCED", 10)
    assert [processes(monkeypatch, desk.look) for _ in range(2)] == [15, 15]


def test_a_call_that_changed_nothing_inside_costs_one_record(desk: Desk) -> None:
    """I9: the workspace's says which calls all of them hold."""
    assert {folder: record.inside for folder, record in desk.look(holds=1).items()} == {"": ("clone", "linked")}
    write(desk.top / "clone", dirty="other\n")
    assert {folder: record.holds for folder, record in desk.look(holds=2).items()} == {"clone": 2, "": 2}


def same_times(top: Path) -> None:
    """As an editor, or `cp -p`, may leave them; the length is the same too."""
    file = top / "dirty"
    before = file.stat()
    file.write_text("DIRTY\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def merge(top: Path) -> None:
    git(top, "branch", "other", "HEAD~1")
    git(top, "checkout", "-q", "other")
    write(top, c="c\n")
    git(top, "add", "c")
    git(top, "commit", "-qm", "c")
    git(top, "merge", "-q", "--no-commit", git(top, "rev-parse", "@{-1}"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "same times": same_times,
    "mode": lambda top: (top / "loose").chmod(0o755),
    "new": lambda top: write(top, new__deep="new\n"),
    "gone": lambda top: (top / "loose").unlink(),
    "staged": lambda top: git(top, "add", "dirty"),
    "moved": lambda top: git(top, "update-ref", "HEAD", "HEAD~1"),
    "detached": lambda top: git(top, "checkout", "-q", "--detach"),
    "stash": lambda top: git(top, "stash", "-q", "-u"),
    "merge": merge,
    "origin": lambda top: git(top, "remote", "add", "origin", "https://example.com/x"),
    "excluded": lambda top: ignore(top / git(top, "rev-parse", "--git-path", "info/exclude")),
    "ignored": lambda top: ignore(top / ".gitignore"),
    "by the person": lambda top: ignore(top.parents[1] / "home/.config/git/ignore"),
}


def ignore(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("loose\n")


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_inside_is_found(desk: Desk, change: str) -> None:
    """I4."""
    for name in ("clone", "linked"):
        CHANGES[change](desk.top / name)
    assert {*desk.look()} >= {"clone", "linked"}


def test_what_is_inside_one_inside_is_named_also_where_nothing_changed(desk: Desk) -> None:
    repository(desk.top / "clone/deep")
    desk.rest()
    assert desk.look(holds=1)[""].inside == ("clone", "clone/deep", "linked")


def test_while_the_log_takes_nothing_what_is_inside_waits_until_time_is_short(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(desk.top / "clone", dirty="other\n")
    monkeypatch.setattr(workspace, "MAX_MARKS", 1)
    assert "clone" not in desk.look() and desk.capture.lags
    desk.capture.in_small_parts()
    assert "clone" in desk.look()


def test_so_many_inside_and_no_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    monkeypatch.setattr("wal_agent.capture.inside.MAX_INSIDE", 2)
    repository(desk.top / "third")
    assert desk.look(holds=1)[""].inside == ("clone", "linked")


def test_one_whose_name_no_record_can_have_is_left_out(desk: Desk) -> None:
    """Else no segment could be written, and nothing more would be saved."""
    repository(desk.top / os.fsdecode(b"caf\xe9"))
    assert desk.look(holds=1)[""].inside == ("clone", "linked")


def test_one_that_is_none_any_more_is_not_named(desk: Desk) -> None:
    (desk.top / "linked/.git").unlink()
    assert desk.look()[""].inside == ("clone",)


def test_a_worktree_outside_is_saved_or_named(tmp_path: Path) -> None:
    desk = Desk(tmp_path, outside=True)
    for name in ("saved", "gone"):
        git(desk.top, "worktree", "add", "-q", "-b", name, str(tmp_path / name))
    (tmp_path / "gone/.git").unlink()
    made = desk.look()
    assert sorted(made) == ["", f"{BROUGHT_IN}/saved", "clone", "linked"]
    assert [name for name in made[""].left_out if "worktree" in name] == [f"../gone: {OUTSIDE}"]


def claim(desk: Desk, folder: Path) -> None:
    """The repository names `folder` as a linked worktree of its own; no git has made one there."""
    part = desk.top / ".git/worktrees/claimed"
    part.mkdir(parents=True)
    (part / "gitdir").write_text(f"{folder}/.git\n")


def test_another_repository_outside_that_this_one_claims_is_named_and_not_saved(tmp_path: Path) -> None:
    """I10: a stranger's archive must not bring this person's other work into the bucket."""
    desk = Desk(tmp_path, outside=True)
    claim(desk, repository(tmp_path / "other"))
    made = desk.look()
    assert sorted(made) == ["", "clone", "linked"]
    assert [name for name in made[""].left_out if "other" in name] == [f"../other: {OUTSIDE}"]


@pytest.mark.parametrize("claimed", ["work", "state/mine"], ids=["the workspace", "state folder"])
def test_a_worktree_is_never_the_workspace_itself_or_a_folder_of_ours(tmp_path: Path, claimed: str) -> None:
    desk = Desk(tmp_path, outside=True)
    claim(desk, tmp_path / claimed)
    made = desk.look()
    assert sorted(made) == ["", "clone", "linked"]
    assert not [name for name in made[""].left_out if OUTSIDE in name]

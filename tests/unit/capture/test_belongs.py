"""Which repositories inside a workspace, and beside it, are its own (I10: a stranger's archive gets nothing saved)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.recovery.lab import git, repository
from wal_agent.capture.belongs import is_linked, is_own
from wal_agent.capture.git import Git
from wal_agent.capture.repository import Location, find_location

GIT = Git({"PATH": os.environ["PATH"], "HOME": "/nonexistent"})


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return repository(tmp_path.resolve() / "work")


def locate(folder: Path) -> Location:
    return find_location(GIT, folder)


def test_a_worktree_is_linked_as_both_say(top: Path) -> None:
    beside = top.parent / "beside"
    git(top, "worktree", "add", "-q", "-b", "side", str(beside))
    around = locate(top)
    assert is_linked(locate(beside), around)
    assert not is_linked(locate(beside), Location(top)), "no repository is around"
    assert not is_linked(around, around) and not is_linked(Location(beside), around)
    copy = top.parent / "copy"
    shutil.copytree(beside, copy)  # it names the worktree's part, which names another folder
    assert not is_linked(locate(copy), around)


def test_a_repository_is_its_folder_s_own(top: Path) -> None:
    inside = repository(top / "inside")
    around = locate(top)
    assert is_own(locate(inside), top, around)
    (inside / ".git/own").symlink_to(inside / ".git/config")
    assert is_own(locate(inside), top, around)
    (inside / ".git/other").symlink_to(top.parent)
    assert not is_own(locate(inside), top, around)


def test_a_repository_elsewhere_is_nobody_s_here(top: Path) -> None:
    elsewhere, around = repository(top.parent / "elsewhere"), locate(top)
    for name, named in (("away", elsewhere / ".git"), ("home", top / ".git")):
        (top / name).mkdir()
        (top / name / ".git").write_text(f"gitdir: {named}\n")
        assert not is_own(locate(top / name), top, around), name
    assert is_own(Location(top / "plain"), top, around), "of no repository nothing leads elsewhere"


def test_a_worktree_inside_is_its_folder_s_own_as_both_say(top: Path) -> None:
    elsewhere, around = repository(top.parent / "elsewhere"), locate(top)
    git(elsewhere, "worktree", "add", "-q", "-b", "side", str(top / "tree"))
    assert is_own(locate(top / "tree"), top, around)
    shutil.copytree(top / "tree", top / "copy")  # the worktree's part names another folder
    assert not is_own(locate(top / "copy"), top, around)


def test_where_either_has_no_repository_nothing_is_linked(top: Path) -> None:
    beside = top.parent / "beside"
    git(top, "worktree", "add", "-q", "-b", "side", str(beside))
    place, around = locate(beside), locate(top)
    for lacking in (replace(place, git_dir=None), replace(place, common=None), replace(place, prefix="below")):
        assert not is_linked(lacking, around)
    assert not is_linked(place, replace(around, common=None))

"""Repositories inside a workspace (linked worktrees, submodules, clones): each is saved and put back as the workspace
is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.unit.recovery.lab import NOW, Lab, Machine, files, git, repository, write
from wal_agent.capture.candidates import BROUGHT_IN, NESTED, OUTSIDE
from wal_agent.capture.inside import MAX_INSIDE
from wal_agent.errors import ConfigError
from wal_agent.recovery.report import describe_tree, tree_lines
from wal_agent.recovery.restore_target import PutBack
from wal_agent.recovery.restore_workspace import restore_files


def linked(top: Path, name: str = ".claude/worktrees/side", branch: str = "side") -> Path:
    """A worktree as an agent's subagent makes it: ignored, with a commit, staged and unstaged work of its own."""
    (top / ".git" / "info" / "exclude").write_text(".claude/\n")
    git(top, "worktree", "add", "-q", "-b", branch, name)
    made = top / name
    write(made, new="new\n")
    git(made, "add", "new")
    git(made, "commit", "-qm", branch)
    write(made, a="staged\n", dirty="dirty\n")
    git(made, "add", "a")
    return made


def state_of(folder: Path) -> tuple[object, ...]:
    """What a person sees of a repository."""
    return (
        files(folder),
        git(folder, "status", "--porcelain", "--branch", "--ignore-submodules=all"),
        git(folder, "log", "--format=%H %s"),
        git(folder, "diff", "--cached"),
    )


def lose(lab: Lab) -> tuple[Machine, Machine]:
    a = lab.machine("a")
    repository(a.work)
    return a, lab.machine("b")


def test_a_linked_worktree_comes_back_as_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a, b = lose(lab)
    made = linked(a.work)
    a.capture()
    done = b.restore()
    assert [(each.folder, each.why) for each in done.inside] == [(".claude/worktrees/side", "")]
    back = b.work / ".claude/worktrees/side"
    assert state_of(back) == state_of(made)
    assert git(b.work, "worktree", "list", "--porcelain").count("branch refs/heads/side") == 1
    assert (back / ".git").is_file()
    git(b.work, "fsck", "--strict")
    git(back, "commit", "-qm", "goes on")
    assert git(b.work, "rev-parse", "side") == git(back, "rev-parse", "HEAD")


def test_the_commits_of_other_branches_are_the_main_worktrees_to_send(tmp_path: Path) -> None:
    """I9: a linked worktree has all branches of its repository."""
    lab = Lab(tmp_path)
    a, _ = lose(lab)
    git(a.work, "checkout", "-qb", "other")
    (a.work / "big").write_bytes(os.urandom(200_000))
    git(a.work, "add", "big")
    git(a.work, "commit", "-qm", "other")
    git(a.work, "checkout", "-q", "main")
    linked(a.work)
    a.capture()
    assert sum(pack.size for pack in lab.captured.packs) > 200_000
    assert sum(pack.size for pack in lab.state.inside[".claude/worktrees/side"].packs) < 20_000


def test_a_linked_worktree_comes_back_into_a_clone_that_lacks_its_commit(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a, b = lose(lab)
    git(tmp_path, "clone", "-q", str(a.work), str(b.work))
    made = linked(a.work)
    a.capture()
    before = git(b.work, "for-each-ref")
    b.restore()
    back = b.work / ".claude/worktrees/side"
    assert state_of(back) == state_of(made)
    head = git(made, "rev-parse", "HEAD")
    assert set(git(b.work, "for-each-ref").split("\n")) == {*before.split("\n"), f"{head} commit\trefs/heads/side"}


@pytest.mark.parametrize("theirs", ["another commit", "checked out"])
def test_a_branch_of_that_name_is_left_as_it_is(tmp_path: Path, theirs: str) -> None:
    lab = Lab(tmp_path)
    a, b = lose(lab)
    git(tmp_path, "clone", "-q", str(a.work), str(b.work))
    git(b.work, "checkout", "-qb", "side")
    if theirs == "another commit":
        git(b.work, "checkout", "-q", "main")
    made = linked(a.work)
    a.capture()
    kept = git(b.work, "rev-parse", "side"), git(b.work, "symbolic-ref", "HEAD")
    b.restore()
    back = b.work / ".claude/worktrees/side"
    assert (git(b.work, "rev-parse", "side"), git(b.work, "symbolic-ref", "HEAD")) == kept
    assert git(back, "rev-parse", "HEAD") == git(made, "rev-parse", "HEAD")
    assert git(back, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"


def test_a_clone_inside_comes_back_with_its_commits_and_its_own_inside(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a, b = lose(lab)
    clone = repository(a.work / "vendor" / "lib")
    deeper = repository(clone / "deeper")
    unborn = a.work / "unborn"
    unborn.mkdir()
    git(unborn, "init", "-q")
    for folder in (clone, deeper, unborn):
        write(folder, mine="not committed\n")
    a.capture()
    assert lab.captured.inside == ("unborn", "vendor/lib", "vendor/lib/deeper") and not lab.captured.left_out
    b.restore()
    for name in lab.captured.inside:
        made, back = a.work / name, b.work / name
        assert files(back) == files(made)
        assert git(back, "log", "--format=%H", ok=False) == git(made, "log", "--format=%H", ok=False)


def test_a_submodules_work_comes_back_into_an_old_clone(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a, b = lose(lab)
    repository(tmp_path / "module")
    git(a.work, "submodule", "add", "-q", str(tmp_path / "module"), "module")
    git(a.work, "commit", "-qm", "module")
    git(tmp_path, "clone", "-q", "--recurse-submodules", str(a.work), str(b.work))
    write(a.work / "module", mine="not committed\n")
    git(a.work / "module", "commit", "-q", "--allow-empty", "-m", "not pushed")
    write(b.work / "module", theirs="of this machine\n")
    a.capture()
    done = b.restore()
    assert files(b.work / "module") == files(a.work / "module")
    [inside] = done.inside
    assert inside.done is not None and inside.done.kept is not None
    assert inside.done.offers, "the commit that it stood on is offered"
    assert "theirs" in git(inside.done.kept.folder, "ls-tree", "--name-only", "local:work")
    shown = " ".join(tree_lines(done))
    assert "module" in shown and inside.done.kept.get_files in shown
    assert "`module`" in describe_tree(done, False)


def test_what_is_gone_does_not_come_back(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a, b = lose(lab)
    linked(a.work)
    a.capture()
    git(a.work, "worktree", "remove", "--force", ".claude/worktrees/side")
    a.capture()
    assert not lab.captured.inside and not lab.state.inside
    b.restore()
    assert not (b.work / ".claude").exists()


def test_a_capture_of_the_workspace_speaks_for_those_inside(tmp_path: Path) -> None:
    """`holds` is of all: their records stand in front of it, and one that lags holds it back."""
    lab = Lab(tmp_path)
    a, _ = lose(lab)
    made = linked(a.work)
    a.capture()
    assert a._capture is not None
    write(made, later="later\n")
    records = a._capture.capture(7, NOW)
    assert [(each.folder, each.holds) for each in records] == [(".claude/worktrees/side", 7), ("", 7)]
    a._capture.commit()
    a._capture._inside[".claude/worktrees/side"]._lags = True
    a._capture._inside[".claude/worktrees/side"].capture = lambda *_: None  # type: ignore[method-assign]
    write(a.work, other="other\n")
    [record] = a._capture.capture(9, NOW)
    assert record.holds == 7


def test_too_many_and_those_outside_are_named(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a, _ = lose(lab)
    for n in range(MAX_INSIDE + 1):
        made = a.work / "many" / f"{n:02}"
        made.mkdir(parents=True)
        git(made, "init", "-q")
        git(made, "commit", "-q", "--allow-empty", "-m", "c")
    git(a.work, "worktree", "add", "-q", "-b", "out", "../outside")
    a.capture()
    assert len(lab.captured.inside) == MAX_INSIDE
    assert set(lab.captured.left_out) == {f"many/{MAX_INSIDE}: {NESTED}", f"../outside: {OUTSIDE}"}


def test_a_linked_worktree_outside_comes_back_below_the_folder(tmp_path: Path) -> None:
    """Where its person wants it saved; the line of the start moves it to where it was, and captures go on there."""
    lab = Lab(tmp_path)
    a, b = lose(lab)
    a.outside = b.outside = True
    made = linked(a.work, "../side")
    git(made, "submodule", "add", "-q", str(repository(tmp_path / "module")), "sub/module")
    write(made / "sub/module", dirty="dirty\n")
    a.capture()
    name = f"{BROUGHT_IN}/side"
    assert lab.captured.inside == (name, f"{name}/sub/module") and not lab.captured.left_out
    done = b.restore()
    assert [each.why for each in done.inside] == ["", ""]
    assert state_of(b.work / name) == state_of(made)
    assert (b.work / name / "sub/module/dirty").read_text() == "dirty\n"
    assert not (b.work.parent / "side").exists()
    [line] = [line for line in tree_lines(done) if " mv " in line]
    subprocess.run(line[line.index("mv ") :], shell=True, cwd=b.work, check=True, capture_output=True)
    write(b.work.parent / "side", later="later\n")
    b.capture()
    assert lab.captured.inside == (name, f"{name}/sub/module") and not lab.captured.left_out
    c = lab.machine("c")
    c.restore()
    assert state_of(c.work / name) == state_of(b.work.parent / "side")


HOSTILE = (
    "../out",
    "/etc/x",
    "a/../../out",
    ".git/hooks",
    "x/.GIT",
    "GIT~1",
    "",
    ".",
    "a//b",
    "link/x",
    "file",
    "a\nb",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_from_the_bucket_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    lab = Lab(tmp_path)
    a, b = lose(lab)
    repository(a.work / "lib")
    a.capture()
    b.work.mkdir(parents=True)
    (tmp_path / "out").mkdir()
    write(b.work, file="here\n")
    (b.work / "link").symlink_to(tmp_path / "out")
    with pytest.raises(ConfigError):
        b.target.inside(name)
    decided = b.decide()
    assert isinstance(decided, PutBack)
    captured = msgspec.structs.replace(lab.state.inside["lib"])
    done = restore_files(b.target, lab.captured, lab.blobs, decided, NOW, inside={name: captured})
    if name not in ("link/x", "file"):  # those were moved aside by the workspace's own restore
        assert [bool(each.why) for each in done.inside] == [True]
    assert not [*(tmp_path / "out").iterdir()] and not (b.work / ".git" / "hooks" / "a").exists()


def test_a_credential_folder_inside_is_not_put_back(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    _, b = lose(lab)
    b.work.mkdir(parents=True)
    target = msgspec.structs.replace(b.target, private=(b.target.folder / ".claude",))
    with pytest.raises(ConfigError):
        target.inside(".claude/x")

"""Repositories inside a workspace: what came with the project, or stands in the bucket, reaches nothing beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.recovery.lab import Lab, Machine, files, git, repository, write
from tests.unit.supervise.test_rewind_files import Rewinder
from wal_agent.capture.candidates import OUTSIDE
from wal_agent.capture.shadow import Contents
from wal_agent.recovery.report import describe_tree, tree_lines

SECRET = "the text of another repository"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def private(folder: Path) -> Path:
    """A repository of this person's beside the workspace, with what no remote has."""
    made = repository(folder / "private")
    write(made, secret=os.urandom(300_000).hex())
    git(made, "add", "secret")
    git(made, "commit", "-qm", SECRET)
    return made / ".git"


def a_file(inside: Path, theirs: Path) -> None:
    (inside / ".git").write_text(f"gitdir: {theirs}\n")


def a_link(inside: Path, theirs: Path) -> None:
    (inside / ".git").symlink_to(theirs)


def a_common_folder(inside: Path, theirs: Path) -> None:
    (inside / ".git").mkdir()
    (inside / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (inside / ".git/commondir").write_text(f"{theirs}\n")


def a_worktree(inside: Path, theirs: Path) -> None:
    own = inside / "x/worktrees/y"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text(f"{theirs}\n")
    (own / "gitdir").write_text(f"{inside}/.git\n")
    (inside / ".git").write_text(f"gitdir: {own}\n")


def refs(inside: Path, theirs: Path) -> None:
    git(inside, "init", "-q", "-b", "main")
    (inside / ".git/refs/heads/main").symlink_to(theirs / "refs/heads/main")
    (inside / ".git/objects/info/alternates").write_text(f"{theirs}/objects\n")


def an_index(inside: Path, theirs: Path) -> None:
    git(inside, "init", "-q", "-b", "main")
    (inside / ".git/index").symlink_to(theirs / "index")
    (inside / ".git/objects/info/alternates").write_text(f"{theirs}/objects\n")


WAYS: list[Callable[[Path, Path], None]] = [a_file, a_link, a_common_folder, a_worktree, refs, an_index]


@pytest.mark.parametrize("way", WAYS)
def test_one_that_leads_to_another_repository_saves_nothing_of_that(
    lab: Lab, tmp_path: Path, way: Callable[[Path, Path], None]
) -> None:
    """As an archive may bring it: a clone cannot."""
    a = lab.machine("a")
    repository(a.work)
    inside = a.work / "vendor"
    write(inside, ours="ours\n")
    way(inside, private(tmp_path))
    a.capture()
    packs = [pack for each in (lab.captured, *lab.state.inside.values()) for pack in each.packs]
    assert sum(pack.size for pack in packs) < 100_000
    assert [line.partition(":")[0] for line in lab.captured.left_out] == ["vendor"] or way is an_index


def to_the_workspaces(inside: Path, theirs: Path) -> None:
    (inside / ".git").symlink_to("../.git")


@pytest.mark.parametrize("way", [a_file, a_link, a_worktree, to_the_workspaces])
def test_nothing_is_put_into_another_repository(lab: Lab, tmp_path: Path, way: Callable[[Path, Path], None]) -> None:
    """By a restore, where an archive brought such a one to this machine."""
    a, b, theirs = lab.machine("a"), lab.machine("b"), private(tmp_path)
    repository(a.work)
    write(repository(a.work / "vendor"), a="stashed\n")
    git(a.work / "vendor", "stash", "-q")
    write(a.work / "vendor", a="staged\n")
    git(a.work / "vendor", "add", "a")
    a.capture()
    repository(b.work)
    write(b.work / "vendor", ours="ours\n")
    way(b.work / "vendor", theirs)
    both = (theirs, b.work / ".git")
    before = [(git(each, "for-each-ref"), (each / "index").read_bytes()) for each in both]
    b.restore()
    assert [(git(each, "for-each-ref"), (each / "index").read_bytes()) for each in both] == before


@pytest.mark.parametrize("way", [a_file, a_link, a_worktree, to_the_workspaces])
def test_a_rewind_puts_nothing_into_another_repository(
    lab: Lab, tmp_path: Path, way: Callable[[Path, Path], None]
) -> None:
    """Neither it nor its undo, where a tool of the run has replaced the `.git` meanwhile; both say so."""
    a, theirs = Machine(lab, tmp_path / "a/wal-agent", tmp_path / "a/work"), private(tmp_path)
    repository(a.work)
    vendor = repository(a.work / "vendor")
    write(vendor, a="stashed\n")
    git(vendor, "stash", "-q")
    write(vendor, a="staged\n")
    git(vendor, "add", "a")
    a.capture()
    then = lab.state
    write(vendor, mine="mine\n")
    rewind = Rewinder(a)
    rewind.back(then)
    shutil.rmtree(vendor / ".git")
    write(vendor, ours="ours\n")
    way(vendor, theirs)
    both, were = (theirs, a.work / ".git"), files(vendor)
    before = [(git(each, "for-each-ref"), (each / "index").read_bytes()) for each in both]
    assert "vendor was not put back" in rewind.back(then)
    assert "vendor stays kept" in rewind.back(then, undoes=1)
    assert [(git(each, "for-each-ref"), (each / "index").read_bytes()) for each in both] == before
    assert files(vendor) == were


def elsewhere(lab: Lab, tmp_path: Path) -> tuple[Machine, str]:
    """A worktree of a repository beside the workspace, which says so."""
    a = lab.machine("a")
    repository(a.work)
    git(private(tmp_path).parent, "worktree", "add", "-q", "-b", "side", str(a.work / "side"))
    return a, "side"


def submodule(lab: Lab, tmp_path: Path) -> tuple[Machine, str]:
    """Of the repository around the workspace, which has the submodule's."""
    a = lab.machine("a")
    top = repository(a.work)
    git(top, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(private(tmp_path)), "sub/lib")
    return lab.machine("a", top / "sub"), "lib"


@pytest.mark.parametrize("kind", [elsewhere, submodule])
def test_one_that_its_repository_knows_is_saved(
    lab: Lab, tmp_path: Path, kind: Callable[[Lab, Path], tuple[Machine, str]]
) -> None:
    a, name = kind(lab, tmp_path)
    a.capture()
    assert [*lab.state.inside] == [name]


@pytest.mark.parametrize("of", ["another repository", "a folder in one", "a linked worktree of it", "a circle"])
def test_no_folder_outside_is_saved_that_does_not_say_so_itself(lab: Lab, tmp_path: Path, of: str) -> None:
    """I7: a `.git` that an archive brought names one as a worktree, and the person wants those outside saved."""
    a, theirs = lab.machine("a"), private(tmp_path).parent
    a.outside = True
    repository(a.work)
    write(theirs / "folder", secret=SECRET)
    git(theirs, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "a circle").symlink_to("a circle")  # links to itself, which Python 3.11 cannot follow
    named = {"another repository": theirs, "a folder in one": theirs / "folder"}.get(of, tmp_path / "side")
    named = tmp_path / of / "x" if of == "a circle" else named
    own = a.work / ".git/worktrees/x"
    own.mkdir(parents=True)
    write(own, HEAD="ref: refs/heads/main\n", commondir="../..\n", gitdir=f"{named}/.git\n")
    a.capture()
    assert not lab.state.inside and [line for line in lab.captured.left_out if line.endswith(OUTSIDE)]


def test_a_link_to_credentials_in_the_place_of_a_rebase_is_not_read(lab: Lab, tmp_path: Path) -> None:
    a = lab.machine("a")
    repository(a.work)
    write(tmp_path / "ssh", id_rsa=SECRET)
    (a.work / ".git/rebase-merge").symlink_to(tmp_path / "ssh")
    a.capture()
    assert SECRET.encode() not in contents(a).state.files.get("rebase-merge/id_rsa", b"")


def contents(machine: Machine) -> Contents:
    capture = machine._capture._main  # type: ignore[union-attr]
    return capture._shadow.contents(machine.lab.captured.commit)


SETTINGS = """
[core]
fsmonitor = touch {0}
hooksPath = {1}
sshCommand = touch {0}
pager = touch {0}
alternateRefsCommand = touch {0}
attributesFile = {1}/attributes
[filter "x"]
clean = touch {0}; cat
smudge = touch {0}; cat
process = touch {0}
required = true
[diff "x"]
textconv = touch {0}; cat
[merge "x"]
driver = touch {0}
[gpg]
program = touch {0}
[include]
path = {1}/included
[remote "origin"]
url = ext::touch {0}
promisor = true
[extensions]
partialClone = origin
"""


def booby_trap(top: Path, mark: Path) -> None:
    """A repository whose settings, hooks and attributes have a program run wherever git can be told to."""
    hooks = top.parent / f"{top.name}-hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc", "fsmonitor-watchman"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (hooks / name).chmod(0o755)
    for file in (hooks / "attributes", top / ".gitattributes", top / ".git/info/attributes"):
        file.write_text("* filter=x diff=x merge=x\n")
    with (top / ".git/config").open("a") as config:
        config.write(SETTINGS.format(mark, hooks))
    write(top, a="changed here\n", fresh="fresh\n")


def test_settings_of_one_inside_have_no_program_run(lab: Lab, tmp_path: Path) -> None:
    """Neither by a capture nor by a restore over it."""
    a, b, mark = lab.machine("a"), lab.machine("b"), tmp_path / "RAN"
    repository(a.work)
    booby_trap(repository(a.work / "lib"), mark)
    a.capture()
    assert lab.state.inside["lib"].files
    repository(b.work)
    booby_trap(repository(b.work / "lib"), mark)
    git(a.work / "lib", "-c", "core.fsmonitor=", "rev-parse", "HEAD")
    done = b.restore()
    assert [each.why for each in done.inside] == [""]
    assert not mark.exists()
    with pytest.raises(AssertionError):  # the control: a person's git runs them
        git(b.work / "lib", "status")
        assert not mark.exists()


@pytest.mark.parametrize("name", ["HEAD", "origin/main", "v1"])
def test_no_branch_of_the_bucket_shadows_a_name(lab: Lab, tmp_path: Path, name: str) -> None:
    """A linked worktree's branch is made in this person's repository: `git merge origin/main` would take that one."""
    a, b = lab.machine("a"), lab.machine("b")
    repository(a.work)
    git(tmp_path, "clone", "-q", str(a.work), str(b.work))
    git(b.work, "tag", "v1")
    git(a.work, "worktree", "add", "-q", "--detach", "side")
    git(a.work / "side", "commit", "-q", "--allow-empty", "-m", "theirs")
    git(a.work / "side", "update-ref", f"refs/heads/{name}", "HEAD")
    git(a.work / "side", "symbolic-ref", "HEAD", f"refs/heads/{name}")
    a.capture()
    before = git(b.work, "for-each-ref", "refs/heads"), git(b.work, "rev-parse", name)
    b.restore()
    assert (git(b.work, "for-each-ref", "refs/heads"), git(b.work, "rev-parse", name)) == before
    assert git(b.work / "side", "log", "-1", "--format=%s") == "theirs"


def test_what_going_on_with_a_rebase_inside_would_run_is_told(lab: Lab) -> None:
    a, b = lab.machine("a"), lab.machine("b")
    repository(a.work)
    inside = repository(a.work / "lib")
    (inside / ".git/rebase-merge").mkdir()
    write(inside / ".git/rebase-merge", **{"git-rebase-todo": "exec touch PWNED\n"})
    a.capture()
    done = b.restore()
    assert "touch PWNED" in " ".join(tree_lines(done))
    assert "touch PWNED" in describe_tree(done, False)

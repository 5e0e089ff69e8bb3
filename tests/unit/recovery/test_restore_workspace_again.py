"""A restore of the working tree that is cut, disturbed, or over another folder than it looks: nobody's work is lost."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.recovery.lab import Lab, Machine, files, git, repository, write
from wal_agent.budget import Budget
from wal_agent.capture.git import Git
from wal_agent.capture.repository import read_marks
from wal_agent.capture.shadow import SAVED, Contents, Shadow
from wal_agent.errors import ConfigError, Damaged
from wal_agent.recovery import restore_tree, restore_workspace
from wal_agent.recovery.report import describe_tree, tree_lines
from wal_agent.recovery.restore_target import (
    KEEP_BACKUPS,
    MIN_BACKUP_AGE,
    Keep,
    PutBack,
    RestoreMarker,
    RestoreTarget,
    decide_restore,
    inspect_target,
    request_restore,
    write_marker,
)
from wal_agent.recovery.restore_workspace import TreeResult


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
    real = restore_tree.checkout_tree

    def make_equal(*words: Any) -> None:
        before()
        real(*words)

    monkeypatch.setattr(restore_workspace, "checkout_tree", make_equal)


def got_back(lab: Lab, done: TreeResult) -> dict[str, dict[str, object]]:
    """What the told command writes, by folder."""
    assert done.kept is not None
    out = Path(lab.root / f"out-{lab.moment}")
    out.mkdir()
    subprocess.run(["bash", "-ec", done.kept.get_files], cwd=out, check=True, capture_output=True)
    return {folder.name: {name: what[1] for name, what in files(folder).items()} for folder in out.iterdir()}


def kept(machine: Machine) -> list[Path]:
    return sorted(machine.state_dir.glob("workspaces/*-kept/*"))


def test_a_repository_of_ours_that_is_broken_does_not_stop_a_restore(lab: Lab) -> None:
    """What an earlier run left in the state folder is made again."""
    first, second = clones(lab, a="changed\n")
    second.capture()
    shadow = second.target.shadow()
    shutil.rmtree(shadow.objects)
    (shadow.folder / "refs").rename(shadow.folder / "gone")
    second._capture = None
    lab.state = msgspec.structs.replace(lab.state, workspace=None)
    first._capture = None
    first.capture()
    second.restore()
    assert files(second.work) == files(first.work)


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
        for _ in range(KEEP_BACKUPS + 2):
            lab.moment += 2
            with pytest.raises(ConfigError):
                second.restore()
    lab.moment += 2
    done = second.restore()
    assert done.files_kept and got_back(lab, done).keys() == {"before"}
    assert got_back_mine(lab, done) and len(kept(second)) == 1


def got_back_mine(lab: Lab, done: TreeResult) -> bool:
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
    for n in range(KEEP_BACKUPS + 3):
        write(second.work, mine=f"{n}\n")
        second.restore()
        write(first.work, w=f"{n + 1}\n")
        first._capture = None
        first.capture()
    assert len(kept(second)) == KEEP_BACKUPS + 3
    lab.moment += 2 * MIN_BACKUP_AGE
    write(second.work, mine="last\n")
    second.restore()
    assert len(kept(second)) == KEEP_BACKUPS


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
    assert (second.work / "a").read_text() == f"typed {restore_workspace.TRIES - 1}\n"


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
    request_restore(fork.shadow(), "fork", lab.captured.commit)

    def decide(target: RestoreTarget) -> Keep | PutBack:
        return decide_restore(lab.captured, inspect_target(target, lab.captured))

    assert isinstance(decide(fork), PutBack) and decide(here.target) == Keep("newest")
    restore_workspace.restore_files(fork, lab.captured, lab.blobs, PutBack(False), lab.moment)
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
    state_with(monkeypatch, left_out=(b"model", b"data", b"sub", b"a"))
    done = second.restore()
    after = files(second.work)
    stays = {name: after.pop(name)[1] for name in ("model", "data/x")}
    assert stays == {"model": b"big\n", "data/x": b"big\n"}
    assert after == files(first.work), "what is in the tree is put back all the same"
    assert done.changes.gone == 2


def state_with(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Captures say this of what stood around."""
    real = Shadow.contents

    def contents(shadow: Shadow, commit: str, *more: Path) -> Contents:
        found = real(shadow, commit, *more)
        return replace(found, state=msgspec.structs.replace(found.state, **changed))

    monkeypatch.setattr(Shadow, "contents", contents)


def modes(folder: Path, *names: str) -> list[int]:
    return [(folder / name).stat().st_mode & 0o777 for name in names]


def test_files_that_were_their_owners_alone_are_so_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over one that others could read; and while they are written nobody else is let into the folder."""
    first, second = clones(lab, key="secret\n", deep__key="secret\n", open="open\n", link="x\n")
    (first.work / "tool").symlink_to("open")
    for name in ("key", "deep/key"):
        (first.work / name).chmod(0o600)
    first.capture()
    write(second.work, key="another\n")
    (second.work / "key").chmod(0o644)
    second.work.chmod(0o755)
    shadow = Shadow.of(first.state_dir, first.target.folder, Git(first.target.env))
    assert set(shadow.contents(lab.captured.commit).state.private) == {b"key", b"deep/key"}
    state_with(monkeypatch, private=(b"key", b"deep/key", b"tool", b"not/there"))
    seen: list[int] = []
    around(monkeypatch, lambda: seen.extend(modes(second.work, ".")))
    second.restore()
    assert modes(second.work, "key", "deep/key", "open", ".") == [0o600, 0o600, 0o644, 0o755]
    assert seen == [0o700]


def test_a_cut_restore_does_not_leave_the_folder_closed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = clones(lab, key="secret\n")
    second.work.chmod(0o755)
    shadow = second.target.shadow()
    shadow.folder.parent.mkdir(parents=True)
    write_marker(shadow, RestoreMarker("0" * 40, mode=0o755))
    second.work.chmod(0o700)  # killed here
    second.restore()
    assert modes(second.work, ".") == [0o755]


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_a_git_that_cannot_be_read_is_told(lab: Lab) -> None:
    clones(lab, a="1\n")
    second = lab.machine("c")
    write(second.work, **{".git": "gitdir: /nowhere/at/all\n"})
    done = second.restore()
    assert "git cannot read the .git" in describe_tree(done, False)
    assert any("git cannot read" in line for line in tree_lines(done))


def test_what_a_rebase_would_run_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lab.machine("a")
    repository(first.work)
    git(first.work, "rebase", "-x", "false", "-x", "touch `evil`", "HEAD~1", ok=False)
    first.capture()
    done = lab.machine("b").restore()
    assert done.runs == ("touch `evil`",)
    assert "A `rebase` is in progress in the repository; going on with it runs `` touch `evil` ``" in describe_tree(
        done, False
    )
    assert any("going on with it runs touch" in line for line in tree_lines(done))


@pytest.mark.parametrize("unmerged", [b"nothing\0", b"100644 1\t\0", b"100644 zz 1\ta\0"])
def test_an_unmerged_entry_that_is_none_is_damage(lab: Lab, monkeypatch: pytest.MonkeyPatch, unmerged: bytes) -> None:
    clones(lab, a="1\n")
    state_with(monkeypatch, unmerged=unmerged)
    second = lab.machine("c")
    with pytest.raises(Damaged, match="unmerged"):
        second.restore()
    assert not any(second.work.iterdir())


def test_the_index_is_bounded_like_the_files(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged only, and more than is taken."""
    first, _ = clones(lab, a="1\n")
    write(first.work, **{f"staged-{n}": f"{n}\n" for n in range(20)})
    git(first.work, "add", "-A")
    for n in range(20):
        (first.work / f"staged-{n}").unlink()
    first.capture()
    monkeypatch.setattr(restore_workspace, "FOREIGN", Budget(files=10))
    second = lab.machine("c")
    with pytest.raises(Damaged, match="more than are restored"):
        second.restore()
    assert not any(second.work.iterdir())


def test_the_next_run_of_a_named_job_goes_on_from_what_was_put_back(lab: Lab) -> None:
    clones(lab, a="1\n")
    second = lab.machine("b")
    target = replace(second.target, job="shop")
    restore_workspace.restore_files(target, lab.captured, lab.blobs, PutBack(False), lab.moment)
    shadow = target.shadow()
    assert shadow.ref(shadow.name(SAVED)) == lab.captured.commit
    assert read_marks(target.folder, "shop") in ((lab.captured.commit,), ()), "() where nothing can be marked"
    assert second.decide() == Keep("newest"), "whoever put it back: it stands here"


def test_files_that_a_commit_has_in_another_form_are_not_said_to_be_in_none(lab: Lab) -> None:
    """Other ends of lines, and pointers of git-lfs; what was edited is named."""
    first, second = clones(lab)
    origin, big = lab.root / "origin", b"big\0" * 1000
    for folder in (first.work, second.work):
        git(folder, "config", "filter.lfs.clean", "false")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(big).hexdigest()}\nsize 4000\n"
    write(origin, w="one\ntwo\n", edited="one\ntwo\n", big=pointer, fake=pointer)
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "third")
    git(second.work, "pull", "-q")
    for name, data in (("w", b"one\r\ntwo\r\n"), ("edited", b"one\r\ntwo!\r\n"), ("big", big), ("fake", big + b"x")):
        (second.work / name).write_bytes(data)
    first.capture()
    done = second.restore()
    assert done.kept is not None and done.kept.uncommitted("local") == (2, ("edited", "fake"))


# ---- what git keeps beside the files --------------------------------------------------------------------------------


def stash_twice(machine: Machine) -> list[str]:
    for n in (1, 2):
        write(machine.work, b=f"stash {n}\n")
        git(machine.work, "stash", "push", "-q", "-m", f"number {n}")
    return git(machine.work, "stash", "list").splitlines()


def test_staged_changes_and_stashes_come_into_a_clone(lab: Lab) -> None:
    """I7: where nothing is staged here, and on top of the stashes that are here."""
    first, second = clones(lab)
    listed = stash_twice(first)
    write(second.work, sub__c="mine\n")
    git(second.work, "stash", "push", "-q", "-m", "mine")
    mine = git(second.work, "rev-parse", "stash")
    write(first.work, a="staged\n", new="staged\n")
    git(first.work, "add", "-A")
    write(first.work, a="and more\n")
    first.capture()
    done = second.restore()
    assert (done.git.staged, done.git.stashes, done.git.offered) == (True, 2, {})
    for words in (["status", "--porcelain"], ["diff"], ["diff", "--cached"]):
        assert git(second.work, *words) == git(first.work, *words) != "", words
    assert [line.partition(": ")[2] for line in git(second.work, "stash", "list").splitlines()] == [
        *(line.partition(": ")[2] for line in listed),
        "On main: mine",
    ]
    assert git(second.work, "rev-parse", "stash@{2}") == mine
    git(second.work, "fsck", "--strict", "--no-dangling")
    assert "staged changes, 2 stashes" in " ".join(tree_lines(done))
    assert "staged changes, 2 stashes" in describe_tree(done, False)


@pytest.mark.parametrize("why", ["staged here", "another commit", "a merge here"])
def test_staged_changes_that_would_replace_others_are_offered(lab: Lab, why: str) -> None:
    first, second = clones(lab)
    write(first.work, a="staged\n")
    git(first.work, "add", "a")
    first.capture()
    match why:
        case "staged here":
            write(second.work, b="mine\n")
            git(second.work, "add", "b")
        case "another commit":
            git(second.work, "reset", "-q", "--hard", "HEAD~1")
        case _:
            (second.work / ".git/MERGE_HEAD").write_text(git(second.work, "rev-parse", "HEAD~1") + "\n")
    index = git(second.work, "ls-files", "-s")
    done = second.restore()
    assert not done.git.staged and [*done.git.offered] == ["staged"] and done.kept is not None
    assert git(second.work, "ls-files", "-s") == index
    assert os.system(f"cd {second.work} && {done.kept.get_commits} 2>/dev/null") == 0
    assert git(second.work, "show", "refs/wal-agent/staged:a") == "staged"
    assert done.kept.get_commits in " ".join(tree_lines(done))


def test_branches_and_a_rebase_in_progress_are_offered(lab: Lab) -> None:
    first, second = clones(lab)
    git(first.work, "checkout", "-q", "-b", "side")
    write(first.work, a="side\n")
    git(first.work, "commit", "-qam", "side")
    side = git(first.work, "rev-parse", "HEAD")
    git(first.work, "checkout", "-q", "main")
    write(first.work, a="main\n")
    git(first.work, "commit", "-qam", "main")
    git(first.work, "rebase", "-q", "side", ok=False)
    first.capture()
    git_had = git(second.work, "for-each-ref")
    done = second.restore()
    assert done.kept is not None and done.offers and set(done.git.offered.values()) >= {side}
    assert git(second.work, "for-each-ref") == git_had
    assert os.system(f"cd {second.work} && {done.kept.get_commits} 2>/dev/null") == 0
    assert git(second.work, "rev-parse", "refs/wal-agent/heads/side") == side
    told = " ".join(tree_lines(done))
    assert "branches main, side" in told and "the commits of the rebase" in told


def test_all_stashes_come_to_an_empty_machine(lab: Lab) -> None:
    first, _ = clones(lab)
    listed = stash_twice(first)
    first.capture()
    third = lab.machine("c")
    third.restore()
    assert git(third.work, "stash", "list").splitlines() == listed

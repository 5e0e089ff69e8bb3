"""The working tree is put back on another machine: whole, exactly, and what is there is not lost (I7)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.recovery.lab import Lab, Machine, files, git, raw, repository, write
from wal_agent.capture.candidates import Caps
from wal_agent.recovery.restore_target import Keep, PutBack, RestoreBackup, list_kept
from wal_agent.recovery.restore_workspace import restore_files, restore_kept


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def lively(folder: Path) -> None:
    """What an agent leaves in a working tree: staged, changed, untracked, deleted, ignored, links, modes, odd names."""
    write(folder, **{"a": "changed\n", "staged": "s\n", ".gitignore": "*.log\nbuild/\n", "x.log": "ignored\n"})
    git(folder, "add", "staged")
    (folder / "staged").write_text("staged, and changed again\n")
    (folder / "gone").unlink()
    write(
        folder, **{"new__deep__er": "untracked\n", "-dash": "d\n", "sp ace\ttab\nline": "odd\n", "build__out": "no\n"}
    )
    (folder / os.fsdecode(b"latin-\xe9")).write_bytes(b"\x00\xff\r\n")
    (folder / "crlf.txt").write_bytes(b"a\r\nb\n")
    (folder / ".gitattributes").write_text("* text=auto eol=crlf\n*.id ident\n*.utf working-tree-encoding=UTF-16\n")
    (folder / "x.id").write_text("$Id$\n")
    (folder / "x.utf").write_bytes("ä\n".encode("utf-16"))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("sub/c")
    (folder / "broken").symlink_to("/nowhere/at/all")
    (folder / "empty").touch()


def not_ignored(found: dict[str, tuple[str, object]]) -> dict[str, tuple[str, object]]:
    return {name: what for name, what in found.items() if not name.endswith(".log") and not name.startswith("build")}


def lost(lab: Lab) -> Machine:
    """A machine whose working tree is captured."""
    first = lab.machine("a")
    repository(first.work)
    lively(first.work)
    assert first.capture() is not None
    return first


# ---- where nothing is ------------------------------------------------------------------------------------------------


def test_an_empty_machine_gets_files_and_repository(lab: Lab) -> None:
    first = lost(lab)
    git(first.work, "branch", "side", "HEAD~1")
    write(first.work, b="stashed\n", stashed="x\n")
    git(first.work, "stash", "push", "-q", "-u", "-m", "for later", "b", "stashed")
    git(first.work, "remote", "add", "origin", "https://user:secret@example.invalid/acme/shop.git")
    first.capture()
    second = lab.machine("b")
    done = second.restore()
    assert done.decided == PutBack(make_repository=True)
    assert files(second.work) == not_ignored(files(first.work))
    assert git(second.work, "status", "--porcelain=v2", "--branch", "-z") == git(
        first.work, "status", "--porcelain=v2", "--branch", "-z"
    )
    for words in (["log", "--format=%H %T"], ["diff", "--cached"], ["diff"], ["for-each-ref"], ["stash", "list"]):
        assert git(second.work, *words) == git(first.work, *words), words
    assert git(second.work, "remote", "get-url", "origin") == "https://example.invalid/acme/shop.git"
    git(second.work, "fsck", "--strict", "--no-dangling")
    git(second.work, "commit", "-qam", "goes on")
    assert git(second.work, "show", "stash@{0}:b") == "stashed" and git(second.work, "show", "stash^3:stashed") == "x"
    assert (done.changes.new, done.changes.changed, done.changes.gone) == (len(files(second.work)), 0, 0)
    assert not [p for p in second.work.iterdir() if "wal-agent" in p.name]


@pytest.fixture
def other_mount(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`."""
    choices = [Path("/dev/shm"), Path("/run"), Path("/var/tmp"), Path.home()]
    here = tmp_path.stat().st_dev
    root = next(p for p in choices if p.is_dir() and os.access(p, os.W_OK) and p.stat().st_dev != here)
    with tempfile.TemporaryDirectory(dir=root, prefix="wal-agent-test-") as name:
        yield Path(name)


def test_the_workspace_is_another_file_system_than_the_state_folder(lab: Lab, other_mount: Path) -> None:
    """As on a pod, where they are two volumes: nothing is renamed from one to the other."""
    lost(lab)
    second = lab.machine("b", other_mount / "work")
    done = second.restore()
    assert done.put_back and git(second.work, "log", "--format=%s") == "second\nfirst"
    git(second.work, "fsck", "--strict", "--no-dangling")
    write(second.work, b="here\n")
    second.capture()
    third = lab.machine("c", other_mount / "third")
    write(third.work, mine="kept\n")
    again = third.restore()
    assert again.kept is not None and files(third.work) == files(second.work)
    kept = list_kept(third.target)
    restore_kept(third.target, kept[0], lab.moment + 1)
    assert (third.work / "mine").read_text() == "kept\n"


def test_the_next_capture_goes_on_from_there_and_sends_little(lab: Lab) -> None:
    lost(lab)
    second = lab.machine("b")
    second.restore()
    packs = len(lab.captured.packs)
    write(second.work, b="by the second\n")
    record = second.capture()
    assert record is not None and not record.whole and len(lab.captured.packs) == packs + 1
    third = lab.machine("c")
    third.restore()
    assert files(third.work) == files(second.work)


@pytest.mark.parametrize("how", ["detached", "unborn", "plain", "shallow", "worktree"])
def test_kinds_of_places(lab: Lab, how: str) -> None:
    first = lab.machine("a")
    match how:
        case "detached":
            git(repository(first.work), "checkout", "-q", "--detach", "HEAD~1")
        case "unborn":
            first.work.mkdir(parents=True)
            git(first.work, "init", "-q", "-b", "trunk")
            write(first.work, s="staged\n", u="untracked\n")
            git(first.work, "add", "s")
        case "plain":
            write(first.work, a="a\n", b__c="c\n")
        case "shallow":
            origin = repository(lab.root / "origin")
            git(lab.root, "clone", "-q", "--depth", "1", f"file://{origin}", str(first.work))
            write(first.work, a="changed\n")
        case "worktree":
            origin = repository(lab.root / "origin")
            first.work.parent.mkdir(parents=True)
            git(origin, "worktree", "add", "-q", "-b", "wt", str(first.work))
            write(first.work, a="changed\n")
    first.capture()
    second = lab.machine("b")
    second.restore()
    assert files(second.work) == files(first.work)
    if how == "plain":
        assert not (second.work / ".git").exists()
        return
    status = ["status", "--porcelain=v2", "-z"]
    assert git(second.work, *status) == git(first.work, *status)
    for words in (["rev-parse", "-q", "--verify", "HEAD"], ["symbolic-ref", "-q", "HEAD"], ["log", "--format=%H"]):
        assert git(second.work, *words, ok=False) == git(first.work, *words, ok=False), words
    git(second.work, "fsck", "--no-dangling")


def conflict(folder: Path) -> None:
    repository(folder)
    git(folder, "checkout", "-q", "-b", "side", "HEAD~1")
    write(folder, a="side\n", from_side="1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "on side")
    write(folder, b="side again\n")
    git(folder, "commit", "-qam", "on side again")


def test_a_merge_in_progress_can_be_finished(lab: Lab) -> None:
    first = lab.machine("a")
    conflict(first.work)
    git(first.work, "merge", "main", ok=False)
    assert git(first.work, "diff", "--name-only", "--diff-filter=U") == "a"
    first.capture()
    second = lab.machine("b")
    second.restore()
    assert git(second.work, "status") == git(first.work, "status")
    assert git(second.work, "ls-files", "-u") == git(first.work, "ls-files", "-u")
    write(second.work, a="solved\n")
    git(second.work, "add", "a")
    git(second.work, "merge", "--continue")
    assert len(git(second.work, "log", "-1", "--format=%P").split()) == 2


@pytest.mark.parametrize("backend", ["merge", "apply"])
def test_a_rebase_in_progress_can_be_finished(lab: Lab, backend: str) -> None:
    first = lab.machine("a")
    conflict(first.work)
    git(first.work, "rebase", f"--{backend}", "main", ok=False)
    first.capture()
    second = lab.machine("b")
    second.restore()
    assert git(second.work, "status") == git(first.work, "status")
    for machine in (first, second):
        write(machine.work, a="solved\n")
        git(machine.work, "add", "a")
        git(machine.work, "rebase", "--continue")
    tip = ["log", "-3", "--format=%T %s", "side"]
    assert git(second.work, *tip) == git(first.work, *tip)
    assert "on side again" in git(second.work, *tip)


# ---- where a clone is ------------------------------------------------------------------------------------------------


def cloned(lab: Lab, back: int = 0) -> tuple[Machine, Machine]:
    """A machine that worked in a clone of `origin`, with a commit of its own, and another with a plain clone."""
    origin = repository(lab.root / "origin")
    first = lab.machine("a")
    git(lab.root, "clone", "-q", str(origin), str(first.work))
    write(first.work, mine="committed, not pushed\n")
    git(first.work, "add", "-A")
    git(first.work, "commit", "-qm", "mine")
    lively(first.work)
    first.capture()
    second = lab.machine("b")
    git(lab.root, "clone", "-q", str(origin), str(second.work))
    if back:
        git(second.work, "reset", "-q", "--hard", f"HEAD~{back}")
    return first, second


def test_a_plain_clone_at_an_older_commit(lab: Lab) -> None:
    """I7: of its `.git` not a byte changes. Nothing but files of a commit was there, so nothing is kept of them; the
    commit that is only in the capture is offered by the command that is told."""
    first, second = cloned(lab, back=1)
    before = raw(second.work / ".git")
    done = second.restore()
    assert files(second.work) == not_ignored(files(first.work))
    assert raw(second.work / ".git") == before
    assert not done.files_kept and done.offers and done.kept is not None
    assert done.repository is not None and done.repository.head == git(second.work, "rev-parse", "HEAD")
    by_hand(second.work, done.kept.get_commits)
    assert git(second.work, "rev-parse", "FETCH_HEAD") == git(first.work, "rev-parse", "HEAD")
    assert git(second.work, "log", "--format=%H", "FETCH_HEAD") == git(first.work, "log", "--format=%H")
    git(second.work, "reset", "-q", "--soft", "FETCH_HEAD")
    git(second.work, "fsck", "--no-dangling")
    assert not (second.work / ".git/shallow").exists()


def by_hand(folder: Path, command: str) -> None:
    """What a person would paste."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("below", ["", "sub"])
def test_what_a_sparse_checkout_lacks_is_left_alone(lab: Lab, below: str) -> None:
    """I7: the files outside of the first machine's cone are no deleted files, and those that it deleted are."""
    origin = lab.root / "origin"
    write(
        repository(origin),
        in__x="x\n",
        in__y="y\n",
        out__deep__z="z\n",
        sub__in__c="c\n",
        sub__out__d="d\n",
        z__e="e\n",
    )
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "third")
    tops = {name: lab.root / name / "clone" for name in "ab"}
    for top in tops.values():
        git(lab.root, "clone", "-q", f"file://{origin}", str(top))
    git(tops["a"], "sparse-checkout", "set", "--cone", "in", "sub/in")
    assert not (tops["a"] / "out").exists()
    gone = "sub/in/c" if below else "in/y"
    (tops["a"] / gone).unlink()
    write(tops["b"], sub__out__d="by a person\n")
    first, second = (lab.machine(name, tops[name] / below) for name in "ab")
    first.capture()
    done = second.restore()
    assert git(tops["b"], "status", "--porcelain") == f" D {gone}\n M sub/out/d"
    assert done.stays == (1 if below else 3) and (tops["b"] / "sub/out/d").read_text() == "by a person\n"
    if not below:
        third = lab.machine("c")
        third.restore()
        assert git(third.work, "status", "--porcelain") == f" D {gone}", "and where nothing was"


def test_local_changes_are_kept_and_come_back_by_the_told_command(lab: Lab) -> None:
    first, second = cloned(lab)
    write(
        second.work,
        a="local\n",
        **{"local only": "u\n", "keep.log": "ignored later\n", "new": "a file in a folder's place\n"},
    )
    (second.work / ".gitattributes").write_text("* export-ignore eol=crlf\na export-subst\n")
    (second.work / "loc.sh").write_text("$Format:%H$\n")
    (second.work / "loc.sh").chmod(0o755)
    (second.work / "sub").rename(second.work / "elsewhere")
    (second.work / "sub").symlink_to(lab.root)
    before, git_before = files(second.work), raw(second.work / ".git")
    done = second.restore()
    assert files(second.work) == not_ignored(files(first.work))
    assert raw(second.work / ".git") == git_before
    assert done.files_kept and done.kept is not None
    out = lab.root / "out"
    out.mkdir()
    by_hand(out, done.kept.get_files)
    assert files(out / "before") == before


def test_ignored_files_here_stay_and_what_is_in_the_way_goes_aside(lab: Lab) -> None:
    first, second = cloned(lab)
    write(first.work, cache__x="tracked there\n", out__deep="there\n", same="same\n")
    (first.work / ".gitignore").write_text("*.log\n")
    first.capture()
    write(second.work, **{"my.log": "mine\n", "out": "ignored file, in a folder's way\n", "same": "same\n"})
    (second.work / "cache" / "x").mkdir(parents=True)
    write(second.work, cache__x__inner="ignored folder, in a file's way\n", cache__other="left alone\n")
    (second.work / ".git" / "info" / "exclude").write_text("*.log\nout\ncache\nsame\n")
    done = second.restore()
    assert sorted(name.partition(".wal-agent-aside-")[0] for name in done.aside) == ["cache/x", "out"]
    stays = {name: what for name, what in files(second.work).items() if "aside" not in name}
    assert stays.pop("my.log")[1] == b"mine\n" and stays.pop("cache/other")[1] == b"left alone\n"
    assert stays == {n: w for n, w in files(first.work).items() if n not in ("x.log",)}
    kept = {n.partition(".wal-agent")[0]: (second.work / n) for n in done.aside}
    assert kept["out"].read_text() == "ignored file, in a folder's way\n"
    assert (kept["cache/x"] / "inner").read_text() == "ignored folder, in a file's way\n"


def plain(path: Path) -> None:
    path.write_text("here\n")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(Caps().file + 1)


def folder(path: Path) -> None:
    write(path, mine="here\n")


def folder_with_ignored(path: Path) -> None:
    write(path, **{"mine": "here\n", "x.log": "ignored\n"})


def inner(path: Path) -> None:
    repository(path)


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize(
    ("name", "make", "becomes"),
    [
        ("p", plain, "kept"),
        ("p", lambda path: path.symlink_to("/nowhere"), "kept"),
        ("p.log", plain, "aside"),
        ("p.log", lambda path: path.write_text("saved\n"), "same"),
        ("p", os.mkfifo, "aside"),
        ("p", huge, "aside"),
        ("p", folder, "kept"),
        ("p", folder_with_ignored, "aside"),
        ("p", inner, "aside"),
    ],
)
def test_what_is_in_the_way(lab: Lab, name: str, make: Callable[[Path], object], becomes: str, below: bool) -> None:
    """I7, as docs/RECOVERY.md says. `below`: at the place of a folder."""
    first, second = lab.machine("a"), lab.machine("b")
    write(first.work, **{f"{name}__in" if below else name: "saved\n"})
    first.capture()
    repository(second.work)
    (second.work / ".git/info").mkdir(exist_ok=True)
    (second.work / ".git/info/exclude").write_text("*.log\n")
    make(second.work / name)
    was = (second.work / name).lstat()
    done = second.restore()
    saved = second.work / name / "in" if below else second.work / name
    assert saved.read_text() == "saved\n"
    if below and make is folder_with_ignored:
        assert (second.work / name / "x.log").read_text() == "ignored\n", "what is not saved stays"
    elif becomes == "aside" or (below and becomes == "same"):
        (aside,) = done.aside
        assert (second.work / aside).lstat().st_ino == was.st_ino
        return
    assert done.aside == ()
    if becomes == "same":
        assert saved.lstat().st_ino == was.st_ino
        return
    assert done.kept is not None
    kept = git(lab.root, f"--git-dir={done.kept.folder}", "ls-tree", "-r", "--name-only", "local:work")
    assert any(line.startswith(name) for line in kept.splitlines())


def test_a_repository_inside_is_never_removed(lab: Lab) -> None:
    first, second = cloned(lab)
    write(first.work, nest="a file there\n", nest2__f="a folder there\n")
    first.capture()
    for name in ("nest", "nest2", "nest3"):
        repository(second.work / name)
    before = {n: raw(second.work / n) for n in ("nest", "nest2", "nest3")}
    done = second.restore()
    aside = {n.partition(".wal-agent")[0]: second.work / n for n in done.aside}
    assert aside.keys() == {"nest", "nest2"}
    assert {n: raw(aside.get(n, second.work / n)) for n in before} == before
    assert (second.work / "nest2" / "f").read_text() == "a folder there\n"


def test_a_plain_folder_with_files(lab: Lab) -> None:
    first, second = lab.machine("a"), lab.machine("b")
    write(first.work, a="a\n", b__c="c\n")
    first.capture()
    write(second.work, a="mine\n", d__e="mine\n")
    done = second.restore()
    assert files(second.work) == files(first.work) and not (second.work / ".git").exists()
    assert (done.changes.changed, done.changes.new, done.changes.gone) == (1, 1, 1)
    out = lab.root / "out"
    out.mkdir()
    assert done.kept is not None
    by_hand(out, done.kept.get_files)
    assert {n: w[1] for n, w in files(out / "before").items()} == {"a": b"mine\n", "d/e": b"mine\n"}


def test_work_without_a_commit_is_named_before_it_is_replaced(lab: Lab) -> None:
    first, second = cloned(lab)
    write(first.work, a="by the agent\n", fresh="by the agent\n")
    first.capture()
    write(second.work, a="not committed\n", mine="untracked\n")
    before, seen = files(second.work), []

    def announce(names: Sequence[str], kept: RestoreBackup) -> None:
        seen.append((list(names), files(second.work) == before, kept.uncommitted("local")))

    decided = second.decide()
    assert isinstance(decided, PutBack)
    restore_files(second.target, lab.captured, lab.blobs, decided, lab.moment, announce=announce)
    assert seen == [(["a", "mine"], True, (2, ("a", "mine")))]
    assert files(second.work) == not_ignored(files(first.work))


def test_what_a_restore_replaced_is_brought_back_and_forth(lab: Lab) -> None:
    """Each way it is exact, what is there then is kept in turn, and the next capture is whole."""
    first, second = cloned(lab)
    write(first.work, a="by the agent\n", fresh="by the agent\n", deep__c="deep\n")
    first.capture()
    write(second.work, a="not committed\n", mine="untracked\n")
    before, git_before = files(second.work), raw(second.work / ".git")
    second.restore()
    there = files(second.work)
    [kept] = list_kept(second.target)
    changes, backup = restore_kept(second.target, kept, lab.moment + 60)
    assert files(second.work) == before and raw(second.work / ".git") == git_before
    assert changes.any and backup is not None
    newest, oldest = list_kept(second.target)
    assert (newest.backup, oldest) == (backup, kept)
    assert restore_kept(second.target, newest, lab.moment + 120)[0].any
    assert files(second.work) == there

    restore_kept(second.target, kept, lab.moment + 180)
    assert second.capture() is not None
    third = lab.machine("c")
    third.restore()
    assert files(third.work) == before


# ---- which folder is the truth ---------------------------------------------------------------------------------------


def test_the_folder_of_the_newest_capture_is_the_truth(lab: Lab) -> None:
    first = lost(lab)
    write(first.work, a="changed after the capture\n")
    assert first.decide() == Keep("newest")
    second = lab.machine("b")
    second.restore()
    assert first.decide() == Keep("newest"), "nothing newer was captured anywhere"
    write(second.work, a="by the second\n")
    second.capture()
    assert isinstance(first.decide(), PutBack)
    done = first.restore()
    assert done.files_kept and (first.work / "a").read_text() == "by the second\n"


def test_a_capture_that_was_logged_just_before_the_kill_is_known(lab: Lab) -> None:
    first = lost(lab)
    write(first.work, a="newer\n")
    assert first._capture is not None
    [record] = first._capture.capture(0, lab.moment + 1)  # killed before `commit`
    from wal_agent.wal.state import apply

    lab.state = apply(lab.state, 1, 1, record)
    assert first.decide() == Keep("newest")


def test_an_empty_folder_is_another_one(lab: Lab) -> None:
    first = lost(lab)
    was = not_ignored(files(first.work))
    first.work.rename(lab.root / "old")
    first.work.mkdir()
    first.restore()
    assert files(first.work) == was


def test_a_folder_on_a_volume_that_outlived_its_machine_is_the_truth(lab: Lab) -> None:
    """Another state folder, the same workspace: what changed after the last capture stands there."""
    first = lost(lab)
    write(first.work, a="changed after the capture\n")
    second = lab.machine("b", first.work)
    assert second.decide() == Keep("newest")
    third = lab.machine("c")
    third.restore()
    assert lab.machine("d", third.work).decide() == Keep("newest")
    write(third.work, b="newer\n")
    third.capture()
    assert isinstance(second.decide(), PutBack)
    kept = second.restore()
    assert kept.files_kept and (first.work / "b").read_text() == "newer\n"


def test_nothing_saved_nothing_done(lab: Lab) -> None:
    assert lab.machine("a").decide() == Keep("not_saved")


def test_no_empty_folder_is_left_where_a_repository_was(lab: Lab) -> None:
    """Of those that were not saved: git in it would act on the repository around. A submodule keeps its folder, as in a
    clone."""
    first, second = lab.machine("a"), lab.machine("b")
    repository(first.work)
    other = repository(lab.root / "other")
    git(first.work, "submodule", "-q", "add", str(other), "part")
    git(first.work, "commit", "-qam", "part")
    git(first.work, "worktree", "add", "-q", ".claude/worktrees/one")
    repository(first.work / "deep" / "own")
    write(first.work, deep__file="x\n")
    first.capture()
    lab.state = msgspec.structs.replace(lab.state, inside={})
    second.restore()
    assert [*(second.work / "part").iterdir()] == []
    assert not (second.work / ".claude").exists() and [p.name for p in (second.work / "deep").iterdir()] == ["file"]
    assert git(second.work, "status", "--porcelain", "--", "deep", ".claude") == "?? deep/"

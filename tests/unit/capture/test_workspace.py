"""Captures of a working tree: what each one sends, what it says of the repository, and what it leaves out and tells.

Nothing of the user's changes (I7): `untouched` compares every file of .git before and after.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.unit.capture.trees import Elsewhere, Log, User, capture_of, fingerprint, on_disk
from wal_agent.capture import candidates, workspace
from wal_agent.capture import workspace as module
from wal_agent.capture.candidates import HISTORY, Caps, LeftOut, describe_unexpected
from wal_agent.capture.git import Busy, GitFailed, GitMissing, GitStopped
from wal_agent.capture.repository import MAX_MARKS, mark_folder, read_marks, strip_credentials
from wal_agent.capture.shadow import Contents
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.errors import Unavailable
from wal_agent.records import Payload, Repository, Workspace


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture
def log() -> Log:
    return Log()


@contextmanager
def untouched(user: User) -> Iterator[None]:
    before = fingerprint(user.top / ".git")
    yield
    assert fingerprint(user.top / ".git") == before


def taken(user: User, log: Log, tmp_path: Path, sub: str = "", **more: object) -> tuple[Elsewhere, Repository]:
    """What a machine without anything gets of a capture that is made now, by a new run."""
    capture = capture_of(user, tmp_path, sub, log=log, **more)  # type: ignore[arg-type]
    with untouched(user):
        log.must(capture)
        assert log.take(capture) is None  # the second look finds nothing new
    return Elsewhere(log, tmp_path), repository(log)


def repository(log: Log) -> Repository:
    assert log.now.repository is not None
    return log.now.repository


@pytest.mark.parametrize("in_git", [False, True])
def test_pipes_in_the_place_of_files_block_nobody(
    user: User, log: Log, tmp_path: Path, in_git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: git and we open files of the folder by name, and the folder is a stranger's."""
    monkeypatch.setattr("wal_agent.capture.git.LOOK", 0.1)
    names = [".gitignore", ".gitattributes", ".gitmodules", ".wal-agentignore", "sub/.gitignore", "sub/.gitattributes"]
    if in_git:
        user.init()
        user.write("sub/a", b"old\n")
        user.commit()
        names += [f".git/{name}" for name in ("info/exclude", "info/attributes", "refs/heads/x", "MERGE_HEAD")]
        names += ["inside/.git/HEAD", "inside/.git/config"]
        subprocess.run(["git", "init", "-q", str(user.top / "inside")], check=True)
        user.write("inside/b")
    user.write("sub/a", b"new\n")
    user.write("c")
    for name in names:
        (user.top / name).parent.mkdir(exist_ok=True)
        (user.top / name).unlink(missing_ok=True)
        os.mkfifo(user.top / name)
    capture = capture_of(user, tmp_path, log=log)
    capture.git.timeout = 20.0
    log.must(capture)
    files = {b"sub/a": ("100644", b"new\n"), b"c": ("100644", b"x\n")}
    assert files.items() <= Elsewhere(log, tmp_path).files().items()
    assert (log.now.repository is not None) == in_git


# ---- what is sent


def test_the_first_capture_sends_all_later_ones_what_is_new(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    for n in range(50):
        user.write(f"d{n % 5}/{n}", os.urandom(5000))
    user.commit()
    capture = capture_of(user, tmp_path, log=log)
    first = log.must(capture, 1)
    assert first.whole
    assert first.packs[0].size > 250_000
    assert len(first.packs[0].parts) == 1
    assert log.take(capture, 1) is None
    user.write("d1/1", b"new")
    second = log.must(capture, 2)
    assert (second.whole, second.replaces, len(second.packs)) == (False, 0, 1)
    assert second.packs[0].size < 2000
    third = log.must(capture, 3)
    assert (third.packs, third.commit, third.holds) == ((), second.commit, 3)
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_a_folder_that_was_moved_is_not_sent_again(user: User, log: Log, tmp_path: Path) -> None:
    for n in range(workspace.EXACT_CHANGES + 1):
        user.write(f"old/{n}", os.urandom(400))
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    (user.top / "old").rename(user.top / "new")
    assert log.must(capture).packs[0].size < 2000


def test_work_that_is_staged_and_committed_is_not_sent_again(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.commit()
    capture = capture_of(user, tmp_path, log=log)
    user.write("big", os.urandom(100_000))
    log.must(capture)
    user.git("add", "-A")
    assert log.must(capture).packs[0].size < 3000
    user.git("commit", "-q", "-m", "x")
    assert log.must(capture).packs[0].size < 3000


def test_a_new_run_goes_on_from_what_the_log_has(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a", os.urandom(10_000))
    log.must(capture_of(user, tmp_path, log=log), 1)
    user.write("b", b"1")
    again = capture_of(user, tmp_path, log=log)
    again.go_on_from(log.now)
    assert not log.must(again, 2).whole
    assert (log.now.files, log.now.size) == (2, 10_001)
    third = capture_of(user, tmp_path, log=log)
    third.go_on_from(log.now)
    assert log.take(third, 2) is None
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_a_run_whose_log_has_another_capture_sends_all(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a")
    log.must(capture_of(user, tmp_path, log=log), 1)
    stale = log.now
    log.must(capture_of(user, tmp_path, log=log), 2)
    user.write("b")
    again = capture_of(user, tmp_path, log=log)
    again.go_on_from(msgspec.structs.replace(stale, commit="1" * 40))
    assert log.must(again).whole


def test_many_packs_become_one_and_too_much_of_them_a_new_beginning(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MANY_PACKS", 4)
    monkeypatch.setattr(workspace, "PACK_SLACK", 0)
    user.init()
    user.write("base", os.urandom(12_000))
    user.commit()
    capture = capture_of(user, tmp_path, log=log)
    wholes = []
    for n in range(14):
        user.write("moving", os.urandom(4000))
        if n % 3 == 0:
            user.commit()
        wholes.append(log.must(capture).whole)
        assert len(log.now.packs) <= 4
        there = Elsewhere(log, tmp_path)
        assert there.files() == on_disk(user.top)
        shutil.rmtree(there.shadow.folder)
    assert any(r.replaces for r in log.records)
    assert wholes[0]
    assert any(wholes[1:])


def test_what_the_bucket_did_not_take_is_found_again(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a", os.urandom(100_000))
    away = True

    def put(data: bytes) -> Payload:
        if away:
            raise Unavailable("away")
        return log.put(data)

    capture = WorkspaceCapture(tmp_path / "state", user.top.resolve(), user.env, put)
    with pytest.raises(Unavailable):
        capture.capture(1, 1.0)
    away = False
    record = log.must(capture)
    assert record.whole
    user.write("a", os.urandom(100_000))
    away = True
    with pytest.raises(Unavailable):
        capture.capture(2, 1.0)
    away = False
    assert log.must(capture, 2).packs
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_a_record_that_did_not_reach_the_log_is_made_again(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a")
    capture = capture_of(user, tmp_path, log=log)
    assert capture.capture(1, 1.0) is not None  # and then no commit
    assert log.must(capture, 1).whole


def test_objects_that_a_gc_took_are_captured_from_nothing(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("a", os.urandom(3000))
    user.git("add", "a")  # an object of the user's that only the index holds
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    user.git("rm", "-q", "--cached", "a")
    user.git("prune", "--expire=now")
    user.write("b")
    user.git("add", "b")
    shutil.rmtree(user.top / ".git" / "objects")
    (user.top / ".git" / "objects").mkdir()
    (user.top / ".git" / "index").unlink()
    user.write("c")
    log.must(capture)
    log.state = log.state  # the log's newest capture must not need what is gone
    if log.records[-1].whole:
        assert Elsewhere(log, tmp_path).files() == on_disk(user.top)
    else:
        there = Elsewhere(log, tmp_path)
        assert there.files() == on_disk(user.top)


def test_a_repository_of_ours_that_is_broken_is_made_anew(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a", os.urandom(3000))
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    shutil.rmtree(capture._shadow.objects)
    capture._shadow.objects.mkdir()
    user.write("b")
    assert log.must(capture).whole
    (capture._shadow.folder / "index").write_bytes(b"DIRC nonsense")
    user.write("c")
    assert log.must(capture).whole
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_outside_of_git_our_repository_does_not_keep_a_file_for_each_object(
    user: User, log: Log, tmp_path: Path
) -> None:
    for n in range(30):
        user.write(f"{n}", os.urandom(100))
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    loose = list(capture._shadow.objects.glob("??/*"))
    assert loose == []
    user.write("1", b"x")
    assert not log.must(capture).whole
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_two_runs_in_one_workspace_do_not_meet(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.05)
    user.write("a")
    capture = capture_of(user, tmp_path, log=log)
    with capture._shadow.locked(), pytest.raises(Busy):
        log.take(capture)
    log.must(capture)
    other = Log()
    beside = capture_of(user, tmp_path, log=other)
    other.must(beside)
    for n in range(3):
        user.write("a", f"{n}")
        log.must(capture)
        user.write("b", f"{n}")
        other.must(beside)
    user.write("c")
    for each, one in ((log, capture), (other, beside)):
        each.must(one)
        there = Elsewhere(each, tmp_path)
        assert there.files() == on_disk(user.top)
        shutil.rmtree(there.shadow.folder)


def test_without_git_and_after_a_stop(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a")
    none = WorkspaceCapture(tmp_path / "state", user.top, {"PATH": str(tmp_path)}, log.put)
    with pytest.raises(GitMissing):
        none.capture(0, 1.0)
    capture = capture_of(user, tmp_path, log=log)
    capture.git.stop()
    with pytest.raises(GitStopped):
        capture.capture(0, 1.0)
    capture.git.go_on()
    log.must(capture)


def test_what_cannot_be_captured_is_not_tried_all_the_time(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.write("a")
    capture = capture_of(user, tmp_path, log=log)
    tried: list[int] = []

    def refuse(*words: object) -> None:
        tried.append(1)
        raise GitFailed(("ls-files",), -9, "too much")

    monkeypatch.setattr(capture, "_capture", refuse)
    for now in (1000.0, 1001.0, 1000.0 + module.PAUSE + 1):
        with pytest.raises(GitFailed):
            capture.capture(0, now)
    assert len(tried) == 4


def test_the_folder_is_marked_with_its_captures(user: User, log: Log, tmp_path: Path) -> None:
    mark_folder(user.top, ("x",))  # a job without a name
    can = bool(read_marks(user.top))
    capture = capture_of(user, tmp_path, log=log)
    user.write("a")
    first = log.must(capture)
    user.write("b")
    second = log.must(capture)
    if not can:  # a file system without extended attributes: captures go on
        assert not read_marks(user.top)
        return
    assert list(read_marks(user.top)) == [second.commit, first.commit, "x"]
    log.must(capture, 2)
    assert read_marks(user.top)[0] == second.commit
    assert capture.capture(3, 1.0) is not None
    assert read_marks(user.top)[1] == first.commit


# ---- the repository around it


def test_a_plain_folder_has_none(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a")
    log.must(capture_of(user, tmp_path, log=log))
    assert log.now.repository is None
    assert Elsewhere(log, tmp_path).contents.state_id == ""


def test_a_folder_that_becomes_a_repository(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a")
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    user.init()
    head = user.commit()
    log.must(capture)
    assert repository(log).head == head
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_an_unborn_branch(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("a")
    user.git("add", "a")
    user.write("b")
    there, found = taken(user, log, tmp_path)
    assert (found.head, found.branch, found.remote, found.busy) == ("", "refs/heads/main", False, "")
    assert set(there.files()) == {b"a", b"b"}
    assert set(there.files(there.contents.index)) == {b"a"}


def test_a_detached_head(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    head = user.commit()
    user.git("checkout", "-q", "--detach")
    _, found = taken(user, log, tmp_path)
    assert (found.head, found.branch) == (head, "")


def test_commits_that_no_remote_has_come_along(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("a", "1\n")
    old = user.commit("old")
    user.git("clone", "-q", "--bare", str(user.top), str(tmp_path / "remote"))
    user.git("remote", "add", "origin", str(tmp_path / "remote"))
    user.git("fetch", "-q", "origin")
    there, found = taken(user, log, tmp_path)
    assert found.remote
    assert there.contents.state.commits == there.contents.state.shallow[:1] or there.contents.state.commits == (old,)
    shutil.rmtree(there.shadow.folder)
    user.write("a", "2\n")
    mid = user.commit("mid")
    user.write("a", "3\n")
    new = user.commit("new")
    user.git("checkout", "-q", "-b", "side", old)
    user.write("s")
    side = user.commit("side")
    user.git("checkout", "-q", "main")
    there, found = taken(user, log, tmp_path)
    assert not found.remote
    state = there.contents.state
    assert set(state.commits) == {mid, new, side}
    assert set(state.shallow) == {mid, side}
    for commit, text in ((mid, b"2\n"), (new, b"3\n")):
        assert there.git.run("cat-file", "blob", f"{commit}:a", at=there.shadow.at()) == text
    assert state.refs == {"refs/heads/main": new, "refs/heads/side": side}
    shutil.rmtree(there.shadow.folder)
    user.git("push", "-q", "origin", "main", "side")
    there, found = taken(user, log, tmp_path)
    assert found.remote
    assert there.contents.state.commits == (new,)


def test_folders_and_links_in_place_of_files_that_are_read_are_passed_over(
    user: User, log: Log, tmp_path: Path
) -> None:
    user.init()
    user.write("a")
    user.commit()
    for name in (".wal-agentignore", ".git/MERGE_MSG", ".git/info/sparse-checkout", ".git/shallow"):
        (user.top / name).mkdir(parents=True)
    (user.top / ".git/SQUASH_MSG").symlink_to("/etc/passwd")
    (user.top / ".git/info/exclude").unlink(missing_ok=True)
    os.mkfifo(user.top / ".git/info/exclude")
    there, _ = taken(user, log, tmp_path)
    assert there.contents.state.files == {}
    assert there.contents.state.sparse == b""


def test_the_history_that_comes_along_is_bounded(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wal_agent.capture import repository as bounds

    user.init()
    ids = []
    for n in range(6):
        user.write("a", os.urandom(50))
        ids.append(user.commit(f"{n}"))
    monkeypatch.setattr(bounds, "MAX_COMMITS", 3)
    there, _ = taken(user, log, tmp_path)
    assert log.now.left_out == (f".git: {HISTORY}",) and "commits" in describe_unexpected(log.now.left_out, 0)
    packed = there.git.text("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)", at=there.shadow.at())
    assert packed.count("commit") == 3 + 1
    assert there.contents.state.commits == tuple(reversed(ids[-3:]))
    assert there.contents.state.shallow == (ids[3],)
    shutil.rmtree(there.shadow.folder)
    monkeypatch.setattr(bounds, "MAX_HISTORY", 10)
    there, _ = taken(user, log, tmp_path)
    assert there.contents.state.commits == (ids[-1],)
    assert there.contents.state.left_out == (), "no file"


def test_the_newest_of_a_history_that_is_too_big_comes_along(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wal_agent.capture import repository as bounds

    user.init()
    ids = []
    for n in range(8):
        user.write("a", os.urandom(1000))
        ids.append(user.commit(f"{n}"))
    monkeypatch.setattr(bounds, "MAX_HISTORY", 4500)
    there, _ = taken(user, log, tmp_path)
    assert there.contents.state.commits == tuple(reversed(ids[-3:])), "1 and 2 of them; 4 more are too much"
    assert log.now.left_out == (f".git: {HISTORY}",)
    monkeypatch.setattr(bounds, "MAX_HISTORY", 256 << 20)
    user.write("a", b"again")
    there, _ = taken(user, log, tmp_path)
    assert len(there.contents.state.commits) == 8 and not log.now.left_out


def conflict(user: User) -> None:
    user.init()
    user.write("a", "base\n")
    user.write("other", "o\n")
    user.commit("base")
    user.git("checkout", "-q", "-b", "side")
    user.write("a", "side\n")
    user.commit("side")
    user.git("checkout", "-q", "main")
    user.write("a", "main\n")
    user.commit("main")


@pytest.mark.parametrize(
    ("words", "busy", "file"),
    [
        (("merge", "side"), "merge", "MERGE_HEAD"),
        (("rebase", "side"), "rebase", "rebase-merge/git-rebase-todo"),
        (("rebase", "--apply", "side"), "rebase", "rebase-apply/next"),
        (("cherry-pick", "side"), "cherry-pick", "CHERRY_PICK_HEAD"),
        (("revert", "HEAD~1"), "revert", "REVERT_HEAD"),
    ],
)
def test_something_in_progress(
    user: User, log: Log, tmp_path: Path, words: tuple[str, ...], busy: str, file: str
) -> None:
    conflict(user)
    user.git(*words, ok=False)
    there, found = taken(user, log, tmp_path)
    state = there.contents.state
    assert found.busy == busy
    assert state.files[file] == (user.top / ".git" / file).read_bytes()
    assert there.files() == on_disk(user.top)
    assert state.unmerged == user.git("ls-files", "-u", "-z")
    for entry in state.unmerged.split(b"\0")[:-1]:
        there.git.run("cat-file", "-e", entry.split(b" ")[1].decode(), at=there.shadow.at())
    listed = [entry.split(b"\t") for entry in user.git("ls-files", "-s", "-z").split(b"\0")[:-1]]
    assert set(there.files(there.contents.index)) == {path for head, path in listed if head.endswith(b" 0")}


def test_what_is_unmerged_comes_along_also_where_a_remote_has_the_commits(user: User, log: Log, tmp_path: Path) -> None:
    conflict(user)
    user.git("clone", "-q", "--bare", str(user.top), str(tmp_path / "remote"))
    user.git("remote", "add", "origin", str(tmp_path / "remote"))
    user.git("fetch", "-q", "origin")
    user.git("merge", "side", ok=False)
    there, found = taken(user, log, tmp_path)
    assert (found.remote, found.busy) == (True, "merge")
    assert there.contents.state.commits == (found.head,)
    stages = there.contents.state.unmerged.split(b"\0")[:-1]
    contents = [there.git.run("cat-file", "blob", s.split(b" ")[1].decode(), at=there.shadow.at()) for s in stages]
    assert contents == [b"base\n", b"main\n", b"side\n"]


def test_a_bisect_and_a_stash(user: User, log: Log, tmp_path: Path) -> None:
    conflict(user)
    user.write("a", "stashed\n")
    user.git("stash")
    user.git("bisect", "start")
    there, found = taken(user, log, tmp_path)
    assert found.busy == "bisect"
    stash = user.git("rev-parse", "refs/stash").decode().strip()
    assert there.contents.state.refs["refs/stash"] == stash
    assert there.git.run("cat-file", "blob", f"{stash}:a", at=there.shadow.at()) == b"stashed\n"


def test_a_shallow_clone(user: User, log: Log, tmp_path: Path) -> None:
    conflict(user)
    clone = User(tmp_path, "clone")
    clone.git("clone", "-q", "--depth=1", user.top.as_uri(), ".")
    clone.write("new")
    there, found = taken(clone, log, tmp_path)
    assert found.remote
    assert not any(text.startswith("root:") for text in found.identity)
    assert there.contents.state.shallow == (found.head,)
    assert there.files() == on_disk(clone.top)


def test_a_partial_clone_fetches_nothing(user: User, log: Log, tmp_path: Path) -> None:
    conflict(user)
    user.git("config", "uploadpack.allowFilter", "true")
    clone = User(tmp_path, "clone")
    clone.git("clone", "-q", "--filter=blob:none", "--sparse", user.top.as_uri(), ".")
    clone.write("new")
    user.top.rename(tmp_path / "gone")
    there, found = taken(clone, log, tmp_path)
    assert there.contents.state.missing
    assert there.contents.state.sparse
    assert there.files() == on_disk(clone.top)
    assert found.head


def test_a_worktree_and_a_submodule(user: User, log: Log, tmp_path: Path) -> None:
    conflict(user)
    sub = User(tmp_path, "sub")
    sub.init()
    sub.write("inside")
    inner = sub.commit()
    user.git("submodule", "add", "-q", sub.top.as_uri(), "lib")
    user.commit("with lib")
    user.write("lib/inside", "changed there\n")
    there, _ = taken(user, log, tmp_path)
    assert there.files()[b"lib"] == ("160000", inner.encode())
    assert b"lib/inside" not in there.files()
    assert any(line.startswith("lib: ") for line in log.now.left_out)
    shutil.rmtree(there.shadow.folder)

    tree = User(tmp_path, "tree")
    user.git("worktree", "add", "-q", str(tree.top), "side")
    tree.write("here")
    tree.git("add", "here")
    before = fingerprint(user.top / ".git")
    capture = capture_of(tree, tmp_path, log=log)
    log.must(capture)
    assert fingerprint(user.top / ".git") == before
    there = Elsewhere(log, tmp_path)
    assert repository(log).branch == "refs/heads/side"
    assert there.files() == on_disk(tree.top)
    assert b"here" in there.files(there.contents.index)


def test_a_folder_below_the_top(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("top")
    user.write("in/side/a")
    user.write(".gitignore", "*.log\n")
    user.commit()
    user.write("in/side/new")
    user.write("in/side/x.log")
    user.write("in/beside")
    there, found = taken(user, log, tmp_path, "in/side")
    assert found.prefix == "in/side"
    assert set(there.files()) == {b"a", b"new"}
    assert log.now.left_out == ("x.log: ignored",)
    shutil.rmtree(user.top / "in" / "side")
    (user.top / "in" / "side").mkdir()
    there.shadow.wipe()
    there, _ = taken(user, log, tmp_path, "in/side")
    assert there.files() == {}


@pytest.mark.parametrize("same", ["size", "time"])
def test_ignore_rules_above_the_workspace_are_read_again_when_they_change(
    user: User, log: Log, tmp_path: Path, same: str
) -> None:
    user.init()
    user.write("in/side/a")
    user.write("in/.gitignore", "*.tmp\n")
    user.commit()
    user.write("in/side/x.log")
    capture = capture_of(user, tmp_path, "in/side", log=log)
    log.must(capture)
    assert set(Elsewhere(log, tmp_path / "1").files()) == {b"a", b"x.log"}
    rules = user.top / "in" / ".gitignore"
    before = rules.stat().st_mtime_ns
    rules.write_text("*.log\n" if same == "size" else "*.log\n*.tmp\n")
    os.utime(rules, ns=(before, before + (1 if same == "size" else 0)))
    log.must(capture)
    assert set(Elsewhere(log, tmp_path / "2").files()) == {b"a"}


def test_a_folder_that_the_repository_around_it_ignores_is_on_its_own(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write(".gitignore", "*\n")
    user.write("project/a")
    there, found = taken_plain(user, log, tmp_path, "project")
    assert found is None
    assert set(there.files()) == {b"a"}


def taken_plain(user: User, log: Log, tmp_path: Path, sub: str) -> tuple[Elsewhere, Repository | None]:
    with untouched(user):
        log.must(capture_of(user, tmp_path, sub, log=log))
    return Elsewhere(log, tmp_path), log.now.repository


def test_a_sha256_repository(user: User, log: Log, tmp_path: Path) -> None:
    user.git("init", "-q", "--object-format=sha256")
    user.write("a")
    head = user.commit()
    user.write("b")
    capture = capture_of(user, tmp_path, log=log)
    with untouched(user):
        log.must(capture)
    there = Elsewhere(log, tmp_path, "sha256")
    assert len(head) == 64
    assert repository(log).head == head
    assert there.files() == on_disk(user.top)


def test_a_split_index(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("a")
    user.commit()
    user.git("update-index", "--split-index")
    user.write("b")
    user.git("add", "b")
    there, _ = taken(user, log, tmp_path)
    assert set(there.files(there.contents.index)) == {b"a", b"b"}


def test_the_users_git_at_work_is_not_disturbed(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("a")
    user.commit()
    (user.top / ".git" / "index.lock").touch()
    (user.top / ".git" / "HEAD.lock").touch()
    user.write("b")
    there, _ = taken(user, log, tmp_path)
    assert there.files() == on_disk(user.top)


def test_who_a_repository_is(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    first = user.commit()
    user.commit()
    user.git("remote", "add", "origin", "https://me:secret@example.com/a/b.git?token=x")
    _, found = taken(user, log, tmp_path)
    assert found.identity == ("origin:https://example.com/a/b.git", f"root:{first}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://u:p@h.example/x", "https://h.example/x"),
        ("ssh://git@h.example:22/x", "ssh://h.example:22/x"),
        ("git@h.example:a/b.git", "git@h.example:a/b.git"),
        ("/some/path", "/some/path"),
        ("https://[broken/x", ""),
    ],
)
def test_an_origin_is_told_without_credentials(url: str, told: str) -> None:
    assert strip_credentials(url) == told


def test_a_folder_that_becomes_a_link_to_one_like_it(user: User, log: Log, tmp_path: Path) -> None:
    """To a look through the link nothing has changed."""
    user.write("d/x")
    user.write("d/y")
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    (user.top / "d").rename(user.top / "e")
    (user.top / "d").symlink_to("e")
    log.must(capture)
    there = Elsewhere(log, tmp_path)
    assert there.files() == on_disk(user.top)
    shutil.rmtree(there.shadow.folder)
    (user.top / "d").unlink()
    (user.top / "e").rename(user.top / "d")
    log.must(capture)
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


# ---- what is left out


def test_files_that_are_ignored_are_told_and_tracked_ones_kept(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write(".gitignore", "*.log\nnode_modules/\n!node_modules/\n/out/\n")
    user.write("kept.log")
    user.git("add", "-f", "kept.log")
    user.write("other.log")
    user.write("out/x")
    user.write("private")
    user.write("mine")
    user.write(".git/info/exclude", "private\n")
    user.write("globally")
    (user.home / ".config" / "git").mkdir(parents=True)
    (user.home / ".config" / "git" / "ignore").write_text("globally\n")
    there, _ = taken(user, log, tmp_path)
    assert set(there.files()) == {b".gitignore", b"kept.log", b"mine"}
    assert set(log.now.left_out) == {f"{n}: ignored" for n in ("other.log", "out", "private", "globally")}
    shutil.rmtree(there.shadow.folder)
    user.git("config", "--global", "core.excludesFile", "~/mine-too")
    (user.home / "mine-too").write_text("mine\n")
    there, _ = taken(user, log, tmp_path)
    assert set(there.files()) == {b".gitignore", b"kept.log", b"globally"}


def test_rules_of_wal_agents_own(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write(".gitignore", ".env\nx/*\n")
    user.write("in/.env")
    user.write("in/big/data")
    user.write("in/other/big/data")
    user.write("in/tracked.bin")
    user.git("add", "-A")
    user.write("in/.wal-agentignore", "# words\n!.env\n/big\n*.bin\n")
    there, _ = taken(user, log, tmp_path, "in")
    assert set(there.files()) == {b".env", b".wal-agentignore", b"other/big/data"}


def test_what_is_ignored_later_leaves_the_capture(user: User, log: Log, tmp_path: Path) -> None:
    for n in range(5):
        user.write(f"node_modules/{n}")
    capture = capture_of(user, tmp_path, log=log)
    assert log.must(capture).files == 5
    user.write(".gitignore", "node_modules\n")
    assert log.must(capture).files == 1
    assert log.now.left_out == ("node_modules: ignored",)
    (user.top / ".gitignore").unlink()
    assert log.must(capture).files == 5


def test_big_files_and_a_full_workspace(user: User, log: Log, tmp_path: Path) -> None:
    user.write("small", b"x" * 10)
    user.write("big", b"x" * 2000)
    user.write("some", b"x" * 900)
    user.write("more", b"x" * 901)
    capture = capture_of(user, tmp_path, caps=Caps(total=1500, file=1000), log=log)
    log.must(capture)
    there = Elsewhere(log, tmp_path)
    assert set(there.files()) == {b"small", b"some"}
    assert set(log.now.left_out) == {"big: bigger than 0.000954 MiB", "more: no room: the workspace is over its cap"}
    assert (log.now.files, log.now.size) == (2, 910)
    shutil.rmtree(there.shadow.folder)
    user.write("small", b"x" * 2000)  # a captured file that grows over the cap is not kept as it was
    log.must(capture)
    assert set(Elsewhere(log, tmp_path).files()) == {b"some"}


READS_ALL = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
AS_OTHERS = f"""
import ctypes, os, sys
for capability in {READS_ALL}:
    assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP: what is executed lacks it
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_an_unreadable_file_by_its_mode(user: User, log: Log, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Root reads everything, so there the test runs once more without that."""
    if os.getuid() == 0 and "AS_OTHERS" not in os.environ:
        again = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'again'}",
            request.node.nodeid,
        ]
        subprocess.run(
            [sys.executable, "-c", AS_OTHERS, *again],
            cwd=request.config.rootpath,
            env={**os.environ, "AS_OTHERS": "1"},
            check=True,
        )
        return
    user.write("a")
    user.write("secret", mode=0)
    user.write("closed/x")
    user.write("later/x")
    (user.top / "closed").chmod(0)
    capture = capture_of(user, tmp_path, log=log)
    try:
        log.must(capture)
        assert list(log.now.left_out) == ["closed: cannot be read", "secret: cannot be read"]
        (user.top / "later").chmod(0)
        log.must(capture)
        assert list(log.now.left_out) == [f"{n}: cannot be read" for n in ("closed", "later", "secret")]
    finally:
        for name in ("closed", "later"):
            (user.top / name).chmod(0o755)
    assert set(Elsewhere(log, tmp_path).files()) == {b"a", b"later/x"}


def test_folders_too_deep_for_a_path_are_reported(user: User, log: Log, tmp_path: Path) -> None:
    """I4: git says of them no reason, as its line is full."""
    folder = os.open(user.top, os.O_RDONLY)
    for name in ("deep", *["d" * 200] * 25):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("f", os.O_CREAT, dir_fd=folder))
    os.close(folder)
    user.write("a")
    log.must(capture_of(user, tmp_path, log=log))
    (line,) = log.now.left_out
    assert line.startswith("deep/ddd") and line.endswith(": cannot be read")


def test_an_unreadable_file_does_not_hold_the_others_up(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., bool] = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not os.fsencode(path).endswith(b"secret") and real(path, mode))
    user.write("a")
    user.write("secret")
    log.must(capture_of(user, tmp_path, log=log))
    assert set(Elsewhere(log, tmp_path).files()) == {b"a"}
    assert log.now.left_out == ("secret: cannot be read",)


def test_a_file_that_goes_while_git_reads_takes_no_other_with_it(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "d", "new\nline"):
        user.write(name)
    capture = capture_of(user, tmp_path, log=log)
    real = capture._scanner._add

    def late(at: object, top: Path, paths: object, out: object) -> None:
        if (top / "b").is_file():
            (top / "b").unlink()
            (top / "b").mkdir()  # git refuses a folder where a file was listed
            (top / "new\nline").unlink()
        real(at, top, paths, out)  # type: ignore[arg-type]

    monkeypatch.setattr(capture._scanner, "_add", late)
    log.must(capture)
    assert set(Elsewhere(log, tmp_path).files()) == {b"a", b"c", b"d"}


def test_files_that_change_while_they_are_read_are_right_in_the_end(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    capture = capture_of(user, tmp_path, log=log)
    stop = threading.Event()

    def work() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            path = user.write(f"d{n % 3}/{n % 7}", bytes([n % 256]) * (n % 4) * 9000)  # often of equal size
            if n % 11 == 0:
                path.unlink()
            if n % 50 == 0:
                shutil.rmtree(user.top / "d0", ignore_errors=True)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for n in range(6):
            log.take(capture, n)
    finally:
        stop.set()
        worker.join()
    log.take(capture, 99)
    assert log.records[-1].holds == 99
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


def test_pipes_sockets_and_repositories_inside(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("was")
    user.commit()
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    (user.top / "was").unlink()
    os.mkfifo(user.top / "was")
    os.mkfifo(user.top / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(user.top)
        listening.bind("sock")
        os.chdir(here)
        for name, commits in (("born", True), ("unborn", False)):
            inner = User(user.top, name)
            inner.init()
            inner.write("x")
            if commits:
                inner.commit()
        shutil.rmtree(user.top / "home")
        with untouched(user):
            log.must(capture)
    there = Elsewhere(log, tmp_path)
    assert set(there.files()) == {b"born"}
    assert there.files()[b"born"][0] == "160000"
    assert log.now.left_out == (
        "unborn: a repository of its own without a commit",
        "born: a repository of its own; only which commit it is at is saved",
        "was: not a file, folder or link",
    )
    shutil.rmtree(there.shadow.folder)
    shutil.rmtree(user.top / "born" / ".git")
    log.must(capture)
    assert set(Elsewhere(log, tmp_path).files()) == {b"born/x"}


def test_our_own_folders_and_the_bucket_are_never_captured(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("a")
    user.write("bucket*/job/log/1=", b"secret")
    user.write("bucketed/x")
    user.write("key file", b"secret")
    user.git("add", "-A", "-f")
    private = (user.top / "bucket*", user.top / "key file")
    capture = WorkspaceCapture(user.top / "state", user.top.resolve(), user.env, log.put, private)
    log.must(capture)
    user.write("b")
    log.must(capture)
    assert set(Elsewhere(log, tmp_path).files()) == {b"a", b"b", b"bucketed/x"}


def test_what_is_left_out_is_told_within_bounds(user: User, log: Log, tmp_path: Path) -> None:
    user.write(".gitignore", "*.log\n")
    for n in range(30):
        user.write(f"{n:02}.log")
    user.write("evil\x1b[2J\n.log")
    log.must(capture_of(user, tmp_path, log=log))
    assert len(log.now.left_out) == 20
    assert log.now.left_out_more == 11
    assert all(line.isprintable() for line in log.now.left_out)


# ---- what a restore must know


def test_over_the_cap_it_is_not_the_edits_that_are_left_out(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("asset", b"x" * 1000)
    user.write("src", "v0\n")
    user.write("giant", b"g" * 1500)
    user.commit()
    capture = capture_of(user, tmp_path, caps=Caps(total=1010, file=2000), log=log)
    log.must(capture)
    user.write("src", "grown " * 100)
    log.must(capture)
    user.write("asset", b"y" * 1000)
    user.write("giant", b"edited" * 200)  # was left out
    user.write("new", b"z" * 100)
    log.must(capture)
    there = Elsewhere(log, tmp_path)
    assert there.files() == {k: v for k, v in on_disk(user.top).items() if k != b"new"}
    assert there.contents.state.left_out == (b"new",)


def test_what_is_left_out_by_need_is_named_whole(user: User, log: Log, tmp_path: Path) -> None:
    user.init()
    user.write("sub/big\udcff", b"x" * 2000)
    user.write("big2", b"x" * 2000)
    user.write(".gitignore", "ignored\n")
    user.write("ignored", b"x" * 2000)
    user.commit()
    (user.top / "inner").mkdir()
    user.git("init", "-q", cwd=user.top / "inner")
    caps = Caps(total=10_000, file=1000)
    log.must(capture_of(user, tmp_path, caps=caps, log=log))
    assert Elsewhere(log, tmp_path).contents.state.left_out == (b"big2", b"inner", b"sub/big\xff")
    below, there = Log(), tmp_path / "below"
    there.mkdir()
    below.must(capture_of(user, there, "sub", caps=caps, log=below))
    assert Elsewhere(below, there).contents.state.left_out == (b"big\xff",)


def test_the_list_of_what_stays_is_bounded() -> None:
    out = LeftOut()
    for n in range(30_000):
        out.add(b"folder/" + b"x" * 40 + b"%d" % n, candidates.FULL)
    out.add(b"lost", candidates.IGNORED)
    out.add(b"top", candidates.UNREADABLE)
    assert out.stays == (b"folder", b"top")
    for n in range(30_000):
        out.add(b"x" * 40 + b"%d" % n, candidates.FULL)
    assert sum(map(len, out.stays)) <= candidates.MAX_PATHS_SIZE


@pytest.mark.parametrize("many", [False, True])
def test_files_that_only_their_owner_may_open_are_named(
    user: User, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    if many:
        monkeypatch.setattr("wal_agent.capture.scan.MAX_MODES", 1)
    for name, mode in (("open", 0o644), ("group", 0o640), ("key", 0o600), ("sub/run", 0o700)):
        user.write(name, mode=mode)
    (user.top / "link").symlink_to("key")

    def told(sub: str = "") -> tuple[bytes, ...]:
        there = Elsewhere(log, tmp_path / "there")
        shutil.rmtree(there.shadow.folder)
        return there.contents.state.private

    (tmp_path / "there").mkdir()
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    assert told() == (b"key", b"sub/run")
    user.write("open", "more\n", 0o600)
    (user.top / "key").unlink()
    log.must(capture)
    assert told() == (b"open", b"sub/run")
    (user.top / "group").chmod(0o600)  # only its mode
    (user.top / "sub" / "run").chmod(0o755)
    if many:
        assert capture.capture(0, 1.0) is None
        capture = capture_of(user, tmp_path, log=log)  # the next run sees it
        capture.go_on_from(log.now)
    log.must(capture)
    assert told() == (b"group", b"open")


# ---- jobs that share a folder


def of_job(user: User, log: Log, root: Path, job: str) -> WorkspaceCapture:
    return WorkspaceCapture(root / "state", user.top.resolve(), user.env, log.put, job=job)


def test_jobs_in_one_folder_keep_what_is_each_ones(user: User, log: Log, tmp_path: Path) -> None:
    user.write("a", os.urandom(5000))
    one, other = of_job(user, log, tmp_path, "one"), Log()
    first = log.must(one)
    two = of_job(user, other, tmp_path, "two")
    for n in range(10):
        user.write("b", f"{n}")
        assert other.must(two).whole == (n == 0)
        two.acked(other.now.commit)
    shadow = one._shadow
    assert shadow.has(first.commit)
    assert shadow.ref(f"{first.commit}^{{tree}}")
    if read_marks(user.top):
        assert read_marks(user.top, "one") == (first.commit,)
        assert read_marks(user.top, "two")[0] == other.now.commit
    again = of_job(user, log, tmp_path, "one")
    again.go_on_from(log.now)
    assert not log.must(again).whole
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)
    shadow.save(first.commit)  # a restore: the folder is nothing else any more
    assert not shadow.has(other.now.commit)


def test_a_job_that_begins_anew_does_not_make_the_other_do_so_for_ever(user: User, log: Log, tmp_path: Path) -> None:
    one, other = of_job(user, log, tmp_path, "one"), Log()
    two = of_job(user, other, tmp_path, "two")
    user.write("a")
    log.must(one)
    other.must(two)
    one._shadow.wipe()
    for n in range(3):
        for each, capture in ((log, one), (other, two)):
            user.write("a", f"{n} {capture is one}")
            assert each.must(capture).whole == (n == 0)


def test_what_the_log_may_have_stays_until_it_is_known(user: User, log: Log, tmp_path: Path) -> None:
    """Also where a whole capture comes behind it and never reaches the log."""
    capture = of_job(user, log, tmp_path, "j")
    user.write("a", os.urandom(1000))
    first = log.must(capture)
    capture._saved = None  # the next one is whole, and tidies up
    user.write("a", os.urandom(1000))
    second = log.must(capture)
    assert second.whole
    tree = f"{first.commit}^{{tree}}"
    assert capture._shadow.ref(tree)
    for n in range(2 * MAX_MARKS):
        user.write("a", f"{n}")
        log.must(capture)
    assert capture.many_waiting
    assert capture._shadow.ref(tree)
    capture.acked(log.now.commit)
    assert not capture.many_waiting
    capture._saved = None
    user.write("a", "last")
    log.must(capture)
    assert not capture._shadow.ref(tree)


def test_our_repository_does_not_grow_with_each_beginning(user: User, log: Log, tmp_path: Path) -> None:
    capture = capture_of(user, tmp_path, log=log)
    sizes = []
    for _ in range(6):
        user.write("big", os.urandom(200_000))
        log.must(capture)
        capture.acked(log.now.commit)
        capture._saved = None  # as after a restore, or when the later packs outgrew the first
        sizes.append(sum(path.stat().st_size for path in capture._shadow.objects.rglob("*") if path.is_file()))
    assert sizes[-1] < 700_000
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


@pytest.mark.parametrize(
    ("packs", "grown", "wasted"),
    [
        ((10, 10), 0, False),  # the later ones have as much as the first one holds
        ((10, 11), 0, True),
        ((10, 30), 10, False),  # 10 of them took in new files
        ((10, 31), 10, True),
        ((1, 4), 0, False),  # always so much
        ((1, 5), 0, True),
        ((100, *[0] * 6), 0, False),
        ((100, *[0] * 7), 0, True),  # as many as the log takes
    ],
)
def test_packs_are_wasted_where_the_later_ones_outgrow_the_first(
    monkeypatch: pytest.MonkeyPatch, packs: tuple[int, ...], grown: int, wasted: bool
) -> None:
    monkeypatch.setattr(workspace, "PACK_SLACK", 4)
    monkeypatch.setattr(workspace, "MAX_PACKS", 8)
    record = Workspace(time=1.0, holds=0, commit="c", grown=grown)
    assert workspace.SavedCapture(Contents("c", "t"), None, packs, record).wasted == wasted


def test_a_repository_inside_that_loses_its_git_between_two_runs_is_captured(
    user: User, log: Log, tmp_path: Path
) -> None:
    inner = user.top / "inner"
    user.write("inner/x", "kept")
    user.git("init", "-q", cwd=inner)
    user.git("add", "x", cwd=inner)
    user.git("commit", "-q", "-m", "x", cwd=inner)
    log.must(capture_of(user, tmp_path, log=log))
    assert b"inner/x" not in Elsewhere(log, tmp_path).files()
    shutil.rmtree(inner / ".git")
    log.must(capture_of(user, tmp_path, log=log))
    assert b"inner/x" in Elsewhere(log, tmp_path).files()

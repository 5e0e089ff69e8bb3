"""capture/git.py: what a git process is given, and what is believed of it. A script on PATH stands for git."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from wal_agent.budget import FOREIGN
from wal_agent.capture.git import (
    NICE,
    OWN,
    Change,
    Git,
    GitBounds,
    GitDirs,
    GitFailed,
    GitMissing,
    GitStopped,
    diff_trees,
    file_sizes,
    find_pipes,
    list_reachable,
    object_sizes,
    reap_others,
)
from wal_agent.capture.repository import Location, find_location
from wal_agent.capture.scan import users_excludes

Fake = Callable[[str], Git]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """A git that is this shell script, found in a folder of a user's PATH."""

    def make(script: str, folder: str = "bin") -> Git:
        program = tmp_path / folder / "git"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return Git({"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": "/h", "XDG_CONFIG_HOME": "/x", "A": "1"})

    return make


def variables(said: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in said.decode().splitlines())


def test_only_named_variables_reach_git_and_the_users_settings_only_when_asked(fake: Fake) -> None:
    git = fake("exec env")
    alone, asked = variables(git.run("x")), variables(git.run("x", user_settings=True))
    assert "A" not in alone and "A" not in asked
    assert (alone["HOME"], alone["XDG_CONFIG_HOME"], alone["GIT_CONFIG_NOSYSTEM"]) == ("/nonexistent",) * 2 + ("1",)
    assert (asked["HOME"], asked["XDG_CONFIG_HOME"]) == ("/h", "/x") and "GIT_CONFIG_NOSYSTEM" not in asked
    assert alone["GIT_LITERAL_PATHSPECS"] == "1"
    assert "GIT_LITERAL_PATHSPECS" not in variables(git.run("check-ignore"))


def test_a_repository_is_named_whole_and_odd_paths_are_quoted() -> None:
    assert GitDirs(Path("/g")).env == {"GIT_DIR": "/g"}
    odd = tuple(map(Path, ("/plain", "/a:b", '/a:"\\b', '"c')))
    env = GitDirs(Path("/g"), Path("/w"), Path("/i"), Path("/o"), odd).env
    assert env == {
        "GIT_DIR": "/g",
        "GIT_WORK_TREE": "/w",
        "GIT_INDEX_FILE": "/i",
        "GIT_OBJECT_DIRECTORY": "/o",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": '/plain:"/a:b":"/a:\\"\\\\b":"\\"c"',
    }


def test_a_git_of_a_relative_folder_or_of_the_project_is_not_run(fake: Fake, tmp_path: Path) -> None:
    git = fake("echo mine")
    git.project = (tmp_path / "bin").resolve()
    assert git.program() != str(tmp_path / "bin/git")
    git.env = {"PATH": f"{tmp_path / 'bin'}:bin:", "HOME": "/h"}
    with pytest.raises(GitMissing):
        git.run("x")
    git.project = None
    assert git.run("x") == b"mine\n"


def test_a_folder_of_path_that_links_to_itself_is_passed_over(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    git = fake("echo mine")
    git.project = tmp_path / "work"
    git.env = {**git.env, "PATH": f"{tmp_path / 'circle'}:{git.env['PATH']}", "HOME": str(tmp_path / "circle")}
    assert git.run("x") == b"mine\n"


@pytest.mark.parametrize("size", [1, 1 << 16, 70_000])
def test_as_much_as_is_taken_is_whole_and_one_byte_more_is_an_error(fake: Fake, size: int) -> None:
    """The script lives a little longer than its output, so that an end that comes too early shows."""
    git = fake(f"head -c {size} /dev/zero; exec sleep 0.1")
    assert git.run("x", within=GitBounds(size)) == bytes(size)
    with pytest.raises(GitFailed):
        git.run("x", within=GitBounds(size - 1))
    with pytest.raises(GitFailed, match="more to say than"):
        fake(f"head -c {size} /dev/zero").run("x", within=GitBounds(size - 1), ok=(0, -9))


def test_an_exit_code_that_is_not_allowed_is_an_error_with_what_was_said(fake: Fake) -> None:
    git = fake("echo out; echo why >&2; exit 3")
    with pytest.raises(GitFailed, match=r"^git log -1 ended with 3: why$") as failed:
        git.run("log", "-1", "HEAD")
    assert (failed.value.code, failed.value.said) == (3, "why\n")
    warned: list[str] = []
    assert git.run("log", ok=(0, 3), warned=warned) == b"out\n"
    assert warned == ["why", ""]
    assert git.text("log", ok=(3,)) == "out"


def test_input_arrives_and_output_can_go_to_a_file(fake: Fake) -> None:
    git = fake("exec cat")
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
        given.write(b"from a file")
        given.seek(0)
        assert git.run("x", input=b"two\n") == b"two\n"
        assert git.run("x", input=given) == b"from a file"
        assert git.run("x", input=b"away", out=out) == b""
        out.seek(0)
        assert out.read() == b"away"


def test_a_git_that_takes_too_long_is_killed_and_known_no_more(fake: Fake) -> None:
    git = fake("exec sleep 60")
    with pytest.raises(GitFailed) as failed:
        git.run("x", within=GitBounds(timeout=0.05))
    assert failed.value.code == -9 and not OWN.pids and git._running is None


def test_while_it_runs_it_is_known_as_our_own_and_yields_to_the_agent(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaps the agent's leftovers leaves it alone, and the agent has the machine first."""
    git, seen = fake("exec cat"), list[tuple[bool, int, bool]]()

    def look(process: subprocess.Popen[bytes], most: int) -> bytes:
        known = process.pid in OWN.pids and git._running is process
        seen.append((known, os.getpriority(os.PRIO_PROCESS, process.pid), os.getsid(process.pid) == process.pid))
        return b"said"

    monkeypatch.setattr("wal_agent.capture.git._read", look)
    assert git.run("x") == b"said"
    ((known, nice, leads),) = seen
    assert known and leads
    assert nice in (NICE, max(NICE, os.getpriority(os.PRIO_PROCESS, 0))), "a niced root may lower it again"
    assert not OWN.pids and git._running is None


def test_nothing_of_a_process_that_has_ended_is_left_behind(fake: Fake) -> None:
    """A capture every few seconds would fill the process with threads that wait for ten minutes each."""
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for script, code in (("exit 0", 0), ("exit 3", 3)):
        fake(script).run("x", ok=(code,))
    left = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and thread not in timers]
    for thread in left:
        thread.join(5)
    assert not [thread for thread in left if thread.is_alive()]


def test_a_dead_child_of_ours_is_left_to_the_thread_that_waits_for_it(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only for that moment: others are reaped."""
    other = subprocess.Popen(["true"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    reaped: list[tuple[int, int]] = []
    monkeypatch.setattr(OWN, "pids", {other.pid})
    reap_others(lambda pid, status: reaped.append((pid, status)))
    assert other.pid not in dict(reaped)
    monkeypatch.setattr(OWN, "pids", set())
    with suppress(ChildProcessError):
        reap_others(lambda pid, status: reaped.append((pid, status)))
    assert (other.pid, 0) in reaped
    other.returncode = 0


def test_what_is_not_on_this_machine_is_passed_over_only_where_that_is_asked_for(fake: Fake) -> None:
    git, at = fake('for word; do echo "$word"; done; cat'), GitDirs(Path("/"))
    strict, lenient = ([*list_reachable(git, at, ["a"], ["b"], strict=strict)] for strict in (True, False))
    assert strict[-2:] == [b"a", b"^b"]
    assert {*lenient} - {*strict} == {b"--missing=allow-any", b"--ignore-missing"}


def test_files_of_a_tree_have_sizes_and_repositories_inside_none(fake: Fake) -> None:
    git = fake("printf '100644 blob aa      12\\ta b\\000160000 commit bb       -\\tc\\000100644 blob dd 0\\te\\000'")
    assert [*file_sizes(git, GitDirs(Path("/")), "t")] == [12, 0]


def test_after_a_stop_nothing_is_started_until_it_may_go_on(fake: Fake, tmp_path: Path) -> None:
    git = fake(f"echo >>{tmp_path}/ran")
    git.stop()
    with pytest.raises(GitStopped):
        git.run("x")
    assert not (tmp_path / "ran").exists()
    git.go_on()
    git.run("x")
    assert (tmp_path / "ran").exists() and not OWN.pids


def test_a_folder_that_is_gone_is_a_failure_of_git(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(GitFailed) as failed:
        fake("true").run("x", cwd=tmp_path / "gone")
    assert failed.value.code == 127 and not OWN.pids


def test_a_difference_is_read_field_by_field(fake: Fake) -> None:
    first, second = ":100644 120000 aa bb T\\0one\\0", ":000000 040000 00 cc A\\0two\\0"
    git = fake(f"printf '{first}{second}'")
    found = [*diff_trees(git, GitDirs(Path("/")), "old", "new")]
    assert found == [
        Change(b"100644", b"120000", "aa", "bb", b"one"),
        Change(b"000000", b"040000", "00", "cc", b"two"),
    ]
    assert [(c.old_blob, c.new_blob, c.new_tree) for c in found] == [(True, True, False), (False, False, True)]
    assert [*diff_trees(fake("exit 1"), GitDirs(Path("/")), "same", "same")] == []


def test_what_is_not_there_has_no_size(fake: Fake) -> None:
    git = fake("printf '12\\naa missing\\n0\\n'")
    assert object_sizes(git, GitDirs(Path("/")), ["a", "b", "c"]) == [12, 0, 0]
    assert object_sizes(fake("exit 1"), GitDirs(Path("/")), []) == []


def test_output_in_many_pieces_is_counted_to_the_byte(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_agent.capture.git._PIPE", 1)
    git = fake("printf 12345")
    assert git.run("x", within=GitBounds(5)) == b"12345"
    with pytest.raises(GitFailed, match="more to say than 4 bytes"):
        git.run("x", within=GitBounds(4), ok=(0, -9))


def test_it_runs_in_the_folder_that_is_named_and_else_in_its_repositorys(fake: Fake, tmp_path: Path) -> None:
    git = fake("pwd -P")
    for name in ("repo", "top", "here"):
        (tmp_path / name).mkdir()
    repo, top, here = (tmp_path / name for name in ("repo", "top", "here"))
    assert git.text("x", at=GitDirs(repo, cwd=top), cwd=here) == str(here)
    assert git.text("x", at=GitDirs(repo, cwd=top)) == str(top)
    assert git.text("x", at=GitDirs(repo)) == str(repo)
    assert git.text("x") == "/"


def test_warnings_are_read_up_to_a_bound(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_agent.capture.git.MAX_WARNED", 4)
    warned: list[str] = []
    assert fake("echo one >&2; echo two >&2").run("x", warned=warned) == b"" and warned == ["one", ""]


def test_a_thread_that_would_end_a_git_does_not_keep_us_alive(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []
    real = threading.Timer.start

    def start(timer: threading.Timer) -> None:
        timers.append(timer)
        real(timer)

    monkeypatch.setattr(threading.Timer, "start", start)
    git = fake("exit 0")
    git.run("x")
    git.run("x", within=GitBounds(timeout=7.0))
    assert [(timer.daemon, timer.interval) for timer in timers] == [(True, git.timeout), (True, 7.0)]
    assert all(timer.finished.is_set() for timer in timers), "they are called off"


@pytest.mark.parametrize(("said", "words"), [("why", "git log -1 ended with 2: why"), ("x" * 600, "x" * 500)])
def test_a_failure_names_two_words_and_the_beginning_of_what_was_said(said: str, words: str) -> None:
    assert str(GitFailed(("log", "-1", "HEAD"), 2, said)).endswith(words)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds another process")
def test_a_git_that_reads_foreign_bytes_has_so_much_memory(fake: Fake) -> None:
    """I9. The bound comes once it runs, so it waits for that."""
    git = fake(
        "n=0; while [ $n -lt 100 ] && [ $(ulimit -d) = unlimited ]; do sleep 0.05; n=$((n + 1)); done; ulimit -d"
    )
    assert int(git.run("x", within=GitBounds(foreign=True))) == FOREIGN.git_memory // 1024


def test_so_many_pipes_are_known_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    for name in "abc":
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / ".gitignore")
    os.mkfifo(tmp_path / "a" / "no-file-of-gits")
    assert len(find_pipes([tmp_path])) == 3
    monkeypatch.setattr("wal_agent.capture.git.MAX_PIPES", 2)
    assert len(find_pipes([tmp_path])) == 2


@pytest.mark.parametrize("name", ["HEAD", "config", "commondir", "packed-refs", "objects/info/alternates"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_repository_that_would_block_git_is_none(tmp_path: Path, name: str, linked: bool) -> None:
    """A stranger's folder with a pipe in `.git`: nothing waits for its writer."""
    folder = tmp_path / "clone"
    git_dir = (tmp_path / "elsewhere" if linked else folder) / ".git"
    subprocess.run(["git", "init", "-q", str(git_dir.parent)], check=True)
    folder.mkdir(exist_ok=True)
    if linked:
        (folder / ".git").write_text(f"gitdir: {git_dir}\n")
    (git_dir / name).unlink(missing_ok=True)
    os.mkfifo(git_dir / name)
    git = Git({"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, timeout=10)
    began = find_location(git, folder)
    assert began == Location(folder) and users_excludes(git, began, {}) is None

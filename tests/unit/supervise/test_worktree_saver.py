"""The working tree is saved beside the agent: after calls that change something, and without anybody waiting for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from tests.unit.capture.trees import Elsewhere, Log, User, on_disk
from tests.unit.recovery.lab import git
from tests.unit.supervise.crew import PATIENCE, Post, ended, run_context, short_folder, starting, until
from wal_agent.agents.base import Agent
from wal_agent.capture import workspace as captures
from wal_agent.capture.candidates import BROUGHT_IN, OUTSIDE, Caps
from wal_agent.capture.git import OWN, Git
from wal_agent.capture.inside import TreeCapture
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.errors import UsageError
from wal_agent.events import CallEnded, PhaseChanged, emit_after
from wal_agent.paths import CREDENTIALS
from wal_agent.records import End, Payload, Workspace
from wal_agent.supervise import processes, worktree
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.processes import Child
from wal_agent.supervise.settings import load
from wal_agent.supervise.worktree import (
    BEHIND,
    DEBOUNCE,
    MAX_IDLE,
    MOVED,
    NEVER,
    NO_GIT,
    RUNNING,
    WorktreeSaver,
    due,
    idle_rest,
    is_quick,
    never_captured,
    open_worktree_capture,
    rest_after,
    running_rest,
    too_wide,
)


class Desk:
    """A run's gate and tree saver over one workspace; the log is in memory."""

    def __init__(self, root: Path, interval: float = 3600.0, progress: Callable[[str], None] = lambda _: None) -> None:
        self.user = User(root)
        self.user.write("a", "1\n")
        self.post = Post(self.user.top)
        self.errors: list[BaseException] = []
        self.capture = TreeCapture(root / "state", self.user.top.resolve(), self.user.env, self._put)
        self.put: Callable[[bytes], Payload] = self.post.job.blobs.put_payload
        context = run_context(self.post.job, SystemClock(), self.user.top, autosave=interval)
        self.saver = WorktreeSaver(context, self.post.gate, self.capture, self.errors.append, progress)
        self.post.listeners.append(emit_after({CallEnded: self.saver.on_call_ended}, lambda _: None))

    def _put(self, data: bytes) -> Payload:
        return self.put(data)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.post.committing():
            self.saver.start()
            try:
                yield
            finally:
                self.saver.pause()
                self.saver.finish(last=False)
                assert self.saver.stop(PATIENCE)
        assert self.errors == []

    def captures(self) -> list[Workspace]:
        return [r for r in self.post.log() if isinstance(r, Workspace)]

    def restored(self, folder: Path) -> dict[bytes, tuple[str, bytes]]:
        """What a machine with nothing but the bucket gets."""
        log = Log()
        log.put = self.post.job.blobs.put_payload  # type: ignore[method-assign]
        log.state = self.post.state
        packs = log.now.packs
        log.bytes_of = lambda pack: b"".join(self.post.job.blobs.fetch(p) for p in pack.parts)  # type: ignore[method-assign]
        assert packs
        return Elsewhere(log, folder).files()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_bucket_alone_gives_back_what_a_call_has_changed(desk: Desk, tmp_path: Path) -> None:
    with desk.running():
        assert isinstance(desk.post.gate.begin_call(starting("write_file", file_path="big")), object)
        desk.user.write("big", os.urandom(300_000))
        desk.post.gate.finish_call(ended("write_file", file_path="big"))
        until(lambda: any(c.holds == 1 for c in desk.captures()), "a capture behind the call")
    assert desk.restored(tmp_path) == on_disk(desk.user.top)
    assert desk.post.state.workspace is not None
    assert desk.post.state.workspace.holds == 1


def test_a_call_in_a_linked_worktree_is_saved_with_its_commit(desk: Desk) -> None:
    """As an agent's subagent works: the workspace's own files do not change, and its worktree is ignored."""
    desk.user.init()
    desk.user.write(".gitignore", ".claude/\n")
    desk.user.commit()
    side = desk.user.top / ".claude" / "worktrees" / "side"
    with desk.running():
        desk.post.begin("run_shell_command", command="git worktree add")
        desk.user.git("worktree", "add", "-q", str(side))
        (side / "work").write_text("x\n")
        desk.post.gate.finish_call(ended("run_shell_command", command="git worktree add"))
        until(lambda: any(c.holds == 1 for c in desk.captures()), "a capture behind the call")
    inside = desk.post.state.inside[".claude/worktrees/side"]
    assert inside.files == 3 and inside.repository is not None and inside.repository.linked


def test_only_calls_that_may_change_something_ask_for_a_capture(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(desk.saver, "poke", lambda: asked.append(1))
    for tool in ("read_file", "write_file"):
        desk.post.begin(tool, file_path="a")
        desk.post.gate.finish_call(ended(tool, file_path="a"))
    assert asked == [1]
    call = desk.post.begin("write_file", file_path="b")
    desk.post.gate.end_call(call, "refused", "no")
    assert asked == [1]
    call = desk.post.begin("write_file", file_path="b")
    desk.post.gate.end_call(call, "interrupted", "cancelled", by="session")
    assert asked == [1, 1]


def test_a_tree_that_was_never_saved_is_saved_once_the_agent_is_prompted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval is an hour. A call that is cut off first would find an empty folder on another machine."""
    prompted = PhaseChanged("awaiting_user", "awaiting_model", "", 0.0)
    with desk.running():
        desk.saver.on_phase(prompted)
        until(desk.captures, "a capture before any call")
    asked: list[int] = []
    monkeypatch.setattr(desk.saver, "poke", lambda: asked.append(1))
    desk.saver.on_phase(prompted)
    assert desk.post.state.workspace is not None and asked == [], "later turns wait for their calls"


def test_a_capture_names_no_call_that_still_runs(desk: Desk) -> None:
    gate = desk.post.gate
    assert gate.ended_upto() == 0
    first = desk.post.begin("write_file", file_path="a")
    second = desk.post.begin("write_file", file_path="b")
    third = desk.post.begin("read_file", file_path="c")
    gate.finish_call(ended("write_file", file_path="b"))
    assert gate.ended_upto() == first - 1
    assert gate.ended_beyond() == (second,)
    gate.finish_call(ended("write_file", file_path="a"))
    assert gate.ended_upto() == second
    assert gate.ended_beyond() == ()
    gate.finish_call(ended("read_file", file_path="c"))
    assert gate.ended_upto() == third
    again = Post(desk.user.top)
    again.job.writer.next_call()
    assert again.gate.ended_upto() == 0


def test_calls_of_earlier_runs_have_ended(desk: Desk) -> None:
    desk.post.begin("write_file", file_path="a")
    desk.post.commit()
    later = desk.post.world.take_over("b")
    from wal_agent.calls.rules.table import load_rules
    from wal_agent.supervise.gate import Gate

    gate = Gate(run_context(later, desk.post.world.clock), load_rules, lambda: True)
    assert gate.ended_upto() == 1


def test_it_saves_by_itself_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "IDLE", 0.0)
    desk = Desk(tmp_path, interval=0.05)
    with desk.running():
        until(desk.captures, "a capture without a call")
        desk.user.write("b")
        until(lambda: len(desk.captures()) > 1, "another one")


def test_what_a_call_writes_is_saved_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is an hour: a machine that is lost in a long call loses what it wrote in the last seconds."""
    assert running_rest(0.01) == RUNNING and running_rest(0.2) == 10.0
    monkeypatch.setattr(worktree, "RUNNING", 0.05)
    desk = Desk(tmp_path)
    with desk.running():
        desk.post.begin("write_file", file_path="b")
        until(desk.captures, "a capture in the call")
        desk.user.write("b")
        until(lambda: len(desk.captures()) > 1, "one with what it wrote")


def test_a_tree_that_rests_is_looked_at_more_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most half a percent of a core, and never more seldom than every five minutes; a call that runs is
    no rest, and one that has ended does not wait."""
    assert idle_rest(0.02) == 5.0 and idle_rest(0.5) == 125.0 and idle_rest(60.0) == MAX_IDLE

    waits, looks = list[float](), list[int]()

    class Wanted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return super().wait(timeout)

    monkeypatch.setattr(worktree, "IDLE", 1e9)
    desk = Desk(tmp_path, interval=0.05)
    capture = desk.capture.capture

    def look(holds: int, now: float, also: tuple[int, ...] = ()) -> tuple[Workspace, ...]:
        looks.append(holds)
        return capture(holds, now, also)

    monkeypatch.setattr(desk.capture, "capture", look)
    monkeypatch.setattr(desk.saver, "_wanted", Wanted())
    with desk.running():
        until(lambda: len(looks) == 2, "one look that found something, one that did not")
        seen = len(waits)
        until(lambda: len(waits) > seen + 5, "five intervals")
        assert len(looks) == 2
        desk.post.begin("write_file", file_path="b")
        until(lambda: len(looks) > 3, "a call runs")
        desk.post.gate.finish_call(ended("write_file", file_path="b"))
        desk.user.write("b")
        until(lambda: len(desk.captures()) > 1, "it is saved behind the call")


def test_a_last_capture_at_the_end(desk: Desk, tmp_path: Path) -> None:
    with desk.post.committing():
        desk.saver.start()
        desk.saver.pause()
        desk.user.write("late")
        desk.saver.finish(last=True)
        assert desk.saver.stop(PATIENCE)
        until(lambda: not desk.post.job.writer.backlog.items, "the log takes it")
    assert desk.saver.problem == ""
    assert desk.restored(tmp_path) == on_disk(desk.user.top)


def test_a_capture_that_hangs_in_the_bucket_appends_nothing_once_it_was_given_up(desk: Desk) -> None:
    there, go = threading.Event(), threading.Event()

    def hang(data: bytes) -> Payload:
        there.set()
        go.wait(PATIENCE)
        return Payload(size=len(data), data=data)

    desk.put = hang
    with desk.post.committing():
        desk.saver.start()
        desk.saver.poke()
        assert there.wait(PATIENCE)
        desk.saver.finish(last=True)
        assert not desk.saver.stop(0.0)
        assert "no time" in desk.saver.problem
        desk.capture.git.go_on()  # the agent is started again, with captures of its own
        go.set()
        desk.saver._stop.set()
        desk.saver._thread.join(PATIENCE)
        assert not desk.saver._thread.is_alive()
    desk.post.commit()
    assert desk.captures() == []


def test_a_bucket_that_is_away_costs_the_capture_and_nothing_else(desk: Desk) -> None:
    desk.user.write("big", os.urandom(200_000))
    desk.post.world.bucket.dropped = "shop/blobs/"
    desk.saver._try_to_save()
    assert "not saved" in desk.saver.problem
    desk.post.world.bucket.dropped = ""
    desk.saver._try_to_save()
    assert desk.saver.problem == ""
    desk.post.commit()
    assert len(desk.captures()) == 1


def test_it_waits_while_the_log_has_a_backlog(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_agent.supervise.worktree.MAX_BACKLOG", 10)
    desk.post.job.writer.append(End(time=1.0, call=1, how="done", by="hook", why="x" * 50))
    desk.saver._try_to_save()
    assert "away" in desk.saver.problem
    desk.post.commit()
    desk.saver._try_to_save()
    desk.post.commit()
    assert len(desk.captures()) == 1


def test_a_machine_without_git_is_told_of(desk: Desk, tmp_path: Path) -> None:
    desk.capture.git.env = {"PATH": str(tmp_path / "nothing")}
    desk.saver._try_to_save()
    assert desk.saver.problem == NO_GIT
    assert desk.errors == []


def test_a_capture_that_hangs_is_told_while_it_does(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git opens what is called .gitignore, and waits for a pipe's writer; a status is not silent meanwhile."""
    os.mkfifo(desk.user.top / ".gitignore")
    with desk.running():
        desk.saver.poke()
        until(lambda: OWN.pids, "git runs")
        assert desk.saver.trouble == ""
        monkeypatch.setattr(worktree, "SLOW", 0.0)
        assert desk.saver.trouble.startswith("git has been reading this folder for ")
    assert desk.saver.trouble == desk.saver.problem


def test_a_bug_is_told_and_is_not_the_last_try(desk: Desk) -> None:
    def broken(data: bytes) -> Payload:
        raise AssertionError("bug")

    kept, desk.put = desk.put, broken
    desk.saver._try_to_save()
    assert [type(e) for e in desk.errors] == [AssertionError]
    desk.put = kept
    desk.saver._try_to_save()
    assert desk.saver.problem == ""


# ---- in parts

PART = 40_000


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "LEAST_PART", PART)
    monkeypatch.setattr(captures, "MAX_PART", PART)
    monkeypatch.setattr(captures, "Caps", lambda: Caps(total=PART * captures.MAX_PARTS))


def fill(desk: Desk) -> None:
    """Files from before the run, more than one part takes, and one that is edited now."""
    for n in range(10):
        path = desk.user.write(f"old-{n}", os.urandom(20_000))
        os.utime(path, (1000.0 + n, 1000.0 + n))
    desk.user.write("edited", "x\n")
    desk.capture._main._began = time.time() + 60


@pytest.mark.usefixtures("parts")
def test_a_big_workspace_is_saved_to_its_end_without_being_asked(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    with desk.running():
        desk.saver.poke()
        until(lambda: desk.captures() and desk.captures()[-1].pending is None, "all parts")
    assert len(desk.captures()) > 2
    assert desk.restored(tmp_path) == on_disk(desk.user.top)
    assert desk.saver.not_saved() == ""
    assert desk.saver.whole


@pytest.mark.usefixtures("parts")
def test_the_end_of_a_run_saves_what_was_edited_first_and_names_the_rest(tmp_path: Path) -> None:
    """No time is left after the first part of the last capture."""
    desk = Desk(tmp_path)
    fill(desk)
    go = threading.Event()
    capture = desk.capture.capture

    def once(*words: object) -> tuple[Workspace, ...]:
        if desk.saver._newest is not None:
            go.wait(PATIENCE)
        return capture(*words)  # type: ignore[arg-type]

    desk.capture.capture = once  # type: ignore[method-assign, assignment]
    with desk.post.committing():
        desk.saver.start()
        desk.saver.pause()
        desk.saver.finish(last=True)
        until(lambda: desk.saver._ended, "the first part")
        assert desk.saver.stop(0.0), "nothing that this run changed is missing"
        go.set()
        desk.saver._thread.join(PATIENCE)
    desk.post.commit()
    assert len(desk.captures()) == 1
    assert b"edited" in desk.restored(tmp_path)
    assert not desk.saver.missed
    said = desk.saver.not_saved()
    assert "old-" in said
    assert said.startswith("Not saved, only on this machine: ")


@pytest.mark.usefixtures("parts")
def test_files_of_this_run_that_are_left_at_the_end_make_it_no_good_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    desk.capture._main._began = 0.0
    desk.saver.save()
    assert not desk.saver.stop(0.0) or desk.saver.missed
    assert desk.saver.missed
    assert "no time" in desk.saver.not_saved()


def test_a_tree_that_was_never_saved_is_reported_at_the_end(desk: Desk, tmp_path: Path) -> None:
    desk.capture.git.env = {"PATH": str(tmp_path / "nothing")}
    desk.saver._try_to_save()
    assert desk.saver.not_saved() == f"{NEVER} {NO_GIT}"


def test_a_folder_that_is_moved_away_is_named_at_the_end(desk: Desk, tmp_path: Path) -> None:
    desk.saver._try_to_save()
    desk.post.commit()
    desk.user.top.rename(tmp_path / "moved")
    desk.saver._try_to_save()
    assert desk.saver.not_saved() == MOVED.format(desk.user.top)


def test_what_is_left_out_is_reported_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file over the cap; not what the project ignores."""
    monkeypatch.setattr(captures, "Caps", lambda: Caps(file=1000))
    desk = Desk(tmp_path)
    desk.user.write("big", b"x" * 2000)
    desk.user.write(".wal-agentignore", "ignored\n")
    desk.user.write("ignored", "x")
    desk.saver._try_to_save()
    desk.post.commit()
    said = desk.saver.not_saved()
    assert said == "Not saved, only on this machine: big: bigger than 0.000954 MiB."


@pytest.mark.usefixtures("parts")
def test_a_long_first_save_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_agent.supervise.worktree.PROGRESS", 0.0)
    said: list[str] = []
    desk = Desk(tmp_path, progress=said.append)
    fill(desk)
    with desk.running():
        desk.saver.poke()
        until(lambda: desk.saver.whole, "all parts")
        count = len(said)
        desk.user.write("later", "y\n")
        desk.saver.poke()
        until(lambda: b"later" in desk.restored(tmp_path / str(time.monotonic())), "a capture behind it")
    assert said
    assert said[0].startswith("saving the files of this folder: ")
    assert len(said) == count, "later captures report nothing"


def test_a_log_that_has_ended_ends_the_parts(tmp_path: Path, parts: None) -> None:
    desk = Desk(tmp_path)
    fill(desk)
    desk.saver.save()
    desk.post.commit()
    desk.post.job.writer.seal(1.0)
    desk.saver._try_to_save()
    assert desk.capture.pending is not None
    assert not desk.saver._goes_on


@pytest.mark.parametrize("work", [0.01, 0.1, 0.4, 0.8, 0.99])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_quick_capture_is_at_most_two_seconds_behind_a_call(work: float, share: float) -> None:
    """The call ends somewhere in the rest, or in the capture before it."""
    assert is_quick(work)
    ended = -work + share * (work + rest_after(work, False))  # the rest begins at 0
    begins = max(0.0, min(rest_after(work, False), due(work, ended)), ended) + DEBOUNCE
    assert begins + work <= ended + BEHIND + DEBOUNCE or begins == DEBOUNCE


def test_the_first_capture_is_rested_from_as_far_as_it_is_repeated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first packs all files: a change behind it does not wait for a rest of four times that."""

    class Late(SystemClock):
        packing = 0.0

        def boot(self) -> float:
            return super().boot() + self.packing

    clock, rests, put = Late(), list[float](), desk.put

    def slow(data: bytes) -> Payload:
        clock.packing += 1000
        return put(data)

    desk.put = slow
    monkeypatch.setattr(desk.saver, "_clock", clock)
    monkeypatch.setattr(desk.saver, "_rest", rests.append)
    with desk.running():
        desk.saver.poke()
        until(lambda: len(rests) == 1, "the first capture")
        desk.user.write("b", "2\n")
        desk.saver.poke()
        until(lambda: len(rests) == 2, "the next one")
    assert rests[0] < 1000 <= rests[1]


def test_a_slow_capture_rests_four_times_as_long() -> None:
    assert not is_quick(1.0)
    assert rest_after(1.5, False) == 6.0
    assert rest_after(100.0, False) == 60.0
    assert rest_after(3.0, True) == 3.0


# ---- beside the agent's processes


def slow_git(tmp_path: Path) -> Git:
    script = tmp_path / "git"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o755)
    return Git({"PATH": f"{tmp_path}:{os.environ['PATH']}"})


def test_who_reaps_the_agents_leftovers_leaves_git_to_its_thread(tmp_path: Path) -> None:
    """A status that is taken away from its thread would read as success."""
    git = slow_git(tmp_path)
    (tmp_path / "git").write_text("#!/bin/sh\nexit 7\n")
    child = Child([*("/bin/sh", "-c"), "exit 3"], os.environ, Path.cwd())
    done = threading.Event()

    def reap() -> None:
        while not done.is_set() or child.exit is None:
            child.reap()

    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        for _ in range(50):
            with pytest.raises(Exception, match="ended with 7"):
                git.run("x")
    finally:
        done.set()
        reaper.join(PATIENCE)
    assert child.exit is not None
    assert child.exit.code == 3
    assert OWN.pids == set()


def test_a_dead_child_that_nobody_waits_for_is_still_reaped() -> None:
    child = Child([*("/bin/sh", "-c"), "exit 0"], os.environ, Path.cwd())
    orphan = subprocess.Popen(["/bin/true"])
    until(lambda: child.reap() or child.exit, "the agent is reaped")  # type: ignore[func-returns-value]

    def gone() -> bool:
        child.reap()
        return orphan.poll() is not None

    until(gone, "the orphan is reaped")


def test_after_a_pause_no_git_runs_and_the_last_capture_works(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    slow = slow_git(tmp_path / "slow")
    real, desk.capture.git.env = desk.capture.git.env, slow.env
    with desk.post.committing():
        desk.saver.start()
        desk.saver.poke()
        until(lambda: OWN.pids, "git runs")
        desk.saver.pause()
        assert OWN.pids == set()
        assert not [p for p in processes.descendants(os.getpid()) if "sleep 600" in processes.command_line(p)]
        desk.capture.git.env = real
        desk.saver.finish(last=True)
        assert desk.saver.stop(PATIENCE)
    desk.post.commit()
    assert len(desk.captures()) == 1


# ---- what is captured at all


class Cli:
    name = "cli"

    def __init__(self, home: Path) -> None:
        self.home = home

    def folder(self, env: object) -> Path:
        return self.home


@pytest.fixture
def short() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


def fixed(desk: Desk, settings: Settings, cli: Cli, folder: Path, env: dict[str, str]) -> RunContext:
    return RunContext(desk.post.job, cast(Agent, cli), settings, folder, env, SystemClock())


def test_folders_of_the_agent_of_ours_and_of_the_bucket_are_never_captured(
    desk: Desk, tmp_path: Path, short: Path
) -> None:
    top, said = desk.user.top.resolve(), list[str]()
    env = {**desk.user.env, "XDG_STATE_HOME": str(top / "state"), "WAL_AGENT_RUNTIME_DIR": str(short)}
    env["WAL_AGENT_PERSON_KEY_FILE"] = str(top / "own key")
    settings = Settings(
        bucket=(top / "bucket dir").as_uri(), job="j", encryption_key_file=str(top / "key"), workspace_cap=1.0
    )
    cli = Cli(top / ".cli")
    for name in ("bucket dir/j/x", ".cli/oauth", "key", "own key", "state/wal-agent/x", "state/mine", "big"):
        desk.user.write(name, b"x" * (60_000 if name == "big" else 1))
    made = open_worktree_capture(fixed(desk, settings, cli, top, env), said.append)
    assert made is not None
    [record] = made.capture(0, 1.0)
    desk.post.job.writer.append(record)
    desk.post.commit()
    assert set(desk.restored(tmp_path)) == {b"a", b"state/mine"}
    assert record.left_out[0] == "big: bigger than 0.05 MiB"
    left_out = {line.partition(": ")[0] for line in record.left_out[1:]}
    assert left_out == {".cli", "bucket dir", "key", "own key", "state/wal-agent"}
    assert said == []

    inside = never_captured(Settings(bucket=str(tmp_path), job="j"), cli, env, top)  # type: ignore[arg-type]
    assert tmp_path / "j" in inside
    assert tmp_path not in inside


@pytest.mark.parametrize("how", ["off", "inside"])
def test_captures_that_are_off_are_said(desk: Desk, tmp_path: Path, how: str) -> None:
    said: list[str] = []
    settings = Settings(bucket="memory://x", job="j", workspace="off" if how == "off" else "save")
    cli = Cli(tmp_path / "elsewhere" if how == "off" else desk.user.top)
    env = {**desk.user.env, "WAL_AGENT_RUNTIME_DIR": "/tmp/wa-rt"}
    assert open_worktree_capture(fixed(desk, settings, cli, desk.user.top.resolve(), env), said.append) is None
    assert len(said) == 1
    assert "only the session is saved" in said[0]


def test_a_home_is_not_captured_nor_what_is_around_it(desk: Desk, tmp_path: Path) -> None:
    home = desk.user.home.resolve()
    (home / "project").mkdir()
    (tmp_path / "link").symlink_to(home)
    settings, cli, said = Settings(bucket="memory://x", job="j"), Cli(tmp_path / "cli"), list[str]()
    env = {**desk.user.env, "HOME": str(tmp_path / "link"), "WAL_AGENT_RUNTIME_DIR": "/tmp/wa-rt"}
    for wide in (home, home.parent, Path("/")):
        assert open_worktree_capture(fixed(desk, settings, cli, wide, env), said.append) is None
        assert said.pop() == f"only the session is saved, not the files of this folder: {too_wide(wide, env)}"
    assert said == []
    assert [too_wide(folder, env) for folder in (home / "project", desk.user.top.resolve())] == ["", ""]
    assert too_wide(Path("/"), {}) != ""


def test_worktrees_outside_are_saved_where_their_person_wants_it(desk: Desk, tmp_path: Path) -> None:
    """I7: neither is then one that is a home folder, credentials, or around the workspace."""
    home, top, parts = desk.user.home.resolve(), desk.user.top.resolve(), desk.user.top / ".git/worktrees"
    git(top, "init", "-q", "-b", "main")
    git(top, "commit", "-q", "--allow-empty", "-m", "first")
    git(top, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (home / ".ssh").mkdir()
    for n, folder in enumerate((home, home / ".ssh", top.parent)):
        shutil.copytree(parts / "side", parts / f"own{n}")
        (parts / f"own{n}/gitdir").write_text(f"{folder}/.git\n")
        (folder / ".git").write_text(f"gitdir: {parts}/own{n}\n")
    env = {**desk.user.env, "WAL_AGENT_RUNTIME_DIR": "/tmp/wa-rt"}
    found = {}
    here = Settings(bucket="memory://x", job="j")
    for settings in (here, replace(here, worktrees="all")):
        made = open_worktree_capture(fixed(desk, settings, Cli(tmp_path / "cli"), top, env), print)
        assert made is not None
        found[settings.worktrees] = made.capture(0, 1.0)[-1]
    assert (found["inside"].inside, found["all"].inside) == ((), (f"{BROUGHT_IN}/side",))
    outside = [len([line for line in each.left_out if line.endswith(OUTSIDE)]) for each in found.values()]
    assert outside == [3, 2], "what is never captured is not named"


def test_credentials_and_other_agents_folders_are_never_captured(desk: Desk, tmp_path: Path) -> None:
    """Of the user's; a project's own files of these names are the project's."""
    home = desk.user.home.resolve()
    settings, said = Settings(bucket="memory://x", job="j"), list[str]()
    env = {**desk.user.env, "WAL_AGENT_RUNTIME_DIR": "/tmp/wa-rt"}
    for name in (*CREDENTIALS, ".claude", ".codex"):
        (home / name).mkdir(parents=True)
        inside = home / name
        assert open_worktree_capture(fixed(desk, settings, Cli(tmp_path / "cli"), inside, env), said.append) is None
        assert said.pop().startswith("only the session is saved, not the files of this folder: it lies in ")
    (home / ".config" / "gh" / "hosts.yml").write_text("oauth_token: x")
    (home / ".config" / ".npmrc").write_text("mine")
    made = open_worktree_capture(fixed(desk, settings, Cli(tmp_path / "cli"), home / ".config", env), said.append)
    assert made is not None
    [record] = made.capture(0, 1.0)
    desk.post.job.writer.append(record)
    desk.post.commit()
    assert set(desk.restored(tmp_path)) == {b".npmrc"}


def test_the_settings_of_captures(tmp_path: Path) -> None:
    def of(**env: str) -> tuple[str, float]:
        found = load("gemini", tmp_path, {"HOME": str(tmp_path.parent), **env}, {})
        return found.workspace, found.workspace_cap

    assert of() == ("save", 1024)
    assert of(WAL_AGENT_WORKSPACE="off", WAL_AGENT_WORKSPACE_CAP="10") == ("off", 10)
    for wrong in ({"WAL_AGENT_WORKSPACE": "no"}, {"WAL_AGENT_WORKSPACE_CAP": "0"}, {"WAL_AGENT_WORKSPACE_CAP": "x"}):
        with pytest.raises(UsageError, match="WAL_AGENT_WORKSPACE"):
            of(**wrong)

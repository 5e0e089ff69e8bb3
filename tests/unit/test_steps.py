"""wal_agent/steps.py, cli/steps.py: `wal-agent step` in real processes, killed at each point, over a real socket."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.unit.supervise.crew import Post, run_context, short_folder, until
from wal_agent.errors import PersonNeeded, Unavailable, UsageError
from wal_agent.records import StepBegun, StepEnded
from wal_agent.steps import Result, shortened, state, step
from wal_agent.supervise.hook_server import HookRequest, HookServer
from wal_agent.supervise.steps import MAX_VALUE, StepKeeper, lock_of

ROOT = Path(__file__).parents[2]


class Site:
    """A run with its socket and its lock, a job in memory, and a folder in which effects are counted."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.work, self.socket = work, folder / "hook.sock"
        self.post = Post(work)
        self.lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.keeper = self.on()
        self.server = HookServer(self.socket, "run", self.handle, lambda error: None)
        self.server.start()
        self.writing = ExitStack()
        self.writing.enter_context(self.post.committing())
        self.env = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": str(ROOT),
            "WAL_AGENT_SOCKET": str(self.socket),
            "WAL_AGENT_RUN": "run",
        }

    def on(self) -> StepKeeper:
        return StepKeeper(run_context(self.post.job, self.post.world.clock), self.socket)

    def handle(self, request: HookRequest) -> bytes:
        return json.dumps(self.keeper.answer(json.loads(request.payload), True)).encode()

    def lost(self) -> None:
        """Another machine takes the job."""
        self.post.job = self.post.world.take_over("b")
        self.writing.enter_context(self.post.committing())
        self.keeper = self.on()

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "wal_agent", *args],
            cwd=self.work,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def type(self, *args: str, **env: str) -> tuple[int, str, str]:
        """`wal-agent ARGS`: exit code, stdout, stderr."""
        process = self.start(*args, **env)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def effects(self) -> int:
        file = self.work / "effect"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def ends(self) -> list[str]:
        return [r.how for r in self.post.log() if isinstance(r, StepEnded)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with short_folder() as folder:
        made = Site(folder, tmp_path)
        with made.writing:
            yield made
        made.server.close()
        os.close(made.lock)


@pytest.fixture
def inside(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """This process is a tool of the run."""
    for name in ("WAL_AGENT_SOCKET", "WAL_AGENT_RUN"):
        monkeypatch.setenv(name, site.env[name])
    monkeypatch.chdir(site.work)
    return site


EFFECT = ("sh", "-c", "echo x >> effect; echo out; echo err >&2; exit 3")
LOOK = "test -s effect"
POINTS = [("step.begun", 0), ("step.ran", 1), ("step.ended", 1)]


@pytest.mark.parametrize(("point", "done"), POINTS)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_killed_at_each_point_the_effect_happens_at_most_once(
    site: Site, point: str, done: int, elsewhere: bool
) -> None:
    """Without a verification nothing runs again; a person decides."""
    code, _, _ = site.type("step", "s", "--", *EFFECT, WAL_AGENT_FAILPOINT=point)
    assert (code, site.effects()) == (-signal.SIGKILL, done)
    if elsewhere:
        site.lost()
    code, out, err = site.type("step", "s", "--", *EFFECT)
    assert site.effects() == done
    if point == "step.ended":
        assert (code, out, err) == (3, "out\n", "err\n")
    else:
        assert code == 79 and "wal-agent ack s --done" in err and out == ""


@pytest.mark.parametrize(("point", "done"), POINTS)
def test_killed_at_each_point_a_verification_decides(site: Site, point: str, done: int) -> None:
    site.type("step", "s", "--verify", LOOK, "--", *EFFECT, WAL_AGENT_FAILPOINT=point)
    site.lost()
    code, out, _ = site.type("step", "s", "--verify", LOOK, "--", *EFFECT)
    assert site.effects() == 1
    assert (code, out) == {"step.begun": (3, "out\n"), "step.ran": (0, ""), "step.ended": (3, "out\n")}[point]
    assert site.type("step", "s", "--", *EFFECT)[0] == code
    assert site.effects() == 1


def test_a_verification_that_cannot_tell_leaves_it_to_a_person(site: Site) -> None:
    site.type("step", "s", "--", *EFFECT, WAL_AGENT_FAILPOINT="step.begun")
    code, _, err = site.type("step", "s", "--verify", "exit 2", "--", *EFFECT)
    assert code == 79 and "ended with 2" in err and site.effects() == 0
    assert list(site.post.state.undecided_steps) == ["s"]


def test_a_run_that_dies_ends_the_command_of_its_step(site: Site) -> None:
    """Nobody could fence it: no later run may meet it still at work."""
    process = site.start("step", "s", "--", "sh", "-c", "echo $$ > pid; exec sleep 600")
    pid = int(until(lambda: (site.work / "pid").exists() and (site.work / "pid").read_text(), "it runs"))
    fcntl.flock(site.lock, fcntl.LOCK_UN)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 69 and "is gone" in err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert site.ends() == []


@pytest.mark.parametrize("who", ["command", "client"])
def test_what_is_killed_by_a_signal_is_cut_off(site: Site, who: str) -> None:
    """A command that was killed may have had half of its effect: that is no result."""
    process = site.start("step", "s", "--", "sh", "-c", "echo x >> effect; echo $$ > pid; exec sleep 600")
    pid = int(until(lambda: (site.work / "pid").exists() and (site.work / "pid").read_text(), "it runs"))
    os.kill(pid if who == "command" else process.pid, signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 79 and site.ends() == []
    assert (site.type("step", "s", "--verify", LOOK, "--", "x")[0], site.effects()) == (64, 1)


def test_two_at_once_run_it_once(site: Site) -> None:
    one = site.start("step", "s", "--", "sh", "-c", "echo x >> effect; while [ ! -e go ]; do sleep 0.05; done; echo me")
    until(lambda: site.effects() == 1, "the first one runs")
    two = site.start("step", "s", "--", "sh", "-c", "echo x >> effect; while [ ! -e go ]; do sleep 0.05; done; echo me")
    assert two.stderr is not None and "runs already" in two.stderr.readline()
    (site.work / "go").touch()
    assert [p.communicate(timeout=120)[0] for p in (one, two)] == ["me\n", "me\n"]
    assert site.effects() == 1


def test_what_the_command_left_running_counts_as_running(site: Site) -> None:
    """Its client was killed, so nobody knows how it ends; a second one waits instead of verifying too early."""
    command = "echo x >> effect; while [ ! -e go ]; do sleep 0.05; done; echo y >> effect"
    one = site.start("step", "s", "--", "sh", "-c", command)
    until(lambda: site.effects() == 1, "it runs")
    one.kill()
    one.communicate(timeout=120)
    two = site.start("step", "s", "--verify", "grep -q y effect", "--", "sh", "-c", command)
    assert two.stderr is not None and "runs already" in two.stderr.readline()
    (site.work / "go").touch()
    two.communicate(timeout=120)
    assert (two.returncode, site.effects()) == (0, 2)


def test_a_command_that_leaves_a_daemon_ends(site: Site) -> None:
    code, out, _ = site.type("step", "s", "--", "sh", "-c", "echo hi; sleep 600 & echo $! > pid")
    assert (code, out) == (0, "hi\n")
    assert site.type("step", "s", "--", "sh", "-c", "echo hi; sleep 600 & echo $! > pid")[:2] == (0, "hi\n")
    os.kill(int((site.work / "pid").read_text()), signal.SIGKILL)


def test_a_failure_is_kept_or_tried_again(site: Site) -> None:
    command = ("sh", "-c", "echo x >> effect; test $(wc -l < effect) -ge 3")
    assert (site.type("step", "s", "--", *command)[0], site.effects()) == (1, 1)
    assert (site.type("step", "s", "--", *command)[0], site.effects()) == (1, 1)
    assert (site.type("step", "s", "--retry-on-failure", "1", "--", *command)[0], site.effects()) == (1, 2)
    assert (site.type("step", "s", "--retry-on-failure", "5", "--", *command)[0], site.effects()) == (0, 3)
    assert (site.type("step", "s", "--retry-on-failure", "9", "--", *command)[0], site.effects()) == (0, 3)
    assert site.ends() == ["failed", "failed", "done"]


def test_a_program_that_is_not_there_takes_no_name(site: Site) -> None:
    code, _, err = site.type("step", "s", "--", "./missing")
    assert code == 64 and "cannot be started" in err
    assert site.type("step", "s", "--", "true")[0] == 0
    assert site.type("step", "t", "--")[0] == 64


def test_the_command_knows_its_step_and_attempt(site: Site) -> None:
    assert site.type("step", "s", "--", "sh", "-c", "echo $WAL_AGENT_STEP $WAL_AGENT_ATTEMPT")[1] == "s 1\n"
    site.type("step", "t", "--", *EFFECT, WAL_AGENT_FAILPOINT="step.begun")
    site.lost()
    show = site.type("step", "t", "--verify", "exit 1", "--", *EFFECT)
    assert show[0] == 3
    assert [r.attempt for r in site.post.log() if isinstance(r, StepBegun)] == [1, 1, 2]


# ---- from Python


def test_the_python_api(inside: Site) -> None:
    data = os.urandom(MAX_VALUE)
    assert state.get("v") is None and state.entry("v") is None
    version = state.put("v", data, ttl=100)
    assert state.get("v") == data
    with pytest.raises(UsageError) as error:
        state.put("v", "x", if_version=version + 1)
    assert error.value.exit_code == 1
    assert state.put("v", "text", if_version=version) == version + 1
    assert [e.step for e in state.list()] == ["v"]
    assert state.delete("v") and not state.delete("v") and state.list() == []
    with pytest.raises(UsageError):
        state.put("v", b"x" * (MAX_VALUE + 1))
    done = step("s", EFFECT)
    assert done == Result(3, b"out\n", b"err\n", True, "command", 4, 4)
    assert step("s", EFFECT) == Result(3, b"out\n", b"err\n", False, "command", 4, 4)
    with pytest.raises(FileNotFoundError):
        step("t", ["./missing"])
    with pytest.raises(UsageError):
        step("s", ["other"])
    assert inside.effects() == 1


def test_more_output_than_is_kept_is_said(inside: Site) -> None:
    done = step("s", ["sh", "-c", f"head -c {MAX_VALUE + 10} /dev/zero; echo err >&2"])
    again = step("s", ["sh", "-c", f"head -c {MAX_VALUE + 10} /dev/zero; echo err >&2"])
    assert (len(again.stdout), again.stdout_size, again.stderr) == (MAX_VALUE, MAX_VALUE + 10, b"err\n")
    assert done.stdout == again.stdout
    assert len(shortened("s", again)) == 1 and "stdout had 1.0 MB" in shortened("s", again)[0]


def test_an_exception_in_the_middle_ends_the_command(inside: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wal_agent.steps._follow", boom)
    with pytest.raises(KeyboardInterrupt):
        step("s", ["sleep", "600"])
    monkeypatch.undo()
    assert list(inside.post.state.undecided_steps) == ["s"]


def test_a_thread_can_run_one(inside: Site) -> None:
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(step("s", EFFECT)))
    thread.start()
    thread.join(60)
    assert [r.code for r in found] == [3]


def test_outside_of_a_run_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAL_AGENT_SOCKET", "WAL_AGENT_RUN"):
        monkeypatch.delenv(name, raising=False)
    tries: list[Callable[[], object]] = [
        lambda: state.put("a", b""),
        lambda: state.get("a"),
        lambda: state.list(),
        lambda: step("a", ["true"]),
    ]
    for act in tries:
        with pytest.raises(UsageError, match="wal-agent run generic"):
            act()


def test_a_run_that_does_not_answer(inside: Site) -> None:
    inside.server.close()
    with pytest.raises(Unavailable):
        state.put("a", b"")
    fcntl.flock(inside.lock, fcntl.LOCK_UN)
    with pytest.raises(UsageError, match="has ended"):
        state.put("a", b"")


def test_a_persons_word_is_not_taken_while_it_runs(site: Site) -> None:
    process = site.start("step", "s", "--", "sh", "-c", "echo x >> effect; while [ ! -e go ]; do sleep 0.05; done")
    until(lambda: site.effects() == 1, "it runs")
    assert site.keeper.running() and site.keeper.oldest_running() > 0
    with pytest.raises(UsageError, match="is running now"):
        site.keeper.acknowledge("s", True)
    (site.work / "go").touch()
    process.communicate(timeout=120)
    assert not site.keeper.running() and lock_of(site.socket, "s").exists()


def test_a_person_is_needed_once(inside: Site) -> None:
    inside.type("step", "s", "--", *EFFECT, WAL_AGENT_FAILPOINT="step.ran")
    with pytest.raises(PersonNeeded):
        step("s", EFFECT)
    inside.keeper.acknowledge("s", True)
    assert step("s", EFFECT) == Result(0, b"", b"", False, "person")
    assert inside.effects() == 1

"""supervise/processes.py, launch.py: the agent in the same terminal, in real processes (I6), never without us (I5)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests.processes import gone
from tests.unit.supervise import nest
from tests.unit.supervise.crew import PATIENCE, until
from wal_agent.supervise.processes import ECHO, Child, block_signals, is_echo

ROOT = Path(__file__).parents[3]


def next_line(stream: IO[bytes] | None) -> str:
    """Of an unbuffered pipe; what does not come in time is a failure, and no test hangs."""
    assert stream is not None
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([stream], [], [], PATIENCE)[0], f"nothing came behind {line!r}"
        got = stream.read(1)
        if not got:
            break
        line += got
    return line.decode().strip()


class Nest:
    """The process `nest.py`, and what it says line by line."""

    def __init__(self, *argv: str, options: tuple[str, ...] = (), before: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, nest.__file__, *options, "--", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            bufsize=0,  # a line must not take the next one out of sight of `communicate`
        )
        self.child = int(self.line().removeprefix("pid "))

    def line(self) -> str:
        return next_line(self.process.stderr)

    def out(self) -> str:
        """The next line of the agent."""
        return next_line(self.process.stdout)

    def ended(self) -> str:
        """Everything that it said until its end; it must have ended well."""
        _, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, err
        return err.decode().strip()


Start = Callable[..., Nest]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Nest] = []

    def begin(*argv: str, options: tuple[str, ...] = (), before: tuple[str, ...] = ()) -> Nest:
        made.append(Nest(*argv, options=options, before=before))
        return made[-1]

    yield begin
    for each in made:
        try:
            os.killpg(each.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        each.process.communicate()


@pytest.mark.parametrize(
    ("script", "told"), [("exit 7", "exit 7 7"), ("exit 0", "exit 0 0"), ("kill -9 $$", "exit -9 137")]
)
def test_the_exit_is_the_agents_own(start: Start, script: str, told: str) -> None:
    """I6: what a shell would show."""
    assert start("sh", "-c", script).ended() == told


def test_the_agent_dies_with_the_wrapper(start: Start) -> None:
    """I5, wrapper dead: nobody could answer its hooks, so it must not go on by itself."""
    run = start("sh", "-c", "echo $$; exec sleep 600")
    assert run.out() == str(run.child)
    run.process.kill()
    run.process.wait(PATIENCE)
    until(lambda: gone(run.child), "the agent dies")


def test_a_wrapper_that_died_before_the_agent_could_ask_for_its_death_starts_none(tmp_path: Path) -> None:
    """The window between fork and prctl: the helper sees that its parent is another one, and ends."""
    launch = ROOT / "wal_agent" / "launch.py"
    argv = [sys.executable, "-I", "-S", "-E", str(launch), "1", "--", "touch", str(tmp_path / "ran")]
    assert subprocess.run(argv, timeout=PATIENCE, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "ran").exists()


LISTEN = """
for s in USR1 USR2 HUP INT QUIT TERM; do trap "echo $s" $s; done
echo ready
while :; do sleep 0.02; done
"""


def test_signals_to_us_alone_are_passed_on(start: Start) -> None:
    """I6."""
    run = start("bash", "-c", LISTEN)
    assert run.out() == "ready"
    for name in ("USR1", "USR2", "HUP", "INT", "QUIT"):
        run.process.send_signal(getattr(signal, f"SIG{name}"))
        assert run.out() == name


def test_sigterm_is_counted_and_not_passed_on(start: Start) -> None:
    """ARCHITECTURE.md, Preemption: the wrapper drains first; a second one hurries."""
    run = start("bash", "-c", LISTEN)
    assert run.out() == "ready"
    run.process.terminate()
    assert run.line() == "terminated 1"
    run.process.send_signal(signal.SIGUSR1)
    assert run.out() == "USR1"
    run.process.terminate()
    assert run.line() == "terminated 2"
    assert run.ended() == "exit -9 137"


def test_a_stop_and_continue_makes_up_no_signal(start: Start) -> None:
    """A wait that runs out while the process is stopped must not give a signal that nobody sent."""
    run = start("bash", "-c", LISTEN)
    assert run.out() == "ready"
    wrapper = psutil.Process(run.process.pid)
    for _ in range(4):
        run.process.send_signal(signal.SIGSTOP)
        until(lambda: wrapper.status() == psutil.STATUS_STOPPED, "it is stopped")
        time.sleep(0.1)  # longer than its wait of 0.05 s, which thus runs out in the stop
        run.process.send_signal(signal.SIGCONT)
    run.process.send_signal(signal.SIGUSR1)
    assert run.out() == "USR1"
    run.process.terminate()
    assert run.line() == "terminated 1"


def test_orphans_come_to_us_and_are_reaped(start: Start) -> None:
    """RECOVERY.md: on Linux what loses its parent becomes our child, and does not stay a zombie."""
    if sys.platform != "linux":
        return
    run = start("sh", "-c", "sh -c 'sleep 600 & echo $!'; exec sleep 600")
    orphan = psutil.Process(int(run.out()))
    until(lambda: orphan.ppid() == run.process.pid, "it is handed to us")
    orphan.kill()
    until(lambda: not psutil.pid_exists(orphan.pid), "it is reaped")
    assert run.process.poll() is None


def test_stdin_is_the_agents_unless_its_prompt_was_read_from_it_already(start: Start) -> None:
    script = "cat; echo end"
    whole, none = start("sh", "-c", script), start("sh", "-c", script, options=("--no-stdin",))
    assert none.out() == "end"
    assert whole.process.stdin is not None
    whole.process.stdin.write(b"the prompt\n")
    whole.process.stdin.close()
    whole.process.stdin = None
    assert (whole.out(), whole.out()) == ("the prompt", "end")


STANDARD = (1 << 31) - 1  # signals 1 to 31; those above are the C library's own


def masks(run: Nest) -> dict[str, int]:
    rows = dict(run.out().split(":\t") for _ in range(2))
    return {name: int(mask, 16) & STANDARD for name, mask in rows.items()}


SHOW = ("sed", "-n", "/SigBlk/p;/SigIgn/p", "/proc/self/status")


def test_the_agents_signals_are_as_if_we_were_not_there(start: Start) -> None:
    """I6: no signal that we block or that Python ignores is blocked or ignored there."""
    if sys.platform == "linux":
        assert masks(start(*SHOW)) == {"SigBlk": 0, "SigIgn": 0}


def test_what_the_users_shell_ignores_stays_ignored(start: Start) -> None:
    """I6: a job in the background, or under nohup."""
    if sys.platform == "linux":
        nohup = ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh")
        wanted = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGHUP - 1)
        assert masks(start(*SHOW, before=nohup)) == {"SigBlk": 0, "SigIgn": wanted}


def test_what_we_were_started_to_ignore_is_not_ours_either(start: Start) -> None:
    """Blocked, it would come all the same, end a waiting start, and make each later death its doing."""
    if sys.platform == "linux":
        run = start("bash", "-c", LISTEN, options=("--passed",), before=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"))
        assert run.out() == "ready"
        run.process.send_signal(signal.SIGHUP)
        run.process.send_signal(signal.SIGUSR1)
        assert run.out() == "USR1"
        os.kill(run.child, signal.SIGKILL)
        assert run.line() == "exit -9 137"
        assert run.ended() == f"passed {[int(signal.SIGUSR1)]} pending []"


def test_a_signal_that_the_agent_survived_long_ago_is_not_why_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: its clock is ours, and the time until a tick is over at once. The signal of a timer would go to
    any thread that does not block it, and pytest's do not."""

    def over_at_once(which: int, seconds: float) -> None:
        if seconds:
            signal.pthread_kill(threading.get_ident(), signal.SIGALRM)

    now, old = 100.0, signal.pthread_sigmask(signal.SIG_BLOCK, ())
    block_signals()
    monkeypatch.setattr(signal, "setitimer", over_at_once)

    def tick() -> None:
        nonlocal now
        if 2 not in child.passed:
            assert now > 100.0, "it was there before the first tick"
            child.kill()
        now += 1.0

    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        child = Child(["sleep", "600"], os.environ, Path.cwd(), now=lambda: now)
        child.send = lambda number: None if number == signal.SIGINT else Child.send(child, number)  # type: ignore[method-assign]
        child.wait(lambda count: None, tick, lambda: 0.01)
        assert child.passed == frozenset() and now > 110.0
    finally:
        monkeypatch.undo()
        signal.sigtimedwait({signal.SIGALRM}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


@pytest.mark.parametrize(("before", "ends"), [((), -signal.SIGINT), (("sh", "-c", 'trap "" INT; exec "$@"', "sh"), 0)])
def test_an_interrupt_before_the_agent_is_there_ends_its_start_without_a_word(
    before: tuple[str, ...], ends: int
) -> None:
    """It waits while the signals are blocked, and Python's own handler would print a traceback."""
    launch = str(ROOT / "wal_agent" / "launch.py")
    argv = [*before, sys.executable, "-I", "-S", "-E", launch, str(os.getpid()), "--", "true"]
    interrupted = "import os, signal, sys\nsignal.pthread_sigmask(signal.SIG_BLOCK, [2])\nos.kill(os.getpid(), 2)\n"
    code = interrupted + "argv = sys.argv[1:]\nos.execvp(argv[0], argv)"
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (ends, b"")


def test_a_sigterm_that_comes_twice_at_once_from_two_processes_is_one() -> None:
    """To the whole group, and passed on by our parent (fleet claim); the same process that says it twice means it."""
    assert is_echo((7, 10.0), 8, 10.0 + ECHO / 2)
    assert not is_echo((7, 10.0), 7, 10.0)
    assert not is_echo((7, 10.0), 8, 10.0 + ECHO)

"""Start, signal and await the agent, and find and end the processes of a run.

Signals are taken by waiting for them, never by handlers, so nothing runs between two instructions of other code. A ^C
of the terminal reaches the agent by itself (same process group); the same signal sent to us alone is passed on.

Processes of a run are found by parentage and by the WAL_AGENT_RUN marker in their environment. A tool's shell is a
session leader and outlives its CLI, so parentage alone loses it; the marker is lost by `sudo` or `env -i`, so on Linux
the supervisor is also a sub-reaper: what loses its parent becomes our child (RECOVERY.md).
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from wal_agent.agents.hook_line import LINE_SIGN, STANDING
from wal_agent.capture.git import reap_others
from wal_agent.paths import LAUNCH
from wal_agent.paths import MARKER as MARKER
from wal_agent.paths import SOCKET as SOCKET

HANDLED = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
# A shell that starts us under nohup or in the background has us ignore some: a blocked one would come all the same.
_IGNORABLE = HANDLED - {signal.SIGCHLD, signal.SIGTERM}
RECENT = 10.0  # seconds in which an agent ends by a signal that it takes; after that it has survived it
ECHO = 0.5  # seconds in which a SIGTERM to our whole group also comes from the parent, which passes it on
SI_KERNEL = 128  # si_code of a signal that the terminal sent (Linux)
CHAIN = "WAL_AGENT_RUNS"  # of a run inside another one's tool: both ids and more, the outermost first, between colons
GRACE = 2.0  # seconds from SIGTERM to SIGKILL
KILLED = 5.0  # seconds in which what was killed is gone, unless the kernel holds it
ROUNDS = 5  # in which a run is ended: what was young then may have made more
ENDING = ROUNDS * (GRACE + KILLED)  # seconds that `end_run` takes at most
_PR_SET_CHILD_SUBREAPER = 36
UNSURE = 0.25  # seconds for which an orphan without words or variables is read again
EARLY = 2  # ticks that a process may seem older than the call that started it: both are rounded
_SPARED: set[psutil.Process] = set()  # by number and time of birth
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "busybox"))
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_QUOTED = re.compile(r"[\s'\"\\\\$`!]+")


def block_signals() -> None:
    """To be called in the main thread before any other thread begins: threads inherit the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, handled_signals() | {signal.SIGALRM})


def handled_signals() -> frozenset[signal.Signals]:
    """The signals that are ours to take: all of HANDLED but what we were started to ignore."""
    return frozenset(n for n in HANDLED if n not in _IGNORABLE or signal.getsignal(n) != signal.SIG_IGN)


class Exit(msgspec.Struct, frozen=True):
    """How the agent ended: `code` >= 0, or -N for signal N."""

    code: int

    @property
    def shell_code(self) -> int:
        """What a shell would show (I6)."""
        return 128 - self.code if self.code < 0 else self.code


class Child:
    """The agent's process. Made in the main thread: Linux ties its life to the thread that starts it (launch.py).

    `no_stdin`: it reads nothing from the terminal or pipe, which the run before has consumed. `stderr`: what it has for
    that, if not ours. `now`: seconds, of a clock that never goes back."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        no_stdin: bool = False,
        stderr: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        launch = [sys.executable, "-I", "-S", "-E", str(LAUNCH), str(os.getpid()), "--", *argv]
        if Path.cwd() != cwd:
            os.chdir(cwd)
        actions: list[Any] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)] if no_stdin else []
        if stderr is not None:
            actions.append((os.POSIX_SPAWN_DUP2, stderr, 2))
        self.pid = os.posix_spawn(sys.executable, launch, dict(env), file_actions=actions)
        self.exit: Exit | None = None
        self._now = now
        self._ended = 0.0
        self._waits = False
        self._passed: dict[int, float] = {}  # when each signal came that was its to take

    @property
    def passed(self) -> frozenset[int]:
        """Signals that were its to take and came just before its end: what it survived long ago is not why."""
        until = self._now() if self.exit is None else self._ended
        return frozenset(number for number, at in self._passed.items() if until - at <= RECENT)

    def wake(self) -> None:
        """Have `wait` call `tick` now, from any thread."""
        if self._waits and sys.platform == "linux":
            os.kill(os.getpid(), signal.SIGALRM)  # which `_next_signal` takes for the end of its time

    def send(self, number: int) -> None:
        """Signal the agent; gone is fine."""
        if self.exit is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def reap(self) -> None:
        """Collect every dead child: the agent, and what the sub-reaper adopted. A git of ours beside the agent is left
        to the thread that waits for it."""
        try:
            if self.exit is None:  # first: a dead git must not hide it
                self._collect(*os.waitpid(self.pid, os.WNOHANG))
            reap_others(self._collect)
        except ChildProcessError:
            return

    def _collect(self, pid: int, status: int) -> None:
        if pid == self.pid:
            self.exit, self._ended = Exit(os.waitstatus_to_exitcode(status)), self._now()

    def wait(self, on_terminate: Callable[[int], None], tick: Callable[[], None], every: Callable[[], float]) -> Exit:
        """Until the agent is gone. SIGTERM calls `on_terminate(count)`; other signals are passed on; `tick` is called
        at least every `every()` seconds and may end the agent."""
        terminations, last = 0, (0, 0.0)
        self._waits = True
        while self.exit is None:
            number, from_terminal, sender = _next_signal(every())
            if number == signal.SIGTERM:
                now = self._now()
                if not (terminations and is_echo(last, sender, now)):
                    terminations += 1
                    on_terminate(terminations)
                last = sender, now
            elif number not in (0, signal.SIGCHLD):
                self._passed[number] = self._now()
                if not from_terminal:
                    self.send(number)
            self.reap()
            if self.exit is None:
                tick()
        self._waits = False
        return self.exit


def is_echo(last: tuple[int, float], sender: int, now: float) -> bool:
    """Whether a SIGTERM is the `last` one (its sender, and when), sent a second time by another process."""
    return sender != last[0] and now - last[1] < ECHO


def _next_signal(seconds: float) -> tuple[int, bool, int]:
    """The next handled signal, or 0 when `seconds` pass; whether the terminal sent it to the whole group; who sent it
    (0: not known)."""
    if sys.platform == "linux":
        # Not sigtimedwait: when its time runs out in a stop (SIGSTOP, SIGCONT) CPython gives an unfilled struct, which
        # may well name a signal.
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
        info = signal.sigwaitinfo(handled_signals() | {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, 0)
        if info.si_signo == signal.SIGALRM:
            return 0, False, 0
        return info.si_signo, info.si_code == SI_KERNEL, info.si_pid
    pending = signal.sigpending() & handled_signals()  # macOS has neither sigtimedwait nor the sender
    if not pending:
        time.sleep(seconds)
        pending = signal.sigpending() & handled_signals()
        if not pending:
            return 0, False, 0
    number = signal.sigwait(pending)
    return number, number in (signal.SIGINT, signal.SIGQUIT) and sys.stdin.isatty(), 0


def become_subreaper(become: bool = True) -> None:
    """Linux: orphans of the agent are handed to this process instead of init; False: no longer. Elsewhere: nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(become), 0, 0, 0)


def spare_child(pid: int) -> None:
    """A child of this process that is no part of the run and outlives it; the agent's leftovers never are."""
    with suppress(psutil.Error):
        _SPARED.add(psutil.Process(pid))


def marked_processes(run: str) -> list[psutil.Process]:
    """Living processes of this user that carry the run's marker, or that of a run inside it, but for this process."""
    found = []
    for pid in _naming(run) if run else ():
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            env = process.environ()
            its = run in (env.get(MARKER, ""), *env.get(CHAIN, "").split(":"))
            if its and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _naming(run: str) -> Iterator[int]:
    """Other processes whose variables have the word `run`; where there is no /proc, all others."""
    words = run.encode()
    for pid in psutil.pids():
        if pid != os.getpid():
            with suppress(OSError):
                if sys.platform != "linux" or words in Path(f"/proc/{pid}/environ").read_bytes():
                    yield pid


def descendants(pid: int) -> list[psutil.Process]:
    """Living children and theirs; one that ends meanwhile hides none of the others."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def tool_processes(agent: int, run: str, since: float) -> list[psutil.Process]:
    """Below the agent, made at `since` (seconds since 1970) or later, and no hook of ours nor about to become one."""
    young = [p for p in descendants(agent) if _since(p, since)]
    return [p for p in young if not _is_hook(words := _words(p), run) and not _just_forked(p, words, since)]


Born = tuple[int, int]
"""A process: its number, and its birth in clock ticks since boot. Numbers are used again."""


class Running(msgspec.Struct, frozen=True):
    """A living process. Its parent changes when it is orphaned, its name with the program that it executes."""

    id: Born
    parent: int
    session: int
    name: str
    ended: bool = False  # a zombie
    reaped: int = 0  # page faults of its children that it has waited for

    @property
    def pid(self) -> int:
        return self.id[0]


class Begun(msgspec.Struct, frozen=True):
    """A shell call that runs: since when (seconds since boot), and its command."""

    since: float
    command: str


def process_table(*, zombies: bool = False) -> dict[int, Running]:
    """All living processes of this machine, by number; empty where there is no /proc. `zombies`: those too that their
    parent has not waited for."""
    found, listed = dict[int, Running](), set[int]()
    for _ in range(2 if sys.platform == "linux" else 0):  # twice: what ended before it was read may have left a child
        new = {*psutil.pids()} - listed
        found |= {number: process for number in new if (process := _read_process(number)) is not None}
        listed |= new
    for process in [p for p in found.values() if p.parent and p.parent not in found]:  # orphaned since
        found[process.pid] = _read_process(process.pid) or process
    return {p.pid: p for p in found.values() if zombies or not p.ended}


def _read_process(number: int) -> Running | None:
    with suppress(OSError, ValueError, IndexError):
        name, _, rest = Path(f"/proc/{number}/stat").read_bytes().partition(b"(")[2].rpartition(b")")
        fields = rest.split()
        parent, session, reaped = int(fields[1]), int(fields[3]), int(fields[8])
        ended = fields[0] in (b"Z", b"X")
        return Running((number, int(fields[19])), parent, session, name.decode("utf-8", "replace"), ended, reaped)
    return None


class Tree(msgspec.Struct, frozen=True):
    """The processes below an agent, and the page faults of those that it, or one of them, has waited for: what came and
    went between two looks has changed them."""

    processes: frozenset[Born]
    ended: bool  # one of them is a zombie
    reaped: int


class CallProcesses:
    """The processes that the agent's shell calls start. From any thread.

    One is a call's if it was born after the call began, below a shell that the agent started or in a session of its own
    (a shell becomes the one command that it was given, and agents start it detached), or is an orphan with the run's
    marker, which the sub-reaper has adopted. Of several calls that run at the same time it is that whose command its
    shell was given, else each one's: a call then ends later than it could, never too early. Where there is no /proc
    nothing is known."""

    def __init__(self, agent: int, run: str) -> None:
        self._agent, self._run = agent, run
        self._lock = threading.Lock()
        self._of: dict[int, dict[Born, Born | None]] = {}  # of a call: each process with its shell, None for an orphan
        self._sessions: dict[int, tuple[int, ...]] = {}  # calls of a shell, by its number: orphans keep its session
        self._shown: set[int] = set()  # calls whose command a shell was given

    def look(self, calls: Mapping[int, Begun], left: Mapping[int, Begun] | None = None, over: int = 0) -> None:
        """Note what the running `calls` have started so far. `left`: calls that are over but for what they left
        running; an orphan may be theirs too. `over`: the one of `calls` that has ended, as the agent says; then nothing
        of it may be missed: what executes its program just now and has no words yet, or the child of what has ended
        since."""
        until, again = time.monotonic() + UNSURE, False
        while not self._look_once(calls, left or {}, over, again) and over and time.monotonic() < until:
            again = True
            time.sleep(UNSURE / 50)

    def _look_once(self, calls: Mapping[int, Begun], left: Mapping[int, Begun], over: int, again: bool) -> bool:
        """Return whether nothing of `over` can be missing. `again`: only an orphan was missed; a child that the agent
        has by now is not of a call that is over."""
        table = process_table() if calls or left else {}
        sure = self._note(calls, left, table, again)
        with self._lock:
            lived = self._of.get(over, {}).keys() & {p.id for p in table.values()}
        return sure and not (lived and lived - {p.id for p in process_table().values()})

    def _note(
        self, calls: Mapping[int, Begun], left: Mapping[int, Begun], table: Mapping[int, Running], orphans: bool
    ) -> bool:
        """Return whether each orphan could be read."""
        sure = True
        with self._lock:
            others = {each for call, known in self._of.items() if call not in calls for each in known}
        words: dict[Born, str] = {}
        own = _command(self._agent) if table else ""
        for process in table.values():
            able, late = (
                [call for call, begun in each.items() if process.id[1] >= begun.since * TICK - EARLY]
                for each in (calls, left)
            )
            if not (able or late) or (way := self._way_up(process, table, own)) is None:
                continue
            if any(p.id in others for p in way):
                continue
            if not way:
                sure = False
                continue
            shell = next(
                (p for p in reversed(way) if p.name in SHELLS), way[-1] if self._is_apart(way[-1], table) else None
            )
            if way[-1].parent != self._agent:
                shell = None
                able = [call for call in self._sessions.get(process.session, able + late) if call in able + late]
            elif shell is None or not able or orphans:
                continue  # the agent's own helper
            else:
                text = words.setdefault(shell.id, " ".join(_command(shell.pid).split()))
                able, shown = _given(text, {call: calls[call].command for call in able})
                self._shown.update(able if shown else ())
            with self._lock:
                if shell is not None:
                    self._sessions[shell.pid] = tuple(able)
                for call in able:
                    self._of.setdefault(call, {})[process.id] = shell.id if shell is not None else None
        return sure

    sees = sys.platform == "linux"

    def begun(self, call: int) -> bool:
        """Whether a process of the call was seen."""
        with self._lock:
            return bool(self._of.get(call))

    def shows(self, call: int) -> bool:
        """Whether a shell with the call's command was seen: no hook of the person's own is taken for it."""
        return call in self._shown

    def alive(self, call: int, running: Collection[int] = ()) -> tuple[int, ...]:
        """The numbers of the call's processes that live, and of their descendants. `running`: the calls that run now;
        each other one accounts for a shell that may be of either."""
        others = [each for each in running if each != call]
        with self._lock:
            known = dict(self._of.get(call, {}))
            theirs = {shell for each in others for shell in self._of.get(each, {}).values()}
        table = process_table() if known else {}
        ids = {p.id for p in table.values()}
        shared = sorted((s for s in {*known.values()} & theirs & ids if s is not None), key=lambda s: s[1])
        excused = {*shared[: len(others)]}
        alive = {id[0]: shell for id, shell in known.items() if id in ids and shell not in excused}
        while new := {p.pid: alive[p.parent] for p in table.values() if p.parent in alive and p.pid not in alive}:
            alive |= new
        with self._lock:
            self._of.setdefault(call, {}).update({table[pid].id: shell for pid, shell in alive.items()})
        return tuple(sorted(alive))

    def forget(self, call: int) -> None:
        with self._lock:
            self._of.pop(call, None)
            self._shown.discard(call)

    def tree(self) -> Tree:
        """What is below the agent now."""
        table = process_table(zombies=True)
        below, new = {self._agent}, {self._agent}
        while new := {p.pid for p in table.values() if p.parent in new} - below:
            below |= new
        found = [table[pid] for pid in below if pid in table]
        return Tree(frozenset(p.id for p in found), any(p.ended for p in found), sum(p.reaped for p in found))

    def has_hook(self, tree: Tree, since: float) -> bool:
        """Whether the tree has what is, may become or may have been a hook of ours that began at `since` (seconds since
        boot) or later."""
        young = [pid for pid, born in tree.processes if born >= since * TICK - EARLY and pid != self._agent]
        own = _command(self._agent)
        return tree.ended or any(self._may_be_hook(_command(pid), own) for pid in young)

    def _way_up(self, process: Running, table: Mapping[int, Running], own: str) -> list[Running] | None:
        """The process and those above it, up to a child of the agent, or to an orphan. None: it is no tool's; empty: an
        orphan that cannot be read now. `own`: the agent's words."""
        way = [process]
        while (at := way[-1]).parent not in (self._agent, os.getpid()):
            if at.pid in (1, self._agent) or (parent := table.get(at.parent)) is None:
                return None
            way.append(parent)
        if at.pid == self._agent:
            return None
        words = [_command(pid) for pid in {at.pid, process.pid}]
        if at.parent == os.getpid():
            if (marked := self._is_marked(at.pid)) is False:
                return None
            if marked is None or "" in words:
                return []
        return None if any(self._may_be_hook(each, own) for each in words) else way

    def _may_be_hook(self, words: str, own: str) -> bool:
        """What the agent just forked has its words until it executes its program; what has ended meanwhile has none."""
        return words in ("", own) or _is_hook(words, self._run)

    def _is_apart(self, process: Running, table: Mapping[int, Running]) -> bool:
        """Whether it leads a session of its own: a shell becomes the one command that it was given, and agents start it
        detached."""
        agent = table.get(self._agent)
        return agent is not None and process.session != agent.session

    def _is_marked(self, pid: int) -> bool | None:
        """None: it has no variables now."""
        variables = _variables(pid)
        return f"{MARKER}={self._run}".encode() in variables.split(b"\0") if variables else None


def _given(text: str, commands: Mapping[int, str]) -> tuple[list[int], bool]:
    """The calls whose command a shell with these arguments was given, however the agent quotes it; all, and False,
    where none is recognised."""
    sizes = {}
    for call, command in commands.items():
        parts = [part for part in _QUOTED.split(command) if part]
        sizes[call] = sum(map(len, parts)) if all(part in text for part in parts) else 0
    most = max(sizes.values())
    return [call for call, size in sizes.items() if size == most], most > 0


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def _variables(pid: int) -> bytes:
    """None yet while it executes its program, and none any more once it has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:  # another user's
        return b"?"
    except OSError:
        return b""


def _just_forked(process: psutil.Process, words: str, since: float) -> bool:
    """By the agent: what it forks has its words until it executes its program."""
    with suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and not _since(parent, since) and _words(parent) == words
    return False


def _since(process: psutil.Process, since: float) -> bool:
    with suppress(psutil.Error):
        return process.create_time() >= since
    return False


def _is_hook(words: str, run: str) -> bool:
    """A hook's shell has the sign of our lines: an installed line knows the run only from the environment, and there is
    no client below the shell yet when it begins. The client gets the run's id."""
    return any(sign in words for sign in (LINE_SIGN, STANDING, run))


def command_line(process: psutil.Process) -> str:
    """Its words, or its name, or its number: whatever can still be read."""
    with suppress(psutil.Error):
        return _words(process) or process.name()
    return f"pid {process.pid}"


def _words(process: psutil.Process) -> str:
    """Empty when it has ended, or is about to."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def end_processes(processes: Iterable[psutil.Process], grace: float = GRACE) -> None:
    """SIGTERM, up to `grace` seconds, then SIGKILL for what is left. The oldest first: a script whose command is ended
    before it goes on to its next one, and a number tells no age once numbers are used again."""
    alive = sorted(processes, key=_birth)
    for process in alive:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(alive, timeout=grace)
    kill_processes(alive)


def _birth(process: psutil.Process) -> tuple[float, int]:
    try:
        return process.create_time(), process.pid
    except psutil.Error:
        return 0.0, process.pid


def kill_processes(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL, and wait until they are gone (bounded: a process in uninterruptible sleep is left behind)."""
    alive = sorted(processes, key=_birth)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=KILLED)


def await_hooks(run: str, seconds: float, urgent: Callable[[], bool]) -> None:
    """Wait for hooks that an agent, now gone, had started and not waited for, such as Claude's of a failed turn: they
    report what it died of. Not once it is `urgent`."""
    if urgent():
        return
    hooks = [p for p in _left(run, adopted=True) if _is_hook(_words(p), run)]
    until = time.monotonic() + seconds
    while hooks and time.monotonic() < until and not urgent():
        _, hooks = psutil.wait_procs(hooks, timeout=0.05)


def end_run_processes(run: str, grace: float = GRACE, adopted: bool = False) -> list[str]:
    """End everything that carries the run's marker, again until nothing new appears; gives their command lines.

    `adopted`: and every child of ours, which the sub-reaper took over; for the run itself, when its agent is gone.
    What has ended by itself meanwhile, and hooks of ours, are left out."""
    ended: list[str] = []
    for _ in range(ROUNDS):
        found = _left(run, adopted)
        if not found:
            break
        ended += [line for p in found if (line := _words(p)) and not _is_hook(line, run)]
        end_processes(found, grace)
    return ended


def _left(run: str, adopted: bool) -> list[psutil.Process]:
    own = {p.pid: p for p in descendants(os.getpid()) if p not in _SPARED} if adopted else {}
    return list({**own, **{p.pid: p for p in marked_processes(run)}}.values())

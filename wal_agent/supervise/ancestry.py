"""Say whether a process is below a live run, by facts that what runs there cannot change (I8).

A supervisor holds a memory file whose name has its run's id. The kernel shows that name in /proc/PID/fd; nothing
renames, moves or closes it from outside, while files of the run's folder can be moved by every tool. A process counts
as a person's only where each of its ancestors up to the first process was seen, and none supervises a run. Where that
is not known, it counts as the agent's.

What leaves the run's processes (another user, a pid namespace with a /proc of its own, a service manager, cron, a login
over the network) is not found: docs/decisions/060-a-persons-command-comes-from-outside.md.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from wal_agent.errors import PersonNeeded
from wal_agent.safefs import flock_state

MOST: Final = 8192  # ancestors that are read; a chain that is longer is not known
_WITH_WORDS: Final = 64  # of them with their words: a hook is a few processes below its agent
_ARGV: Final = 1 << 20  # bytes of a command line that are read
_TRIES: Final = 5  # of a chain that changes while it is read
_MARK: Final = "wal-agent-run-"
_MARKED: Final = re.compile(rf"/memfd:{_MARK}([0-9a-f]{{16}})(?: \(deleted\))?")
_NAMED: Final = re.compile(r"\bwal[_-]agent")
_RUN: Final = re.compile(r"[0-9a-f]{16}")

End = Literal["supervisor", "top", "unknown"]
"""Where a chain of ancestors ends: at the supervisor that was named; at the first process, or at one of another user
that cannot be seen; somewhere else, so that it is not known what is above."""


class Process(msgspec.Struct, frozen=True):
    """One process as it was when it was read. `began` tells two processes of one number apart; `session` is its
    session leader's number (setsid), which a process can leave but not join."""

    pid: int
    parent: int
    began: float
    session: int
    argv: tuple[str, ...] = ()

    def is_(self, other: Process | None) -> bool:
        return other is not None and (self.pid, self.began) == (other.pid, other.began)


class Ancestry(msgspec.Struct, frozen=True):
    """A process and its ancestors, the supervisor and what is above it left out. No `processes`: it is gone, or is the
    supervisor itself."""

    processes: tuple[Process, ...] = ()
    end: End = "unknown"


def read_process(pid: int, words: bool = True) -> Process | None:
    """None: it is gone, or not to be seen from here. `words`: with its command line."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            argv = b""
            if words:
                with Path(f"/proc/{pid}/cmdline").open("rb") as file:
                    argv = file.read(_ARGV)
        except OSError:
            return None
        fields = stat[stat.rindex(b")") + 2 :].split()  # the name in front may hold anything
        split = tuple(argv.decode("utf-8", "replace").rstrip("\0").split("\0")) if argv else ()
        return Process(pid, int(fields[1]), float(fields[19]), int(fields[3]), split)
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return Process(pid, process.ppid(), process.create_time(), os.getsid(pid), tuple(process.cmdline()))
    except (psutil.Error, OSError):
        return None


def ancestry_of(pid: int, supervisor: int = 0, read: Callable[[int, bool], Process | None] = read_process) -> Ancestry:
    """`pid` and what is above it, up to `supervisor` (0: to the first process)."""
    found = Ancestry()
    for _ in range(_TRIES):
        now = _walk(pid, supervisor, read)
        found = now if len(now.processes) >= len(found.processes) else found
        if now.end != "unknown" or not now.processes:
            break
    return found


def _walk(pid: int, supervisor: int, read: Callable[[int, bool], Process | None]) -> Ancestry:
    found: list[Process] = []
    while len(found) < MOST:
        if supervisor and pid == supervisor:
            return Ancestry(tuple(found), "supervisor")
        if pid <= 0:
            return Ancestry(tuple(found), "top" if found else "unknown")
        process = read(pid, len(found) < _WITH_WORDS)
        if process is None:
            return Ancestry(tuple(found), "top" if found and _is_another_users(pid) else "unknown")
        if found and process.began > found[-1].began:
            break  # the number went to another process meanwhile
        found.append(process)
        pid = process.parent
    return Ancestry(tuple(found), "unknown")


def _is_another_users(pid: int) -> bool:
    """Whether a process lives that this user may not signal: such a one may be hidden (hidepid), and is no agent of
    ours. An agent can hide its own processes there, but not from their user's signals."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def own_pid() -> int:
    """The number of this process where processes are read; in a pid namespace with the /proc of the one around it, that
    is another number than its own."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/self").readlink().name)
    return os.getpid()


# --- runs


def mark_run(run: str) -> int:
    """Make this process known as the supervisor of `run`, as long as the descriptor that is returned stays open. -1:
    this system has no such files, and the run is known by its lock alone."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.memfd_create(f"{_MARK}{run}")
    return -1


class OuterRun(msgspec.Struct, frozen=True):
    """A run that this process is below. `supervisor`: its pid, 0 where it is not known whether there is one. `run`: ""
    where it is not known which one."""

    run: str
    supervisor: int

    @property
    def workspace(self) -> Path | None:
        """Where it works; None where that cannot be read."""
        with suppress(OSError):
            return Path(f"/proc/{self.supervisor}/cwd").readlink()
        return None


def outer_runs() -> tuple[OuterRun, ...]:
    """The live runs that this process is below, the innermost first."""
    return runs_above(ancestry_of(own_pid()))


def runs_above(own: Ancestry) -> tuple[OuterRun, ...]:
    """As `outer_runs`, of a process by its ancestry. One that is not known stands for what is above an end that is not
    the top."""
    found = [OuterRun(run, p.pid) for p in own.processes[1:] if (run := run_of(p.pid)) is not None]
    return tuple(found) if own.end == "top" else (*found, OuterRun("", 0))


def require_person(command: str) -> None:
    """Raises PersonNeeded where an agent or one of its tools typed it, or it is not known who did (I8)."""
    if above := outer_runs():
        raise person_needed(command, above[0])


def person_needed(command: str, above: OuterRun) -> PersonNeeded:
    if above.supervisor == 0:
        return PersonNeeded(
            f"`{command}` is for a person, and it is not known who typed this: its parent processes cannot be read up "
            "to the first one. Nothing was done.",
            f"Type it in a terminal of your own, where /proc can be read: {command}",
        )
    return PersonNeeded(
        f"`{command}` is for a person, and this was typed by the agent of run {above.run or '(hidden)'} or by a tool "
        "of its; nothing was done.",
        f"A person types it in a terminal of their own: {command}",
    )


def is_supervisor(pid: int, run: str) -> bool:
    """Whether the process `pid` of this user supervises the live run `run`."""
    return pid > 1 and bool(run) and run_of(pid) == run


def run_of(pid: int) -> str | None:
    """The run that this process supervises; None: it supervises none. "": it is a wal-agent of this user's whose files
    are hidden from here, as from a user namespace that a tool has made."""
    try:
        for path in _open_files(pid):
            if marked := _MARKED.fullmatch(path):
                return marked[1]
            if path.endswith("/lock"):  # where there is no mark
                run = path.split("/")[-2]
                if _RUN.fullmatch(run) and flock_state(path) == "held":
                    return run
    except PermissionError:
        return "" if _is_own_wal_agent(pid) else None
    return None


def _is_own_wal_agent(pid: int) -> bool:
    with suppress(OSError):
        process = read_process(pid)
        own = Path(f"/proc/{pid}").stat().st_uid == os.getuid()
        return own and process is not None and any(_NAMED.search(word) for word in process.argv[:8])
    return False


def _open_files(pid: int) -> Iterator[str]:
    """PermissionError: they are hidden."""
    if sys.platform == "linux":
        try:
            names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
        except FileNotFoundError:  # it is gone
            return
        for name in names:
            with suppress(FileNotFoundError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - no path of a file
        return
    import psutil

    with suppress(psutil.Error, OSError):
        for file in psutil.Process(pid).open_files():
            yield file.path

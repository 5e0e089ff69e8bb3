"""The processes of a run: found by parentage and by the WAL_AGENT_RUN marker in their environment, and ended.

A tool's shell is a session leader and outlives its CLI, so parentage alone loses it; the marker is lost by `sudo` or
`env -i`, so on Linux the supervisor is also a sub-reaper: what loses its parent becomes our child (DESIGN 7.2).
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

from wal_agent.hookwire import LINE_SIGN

MARKER = "WAL_AGENT_RUN"
CHAIN = "WAL_AGENT_RUNS"  # of a run inside another one's tool: both ids and more, the outermost first, between colons
GRACE = 2.0  # seconds from SIGTERM to SIGKILL
KILLED = 5.0  # seconds in which what was killed is gone, unless the kernel holds it
ROUNDS = 5  # in which a run is ended: what was young then may have made more
ENDING = ROUNDS * (GRACE + KILLED)  # seconds that `end_run` takes at most
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Linux: orphans of the agent are handed to this process instead of init. Elsewhere: nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


_SPARED: set[psutil.Process] = set()  # by number and time of birth


def spare_child(pid: int) -> None:
    """A child of this process that is no part of the run and outlives it; the agent's leftovers never are."""
    with suppress(psutil.Error):
        _SPARED.add(psutil.Process(pid))


def marked_processes(run: str) -> list[psutil.Process]:
    """Living processes of this user that carry the run's marker, or that of a run inside it, but for this process."""
    found = []
    for process in psutil.process_iter(["pid"]):
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            env = process.environ()
            its = run in (env.get(MARKER, ""), *env.get(CHAIN, "").split(":"))
            if run and its and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


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
    no client below the shell yet when it begins. The client is told the run."""
    return LINE_SIGN in words or run in words


def command_line(process: psutil.Process) -> str:
    """Its words, or its name, or its number: whatever can still be told."""
    with suppress(psutil.Error):
        return _words(process) or process.name()
    return f"pid {process.pid}"


def _words(process: psutil.Process) -> str:
    """Empty when it has ended, or is about to."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def end_processes(processes: Iterable[psutil.Process], grace: float = GRACE) -> None:
    """SIGTERM, up to `grace` seconds, then SIGKILL for what is left."""
    alive = list(processes)
    for process in alive:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(alive, timeout=grace)
    kill_processes(alive)


def kill_processes(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL, and wait until they are gone (bounded: a process in uninterruptible sleep is left behind)."""
    alive = list(processes)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=KILLED)


def await_hooks(run: str, seconds: float, urgent: Callable[[], bool]) -> None:
    """Wait for hooks that an agent, now gone, had started and not waited for, such as Claude's of a failed turn: they
    tell what it died of. Not once it is `urgent`."""
    if urgent():
        return
    hooks = [p for p in _left(run, adopted=True) if _is_hook(_words(p), run)]
    until = time.monotonic() + seconds
    while hooks and time.monotonic() < until and not urgent():
        _, hooks = psutil.wait_procs(hooks, timeout=0.05)


def end_run_processes(run: str, grace: float = GRACE, adopted: bool = False) -> list[str]:
    """End everything that carries the run's marker, again until nothing new appears; gives their command lines.

    `adopted`: and every child of ours, which the sub-reaper took over; for the run itself, when its agent is gone.
    What has ended by itself meanwhile, and hooks of ours, are not told."""
    told: list[str] = []
    for _ in range(ROUNDS):
        found = _left(run, adopted)
        if not found:
            break
        told += [line for p in found if (line := _words(p)) and not _is_hook(line, run)]
        end_processes(found, grace)
    return told


def _left(run: str, adopted: bool) -> list[psutil.Process]:
    own = {p.pid: p for p in descendants(os.getpid()) if p not in _SPARED} if adopted else {}
    return list({**own, **{p.pid: p for p in marked_processes(run)}}.values())

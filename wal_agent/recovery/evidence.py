"""Looks at files for evidence, before a call and at a recovery; changes nothing, and stays within a budget (I9).

`before` runs on the way of every changing call, so it takes what it can get in 50 ms and otherwise says nothing.
What is found is judged in verdict.py.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from wal_agent.clock import Clock, SystemClock
from wal_agent.records import Fact, Host, Opening, Verdict
from wal_agent.recovery.classify import read_input
from wal_agent.recovery.verdict import FILE_TOOLS, Circumstances, FileNow, verdict
from wal_agent.wal.state import OpenCall, State

MOST_BYTES = 4 << 20  # of one call's files
MOST_FILES = 8
BEFORE_BUDGET = 0.05  # seconds
NOW_BUDGET = 2.0  # seconds, for all calls of a recovery
_CHUNK = 256 << 10
_SYSTEM = SystemClock()
# Gemini's shell around one command. The file is another one for each call; the shell's forks have the same line.
_SHELL = re.compile(
    r"(?:\S*/)?bash -c (?:shopt -u [a-z ]+;\s+)?_bgpids_file=(?P<file>'[^']*'|[^\s']+)\s+"
    r"\(\s+trap 'jobs -p > \"\$_bgpids_file\"' EXIT\s(?P<command>.*)\s\)\s+__code=\$\?\s+exit \$__code\s*",
    re.DOTALL,
)


def before(tool: str, input: bytes, workspace: Path, clock: Clock = _SYSTEM) -> tuple[Fact, ...]:
    """What is true of the files that a call names: hash or "absent". Empty where nothing safe and quick can be said."""
    path = target(tool, input, workspace)
    if path is None:
        return ()
    now = look(path, clock, clock.boot() + BEFORE_BUDGET)
    return () if now.value is None else (Fact(what="file", where=path, value=now.value),)


def target(tool: str, input: bytes, workspace: Path) -> str | None:
    """The one file that a call of a file tool changes, absolute; None for other tools and for a path that the agent may
    read in another way (Gemini: percent escapes, a leading @, file: URLs, blanks at the ends)."""
    if tool not in FILE_TOOLS:
        return None
    fields = read_input(input) or {}
    named = fields.get("file_path")
    if not isinstance(named, str) or not named or named != named.strip() or "\0" in named or "%" in named:
        return None
    if named.startswith(("@", "file:", "~")) or named.endswith("/"):
        return None
    return os.path.normpath(workspace / named)


def look(path: str, clock: Clock, deadline: float, most: int = MOST_BYTES) -> FileNow:
    """A regular file's bytes, through one descriptor. Unreadable: links, other kinds, bigger than `most` bytes, changed
    while it was read, or not read by `deadline` (boot time)."""
    nothing = FileNow(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        return FileNow(path, absent=True)
    except (OSError, ValueError):
        return nothing
    try:
        first = os.fstat(fd)
        if not stat.S_ISREG(first.st_mode) or first.st_size > most:
            return nothing
        parts: list[bytes] = []
        while part := os.read(fd, _CHUNK):
            parts.append(part)
            if clock.boot() > deadline or sum(map(len, parts)) > most:
                return nothing
        last = os.fstat(fd)
    except OSError:
        return nothing
    finally:
        os.close(fd)
    same = (first.st_size, first.st_mtime_ns) == (last.st_size, last.st_mtime_ns)
    return FileNow(path, b"".join(parts)) if same else nothing


# ---- at a recovery -------------------------------------------------------------------------------------------------


def verdicts(
    state: State,
    inputs: Mapping[int, bytes],
    here: Host,
    workspace: Path,
    running: Sequence[str],
    gone: bool,
    clock: Clock = _SYSTEM,
) -> tuple[Verdict, ...]:
    """A verdict for every open call of `state` (the log before our opening).

    `inputs`: by call number. `running`: whole command lines of processes of the old run that were still running here
    and are ended by this recovery. `gone`: nothing of the old run is running any more."""
    openings = {o.opening.epoch: o.opening for o in state.openings}
    deadline = clock.boot() + NOW_BUDGET
    ended_now = still_running(state.open, inputs, running)
    found: list[Verdict] = []
    looked = 0
    for o in state.open:
        data, run = inputs.get(o.intent.call), openings.get(o.epoch)
        path = None if data is None else _here(o, data, run, workspace)
        now = None
        if path is not None and looked < MOST_FILES and clock.boot() < deadline:
            now, looked = look(path, clock, deadline), looked + 1
        around = Circumstances(
            same_place=_same_place(run, here, workspace),
            gone=gone,
            alone=alone(o, state, inputs, workspace),
            ended_now=o.intent.call in ended_now,
        )
        found.append(verdict(o.intent, data, now, around))
    return tuple(found)


def still_running(open: Iterable[OpenCall], inputs: Mapping[int, bytes], running: Sequence[str]) -> frozenset[int]:
    """The shell calls whose shell is among the running processes, where that can mean only them: of identical calls as
    many must run. A process that merely names the command, or was started by it, tells nothing for sure."""
    commands: dict[str, list[int]] = {}
    for o in open:
        command = (read_input(inputs.get(o.intent.call, b"")) or {}).get("command")
        if isinstance(command, str) and command.strip():
            commands.setdefault(command.strip(), []).append(o.intent.call)
    shells: dict[str, set[str]] = {}
    for line in running:
        if shell := _SHELL.fullmatch(line):
            shells.setdefault(shell["command"].strip(), set()).add(shell["file"])
    sure = [calls for command, calls in commands.items() if len(shells.get(command, ())) >= len(calls)]
    return frozenset(call for calls in sure for call in calls)


def alone(o: OpenCall, state: State, inputs: Mapping[int, bytes], workspace: Path) -> bool:
    """Whether no other call can have touched this call's file since it began: every call that was open with it, ended
    after it began or began later only reads, or is known to change another file."""
    me = o.intent
    mine = target(me.tool, inputs.get(me.call, b""), workspace)
    if mine is None:
        return False
    others = [x.intent for x in state.open if x.intent.call != me.call]
    others += [e.intent for e in state.unsettled if e.intent.call > me.call or e.end.time >= me.time]
    known = {x.intent.call for x in state.open} | {e.intent.call for e in state.unsettled}
    if any(n not in known for n in range(me.call + 1, state.next_call)):
        return False  # a later call has ended and is no longer told by the state: it may have done anything
    for other in others:
        its = target(other.tool, inputs.get(other.call, b""), workspace)
        if other.cls != "read_only" and (its is None or its == mine or Path(its).name == Path(mine).name):
            return False
    return True


def _same_place(run: Opening | None, here: Host, workspace: Path) -> bool:
    if run is None:
        return False
    return (run.host.boot, run.host.pidns, run.workspace) == (here.boot, here.pidns, str(workspace))


def _here(o: OpenCall, input: bytes, run: Opening | None, workspace: Path) -> str | None:
    """The call's file on this machine: a path in the old workspace means the same place in this one."""
    then = Path(run.workspace) if run is not None else workspace
    path = target(o.intent.tool, input, then)
    if path is None or not Path(path).is_relative_to(then):
        return path
    return str(workspace / Path(path).relative_to(then))

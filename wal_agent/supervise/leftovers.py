"""Find what a lost run left running on this machine, and name the calls that it is of. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import psutil

from wal_agent.records import RunsOn
from wal_agent.supervise.processes import command_line, marked_processes
from wal_agent.wal.state import State

if TYPE_CHECKING:
    from wal_agent.calls.call import ReadCall


class Leftover(msgspec.Struct, frozen=True):
    """A process: its number, its parent's, and its words."""

    pid: int
    parent: int
    line: str


class Leftovers(msgspec.Struct, frozen=True):
    """`of`: the call of each process that is known to be one's, by the process's words."""

    lines: tuple[str, ...] = ()
    of: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def calls(self) -> Collection[int]:
        return set(self.of.values())

    def named(self, lines: Sequence[str]) -> list[str]:
        """The words of processes, each behind the number of its call."""
        return [f"call #{self.of[line]}: {line}" if line in self.of else line for line in lines]


def find_leftovers(run: str, state: State, calls: Mapping[int, ReadCall]) -> Leftovers:
    found = []
    for process in marked_processes(run):
        parent = 0
        with suppress(psutil.Error):
            parent = process.ppid()
        found.append(Leftover(process.pid, parent, command_line(process)))
    return name_calls(found, state, calls)


def name_calls(found: Sequence[Leftover], state: State, calls: Mapping[int, ReadCall]) -> Leftovers:
    """A process is a call's that the log has for one that runs on, or whose shell it is, or whose parent is. Pure."""
    lines = tuple(each.line for each in found)
    if not found or not state.open:
        return Leftovers(lines)
    from wal_agent.evidence.collector import find_running_calls  # late: with the evidence

    agent = state.openings[-1].opening.agent if state.openings else ""
    of = {pid: o.intent.call for o in state.open if isinstance(o.held, RunsOn) for pid in o.held.pids}
    for each in found:
        if each.pid not in of and len(its := find_running_calls(agent, state, calls, [each.line])) == 1:
            (of[each.pid],) = its
    while new := {p.pid: of[p.parent] for p in found if p.parent in of and p.pid not in of}:
        of |= new
    return Leftovers(lines, {each.line: of[each.pid] for each in found if each.pid in of})

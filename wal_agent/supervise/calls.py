"""The calls of this run that have begun and not ended.

Where an agent gives call ids they are matched, the newest of equal ones: models on one's own machine count them anew in
each answer. Else by tool and input, oldest first: identical parallel calls are one counter (n of m open), and which
number is ended carries no meaning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from wal_agent.agents.session_files import well_formed
from wal_agent.records import Class


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call between its before-hook and its end. `changes`: it may change something, by our own rules at least.
    `began` is wall time in seconds, `since` the same moment by the boot clock, which says how long the call took.
    `inner`: a subagent makes it, so the main file need not tell of it. `cwd`: where the agent said that it runs.
    `cls`: by what it is watched (watchdog.py). `nested`: the agent below this one that makes it, "" for none; no word
    of the outer agent or its files is about such a call."""

    call: int
    tool: str
    input: bytes
    call_id: str
    changes: bool
    began: float
    inner: bool = False
    cwd: str = ""
    cls: Class = "unknown"
    nested: str = ""
    since: float = 0.0


class LoggedEnd(NamedTuple):
    """A call that has ended and is still going to be told. `denied`: by us, so that it never ran."""

    call: int
    call_id: str
    tool: str
    hash: bytes  # of the input
    denied: bool


@dataclass(slots=True)
class Calls:
    """Not thread-safe: the supervisor holds its lock."""

    running: dict[int, RunningCall] = field(default_factory=dict)
    again: list[LoggedEnd] = field(default_factory=list)
    """Ended calls that the session file is still going to tell as well."""

    def start(self, call: RunningCall) -> None:
        self.running[call.call] = call

    def find(
        self,
        tool: str,
        input: bytes,
        call_id: str = "",
        upto: int | None = None,
        exact: bool = False,
        inner: bool = True,
        nested: str = "",
    ) -> RunningCall | None:
        """The running call (numbered at most `upto`) that this event can belong to. `inner`: without an id, a
        subagent's may be meant too.

        An input that a user's own hook rewrote matches none; then, unless `exact`, the tool's only running call is
        meant, if it is one."""
        pool = [r for r in self.running.values() if r.nested == nested and (upto is None or r.call <= upto)]
        wanted = canonical_json(input)
        if call_id:
            named = [r for r in pool if r.call_id == call_id]
            return max(
                named, key=lambda r: (r.tool == tool and canonical_json(r.input) == wanted, r.call), default=None
            )
        pool = [r for r in pool if inner or not r.inner]
        same = _first(pool, lambda r: r.tool == tool and canonical_json(r.input) == wanted)
        if same is not None or exact:
            return same
        same_tool = [r for r in pool if r.tool == tool]
        return same_tool[0] if len(same_tool) == 1 else None

    def end(self, call: int, again: bool = False, denied: bool = False) -> RunningCall | None:
        """`again`: the session file will tell of this end too."""
        ended = self.running.pop(call, None)
        if ended is not None and again and not ended.inner:
            self.again.append(LoggedEnd(call, ended.call_id, ended.tool, _hash(ended.input), denied))
        return ended

    def told_again(self, tool: str, input: bytes, upto: int, call_id: str = "", denied: bool = False) -> bool:
        """Whether what the session tells is an end that is known already; each counts once. `denied`: only one that we
        denied can be meant."""
        wanted = (tool, _hash(input))
        pool = [known for known in self.again if known.call <= upto and known.denied >= denied]
        found: LoggedEnd | None
        if call_id:
            named = [known for known in pool if known.call_id == call_id]
            found = max(named, key=lambda known: ((known.tool, known.hash) == wanted, known.call), default=None)
        else:
            found = next((known for known in pool if (known.tool, known.hash) == wanted), None)
        if found is not None:
            self.again.remove(found)
        return found is not None

    def told_upto(self, newest: int) -> int:
        """Every call numbered up to this is over and told by the session file. `newest`: the number of the newest."""
        waiting = [call for call, r in self.running.items() if not r.inner]
        return min([*waiting, *(known.call for known in self.again)], default=newest + 1) - 1

    def forget(self, upto: int) -> None:
        """The session has told all that it will of calls numbered up to `upto`."""
        self.again = [known for known in self.again if known.call > upto]

    def changing(self) -> list[RunningCall]:
        """Running calls that may change something."""
        return [r for r in self.running.values() if r.changes]


def canonical_json(input: bytes) -> bytes:
    """One spelling for equal JSON: a session file may order keys otherwise than a hook does."""
    try:
        return msgspec.json.encode(msgspec.json.decode(well_formed(input)), order="deterministic")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return input


def _hash(input: bytes) -> bytes:
    return hashlib.sha256(canonical_json(input)).digest()


def _first(pool: list[RunningCall], test: Callable[[RunningCall], bool]) -> RunningCall | None:
    return next((r for r in pool if test(r)), None)

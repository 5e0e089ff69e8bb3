"""Finds calls that ran without being announced by a hook (I5): in the session's files, at the first look behind their
end.

A finished call whose id no before-hook reported proves that hooks are off; without ids, more finished calls of a tool
than before-hooks. From then on each such call goes into the log as what it is, and at the end also those that the
session asked for and that have no result: they may have begun.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from wal_agent.agents.base import Agent, NamesCallsOnce, RequestedCall, SeenCall
from wal_agent.records import Ending
from wal_agent.supervise.gate import Gate

MAX_ASKED = 4096  # calls that are remembered until their result comes (I9)
MAX_ASKED_BYTES = 8 << 20  # of their inputs
_PIECE = 1 << 20
_HOW: dict[str, Ending] = {"done": "done", "failed": "failed", "cancelled": "interrupted"}


class Unlogged:
    """One session at a time; used by the thread that reads the session's files. `report`: given the tool of each call
    that was found."""

    def __init__(self, agent: Agent, gate: Gate, skip: frozenset[str], report: Callable[[str], None]) -> None:
        self._agent = agent
        self._gate = gate
        self._skip = skip
        self._report = report
        self._done: Counter[str] = Counter()
        self._asked = _Asked()
        self._off = False
        self.by_file = isinstance(agent, NamesCallsOnce)  # a hook announces every call of every file, by its id

    def begin(self) -> None:
        """Another session: what was asked for in the old one is over."""
        self._asked = _Asked()

    def read(self, appended: bytes, seen: list[SeenCall]) -> list[SeenCall]:
        """`seen` in these bytes, with the tool and the input of calls that earlier bytes asked for."""
        if isinstance(self._agent, NamesCallsOnce):
            self._asked.add(self._agent.requested_calls(appended))
        found = []
        for call in seen:
            asked = self._asked.take(call.call_id)
            named = bool(call.tool) or asked is None
            found.append(call if named else replace(call, tool=asked.tool, input=asked.input))  # type: ignore[union-attr]
        return found

    def count(self, seen: SeenCall, session: str, path: Path | None, old: int) -> None:
        """One call that the session shows as over. The first `old` bytes of `path` are of before this run."""
        if seen.tool in self._skip or not (seen.tool or (seen.call_id and not self._skip)):
            return
        ran = seen.status == "done" or (self._off and seen.status in _HOW)
        if seen.call_id:  # hooks may know it under another tool's name: Codex takes a shell's patch for one
            if not ran or self._gate.knows(seen.call_id):
                return
            if path is not None and file_contains(path, seen.call_id, old):  # repeated
                return
        else:
            self._done[seen.tool] += ran
            if not ran or self._done[seen.tool] <= self._gate.begun[seen.tool]:
                return
        self._off = True
        self._gate.unlogged(session, seen.tool, seen.input, seen.call_id, _HOW[seen.status])
        self._report(seen.tool or "a tool")

    def finish(self, session: str, path: Path | None, old: int) -> None:
        """The agent is gone. With hooks off, what it was asked for and has no result may have begun."""
        for id, asked in self._asked.rest() if self._off else ():
            known = asked.tool in self._skip or self._gate.knows(id)
            if not known and not (path is not None and file_contains(path, id, old)):
                self._gate.unlogged(session, asked.tool, asked.input, id, None)


class _Asked:
    """Calls by id, whose result has not been seen; the oldest go first where there are too many."""

    def __init__(self) -> None:
        self._calls: dict[str, RequestedCall] = {}
        self._size = 0

    def add(self, calls: Mapping[str, RequestedCall]) -> None:
        for id, call in calls.items():
            self.take(id)
            self._calls[id] = call
            self._size += len(call.input)
        while len(self._calls) > MAX_ASKED or (self._size > MAX_ASKED_BYTES and len(self._calls) > 1):
            self.take(next(iter(self._calls)))

    def take(self, id: str) -> RequestedCall | None:
        call = self._calls.pop(id, None)
        self._size -= len(call.input) if call else 0
        return call

    def rest(self) -> list[tuple[str, RequestedCall]]:
        return list(self._calls.items())


def file_contains(path: Path, text: str, size: int) -> bool:
    """Do the first `size` bytes of a file have `text`?"""
    wanted, kept = text.encode("utf-8", "replace"), b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        while size > 0 and (piece := file.read(min(_PIECE, size))):
            size -= len(piece)
            if wanted in kept + piece:
                return True
            kept = piece[-len(wanted) :]
    return False

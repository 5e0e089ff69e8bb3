"""What the agent did about a call in flight after it was told of it (I8): whether it looked, as it was told to, or ran
the very call again. Either ends the intent. Only calls that the log saw count, never the agent's own words. Pure.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wal_agent.records import End, Finding
from wal_agent.shell.classify import FOLDERS, read_input
from wal_agent.shell.syntax import parse


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call in flight that the agent was asked about; `verify` is the command that it was told to look with, and
    `finding` what it was told to be known. `folder`: where it ran, as that is here; "" for the workspace."""

    call: int
    tool: str
    input: bytes | None
    verify: str = ""
    finding: Finding = "unknown"
    folder: str = ""


class Resolver:
    """What is known of the calls that were asked about. Threads may share it."""

    def __init__(self, asked: Iterable[AskedCall], workspace: str = "") -> None:
        self._asked = tuple(asked)
        self._workspace = workspace
        self._lock = threading.Lock()
        self._found: dict[int, str] = {}
        self.given: set[int] = set()  # calls whose end was given

    def saw(self, call: int, tool: str, input: bytes, cwd: str = "") -> None:
        """A later call that ended well. `cwd`: where the agent said that it ran, "" where it says nothing: then that
        counts as the workspace. A call that ran elsewhere is only answered there, whatever the words are."""
        folder = "" if cwd == self._workspace else cwd
        with self._lock:
            there = [a for a in self._left() if a.folder == folder]
            same = [a for a in there if a.tool == tool and a.input is not None and _is_same_input(a.input, input)]
            for asked in same[:1]:  # of identical ones, one was run again
                self._found[asked.call] = f"the very same call was run again as #{call}, and ended"
            for asked in there:
                if asked.call not in self._found and asked.verify and _verifies(input, asked):
                    self._found[asked.call] = f"the agent looked with #{call}, as it was told to"

    def _left(self) -> Sequence[AskedCall]:
        return [a for a in self._asked if a.call not in self._found]

    def ends(self, open: Iterable[int], now: float) -> list[End]:
        """The ends of those that are still open, each once. `now`: seconds since 1970."""
        with self._lock:
            settled = {*open} & self._found.keys() - self.given
            self.given |= settled
        return [
            End(time=now, call=a.call, how="interrupted", by="recovery", why=self._found[a.call], finding=a.finding)
            for a in self._asked
            if a.call in settled
        ]


def _is_same_input(one: bytes, other: bytes) -> bool:
    a, b = read_input(one), read_input(other)
    return one == other if a is None or b is None else _comparable(a) == _comparable(b)


def _comparable(fields: dict[str, object]) -> str:
    """Without the words that agents add for people."""
    return json.dumps({k: v for k, v in fields.items() if k != "description"}, sort_keys=True)


def _verifies(input: bytes, asked: AskedCall) -> bool:
    """Whether a command is the one to look with and nothing else, where the call in flight ran, and shows what it says:
    one behind `cd` looks elsewhere, one in a list may not have run, one whose output is thrown away shows nothing."""
    fields, meant = read_input(input) or {}, read_input(asked.input or b"") or {}
    if any(fields.get(name) != meant.get(name) for name in FOLDERS):
        return False
    words = _plain_words(fields.get("command"))
    return words is not None and words == _plain_words(asked.verify)


def _plain_words(text: object) -> tuple[str, ...] | None:
    """Of a single plain command; None for anything else."""
    script = parse(text) if isinstance(text, str) and text else None
    if script is None or len(script.commands) != 1 or script.functions:
        return None
    (command,) = script.commands
    words = tuple(w.text for w in command.words)
    if not command.sure or command.redirects or command.assigns or not words or None in words:
        return None
    return tuple(w for w in words if w is not None)

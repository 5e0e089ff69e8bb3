"""What the agent did about a call in flight after it was told of it (I8): whether it looked, as it was told to, or ran
the very call again. Either ends the intent. Only calls that the log saw count, never the agent's own words. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wal_agent.records import End, Finding
from wal_agent.recovery.bash import Simple, parse
from wal_agent.recovery.classify import read_input


@dataclass(frozen=True, slots=True)
class Asked:
    """A call in flight that the agent was asked about; `verify` is the command that it was told to look with, and
    `finding` what it was told to be known."""

    call: int
    tool: str
    input: bytes | None
    verify: str = ""
    finding: Finding = "unknown"


class Answers:
    """What is known of the calls that were asked about. Not for two threads at once."""

    def __init__(self, asked: Iterable[Asked]) -> None:
        self._asked = tuple(asked)
        self._found: dict[int, str] = {}
        self.given: set[int] = set()  # calls whose end was given

    def saw(self, call: int, tool: str, input: bytes) -> None:
        """A later call that ended well."""
        if len(self._found) == len(self._asked):
            return
        same = [a for a in self._left() if a.tool == tool and a.input is not None and _same(a.input, input)]
        for asked in same[:1]:  # of identical ones, one was run again
            self._found[asked.call] = f"the very same call was run again as #{call}, and ended"
        commands = _commands(_text(input))
        for asked in self._left():
            if commands and asked.verify and _runs(commands, asked.verify):
                self._found[asked.call] = f"the agent looked with #{call}, as it was told to"

    def _left(self) -> Sequence[Asked]:
        return [a for a in self._asked if a.call not in self._found]

    def ends(self, open: Iterable[int], now: float) -> list[End]:
        """The ends of those that are still open, each once. `now`: seconds since 1970."""
        settled = {*open} & self._found.keys() - self.given
        self.given |= settled
        return [
            End(time=now, call=a.call, how="interrupted", by="recovery", why=self._found[a.call], finding=a.finding)
            for a in self._asked
            if a.call in settled
        ]


def _same(one: bytes, other: bytes) -> bool:
    a, b = read_input(one), read_input(other)
    return one == other if a is None or b is None else _said(a) == _said(b)


def _said(fields: dict[str, object]) -> str:
    """Without the words that agents add for people."""
    return json.dumps({k: v for k, v in fields.items() if k != "description"}, sort_keys=True)


def _text(input: bytes) -> str:
    command = (read_input(input) or {}).get("command")
    return command if isinstance(command, str) else ""


def _commands(text: str) -> tuple[Simple, ...]:
    script = parse(text) if text else None
    return script.commands if script is not None and not script.functions else ()


def _runs(commands: tuple[Simple, ...], verify: str) -> bool:
    """Whether `verify`, a single plain command, is among the commands that ran for sure."""
    wanted = _commands(verify)
    if len(wanted) != 1 or (words := _words(wanted[0])) is None:
        return False
    return any(c.sure and _words(c) == words for c in commands)


def _words(command: Simple) -> tuple[str, ...] | None:
    words = tuple(w.text for w in command.words)
    return None if not words or None in words else tuple(w for w in words if w is not None)

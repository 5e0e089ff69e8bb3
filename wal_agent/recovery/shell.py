"""Reads the simplest shell commands, and says of everything else that it cannot be read.

A command is read only if it is one line of plain words. Every character must be one that no shell gives a meaning to;
whatever else stands there (operators, expansions, globs, escapes, comments, non-ASCII) ends the reading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wal_agent.recovery.rules import Command

_PLAIN = r"[A-Za-z0-9_./,:=+@%-]"
_WORD = re.compile(rf"(?:{_PLAIN}|'(?:{_PLAIN}| )*'|\"(?:{_PLAIN}| )*\")+")
_LINE = re.compile(rf" *{_WORD.pattern}(?: +{_WORD.pattern})* *")

# Reading these can consume or change something (a FIFO of a service, a device, a kernel file).
_LIVE_FILE = re.compile(r"(?:^|[/=])(?:dev|proc|sys|run)(?:/|$)")

MAX_COMMAND = 4096


def plain_words(command: str) -> tuple[str, ...] | None:
    """The words of a command that needs no shell to be understood, quotes removed; None for any other."""
    if len(command) > MAX_COMMAND or _LINE.fullmatch(command) is None:
        return None
    return tuple(m.group().replace("'", "").replace('"', "") for m in _WORD.finditer(command))


def only_reads(words: Sequence[str], command: Command) -> bool:
    """Whether the command keeps to what its rule allows. Words that an option takes as its value count as operands."""
    rest = list(words[len(command.program) :])
    if tuple(words[: len(command.program)]) != command.program or (command.required and command.required not in rest):
        return False
    operands_only = False
    for word in rest:
        if not operands_only and word == "--":
            operands_only = True
        elif not operands_only and word.startswith("--"):
            name, equals, _value = word.partition("=")
            if name + equals not in command.long:
                return False
        elif not operands_only and len(word) > 1 and word.startswith("-"):
            if not set(word[1:]) <= command.short:
                return False
        elif command.operands.fullmatch(word) is None:
            return False
        if _LIVE_FILE.search(word):
            return False
    return True

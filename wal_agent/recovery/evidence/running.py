"""Which shell calls still ran when the recovery began."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from wal_agent.recovery.classify import read_input
from wal_agent.wal.state import OpenCall

# Gemini's shell around one command. The file is another one for each call; the shell's forks have the same line.
_SHELL = re.compile(
    r"(?:\S*/)?bash -c (?:shopt -u [a-z ]+;\s+)?_bgpids_file=(?P<file>'[^']*'|[^\s']+)\s+"
    r"\(\s+trap 'jobs -p > \"\$_bgpids_file\"' EXIT\s(?P<command>.*)\s\)\s+__code=\$\?\s+exit \$__code\s*",
    re.DOTALL,
)


def still_running(open: Iterable[OpenCall], inputs: Mapping[int, bytes], running: Iterable[str]) -> frozenset[int]:
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

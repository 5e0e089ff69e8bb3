"""Kilo Code's CLI, which is built from OpenCode. Measured on the version in `tested`."""

from __future__ import annotations

import math
import re

from wal_agent.agents.opencode.agent import OpenCode
from wal_agent.agents.opencode.edition import Edition
from wal_agent.agents.program import Program

tested = "7.7.7"
also: tuple[str, ...] = ()

_DUE = re.compile(rb'"dueAt":(\d{1,15})\b')


def due(result: bytes) -> float:
    """When what schedule_wakeup has planned comes, in seconds since 1970; inf: not known."""
    found = _DUE.search(result)
    return int(found[1]) / 1000 if found else math.inf


KILO = Edition(
    title="Kilo Code",
    tested=tested,
    also=also,
    program=Program("kilo", "@kilocode/cli"),
    files=("config.json", "kilo.json", "kilo.jsonc", "opencode.json", "opencode.jsonc"),
    folders=(".kilo", ".kilocode"),
    package="@kilocode/plugin",
    passes=("cloud", "roll-call", "profile", "config", "worktree", "help"),
    serves=("console", "remote", "daemon"),
    run={"NO_DAEMON": "1"},  # a server in the background, which loads no plugin of a run
    quiet={
        "DISABLE_SESSION_INGEST": "1",
        "TELEMETRY_LEVEL": "off",
        "SNAPSHOT_TRACK_TIMEOUT_MS": "600000",  # a first snapshot of over 10 s makes it ask a person, before the model
    },
    timers={"schedule_wakeup": due},
    takes_back=frozenset(("cancel_wakeup",)),
    native=".kilo",
)
agent = OpenCode(KILO)

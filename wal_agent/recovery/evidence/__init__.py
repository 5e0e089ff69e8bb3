"""Looks for evidence before a call and at a recovery; changes nothing, and stays within a budget (I9).

`before` runs on the way of every changing call, so it takes what it can get in 50 ms and otherwise says nothing. Each
kind of evidence is a module with a `Kind`; call.py has the list, asks them, and puts together what they say.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.clock import Clock, SystemClock
from wal_agent.records import Fact
from wal_agent.recovery.evidence.call import KINDS, facts_before, parts_of
from wal_agent.recovery.evidence.paths import folder_of, told_folder
from wal_agent.recovery.evidence.running import still_running
from wal_agent.recovery.evidence.verdicts import alone, verdicts
from wal_agent.recovery.rules import load_rules
from wal_agent.recovery.step import Budget

__all__ = ["BEFORE_BUDGET", "KINDS", "alone", "before", "still_running", "verdicts"]

BEFORE_BUDGET = 0.05  # seconds
_SYSTEM = SystemClock()


def before(tool: str, input: bytes, workspace: Path, clock: Clock = _SYSTEM, cwd: str = "") -> tuple[Fact, ...]:
    """What is true before a call of what it may change: small facts, empty where nothing safe and quick can be said.
    `cwd`: where the agent says that it runs; an absolute one is a fact itself."""
    load_rules()  # reading them the first time takes longer than all the rest may
    budget = Budget(clock, clock.boot() + BEFORE_BUDGET)
    told = told_folder(cwd)
    return (*told, *facts_before(parts_of(tool, input, workspace, cwd=folder_of(told)), budget))

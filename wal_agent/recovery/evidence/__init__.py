"""Looks for evidence before a call and at a recovery; changes nothing, and stays within a budget (I9).

`before` runs on the way of every changing call, so it takes what it can get in 50 ms of work and otherwise says
nothing. On a loaded machine the 2 ms that it mostly needs may take 60 ms, for waiting, so that has a limit of its own.
Each kind of evidence is a module with a `Kind`; call.py has the list, asks them, and puts together what they say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from wal_agent.clock import Clock, SystemClock
from wal_agent.records import Fact
from wal_agent.recovery.evidence.call import KINDS, facts_before, parts_of
from wal_agent.recovery.evidence.paths import folder_of, told_folder
from wal_agent.recovery.evidence.running import still_running
from wal_agent.recovery.evidence.verdicts import alone, verdicts
from wal_agent.recovery.rules import load_rules
from wal_agent.recovery.step import Budget

__all__ = ["BEFORE_WAIT", "BEFORE_WORK", "KINDS", "alone", "before", "still_running", "verdicts"]

BEFORE_WORK = 0.05  # seconds of this thread's work
BEFORE_WAIT = 1.0  # seconds in all, with what the thread waits for its turn or a slow disk
_SYSTEM = SystemClock()


def before(
    tool: str,
    input: bytes,
    workspace: Path,
    clock: Clock = _SYSTEM,
    cwd: str = "",
    work: Callable[[], float] = time.thread_time,
) -> tuple[Fact, ...]:
    """What is true before a call of what it may change: small facts, empty where nothing safe and quick can be said.
    `cwd`: where the agent says that it runs; an absolute one is a fact itself. `work`: seconds that this thread has
    worked."""
    load_rules()  # reading them the first time takes longer than all the rest may
    budget = Budget(clock, clock.boot() + BEFORE_WAIT, work=work, most_work=work() + BEFORE_WORK)
    told = told_folder(cwd)
    return (*told, *facts_before(parts_of(tool, input, workspace, cwd=folder_of(told)), budget))

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
from wal_agent.evidence.call import KINDS, facts_before, read_parts
from wal_agent.evidence.collector import decide_verdicts, ran_alone
from wal_agent.evidence.model import Budget
from wal_agent.evidence.running import find_running_calls
from wal_agent.records import Fact
from wal_agent.recovery.evidence.paths import call_folder, folder_fact
from wal_agent.shell.rules import load_rules

__all__ = ["BEFORE_WAIT", "BEFORE_WORK", "KINDS", "ran_alone", "collect_facts", "find_running_calls", "decide_verdicts"]

BEFORE_WORK = 0.05  # seconds of this thread's work
BEFORE_WAIT = 1.0  # seconds in all, with what the thread waits for its turn or a slow disk
_SYSTEM = SystemClock()


def collect_facts(
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
    told = folder_fact(cwd)
    return (*told, *facts_before(read_parts(tool, input, workspace, cwd=call_folder(told)), budget))

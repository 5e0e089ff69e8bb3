"""Calls without an end when the agent has ended: whose affair they are, and what is said of them (I8)."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.happened import LeftOpen
from wal_agent.records import ExitClass
from wal_agent.recovery.report import plain
from wal_agent.supervise.exits import RESTARTED
from wal_agent.wal.state import OpenCall


def continues_by_itself(cls: ExitClass, until: float, restarts: bool) -> bool:
    """Whether the job is taken up again by itself: that start looks what became of the calls in flight, and no person
    is needed before. `until` > 0: it rests so long (since 1970); `restarts`: an agent that died is started again."""
    return until > 0 or cls in ("drained", "paused") or (restarts and cls in RESTARTED)


def left_open(calls: Sequence[OpenCall]) -> LeftOpen | None:
    """What a person is asked of `calls`: nothing of those that are as well done twice."""
    matters = [o.intent for o in calls if o.intent.cls in ("mutation", "unknown")]
    return LeftOpen(tuple((intent.call, intent.tool) for intent in matters)) if matters else None


def open_calls_line(calls: Sequence[OpenCall], left: LeftOpen | None, follows: bool) -> str:
    """What is said of `calls` without an end; `left`: those that a person is asked of."""
    if left is not None:
        return (
            f"not settled: {_three(left.calls)}. Look what became of it, then: wal-agent ack {left.calls[0][0]} "
            "--done | --not-done"
        )
    next_step = "the next start looks what became of it" if follows else "nothing to settle, it may be done again"
    return f"in flight: {_three([(o.intent.call, o.intent.tool) for o in calls])}; {next_step}."


def _three(calls: Sequence[tuple[int, str]]) -> str:
    more = f" and {len(calls) - 3} more" if len(calls) > 3 else ""
    return ", ".join(f"#{call} {plain(tool, 80)}" for call, tool in calls[:3]) + more

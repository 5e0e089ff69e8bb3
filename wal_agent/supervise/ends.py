"""Decide what a report on a call makes of it: an end, or a word that leaves it open (I8). Pure.

An agent's report is a claim. Of a call that may have changed something it is an end only if the tool completed and
nothing of it still runs, or if the call never began; docs/PROTOCOL.md lists what else ends one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from wal_agent.agents.base import Status
from wal_agent.errors import UsageError
from wal_agent.records import Class, End, Ending
from wal_agent.wal.state import State

Outcome = Ending | Literal["cut", "runs_on"]

HARMLESS = ("read_only", "idempotent")


class Seen(msgspec.Struct, frozen=True):
    """What the run saw of a call. `stopping`: the agent was asked to stop, or is being stopped; `asked`: the agent
    asked a person to approve the call; `begun`: a process of it was seen; `alive`: one lives; `untouched`: one would
    have been seen, and was not; `left`: its shell has ended, and the agent ended what that left running."""

    cls: Class
    stopping: bool = False
    asked: bool = False
    begun: bool = False
    alive: bool = False
    untouched: bool = False
    left: bool = False


def outcome_of(status: Status, clean: bool, seen: Seen) -> Outcome:
    """Return what the report makes of the call. `clean`: the result shows no failure, as a command's exit code would.

    A No at the agent's own approval and a stop of the running tool may have the same words: what was asked for, and
    would have been seen to begin, was refused. Agents stop their own tools when they are asked to stop, and report
    whatever they like; then only a clean completion counts."""
    if seen.cls in HARMLESS:
        return _of_harmless(status, seen)
    if status == "stopped":
        return "cut"
    unbegun = seen.asked and seen.untouched
    if status == "refused":  # agents that are being stopped say it of what they had begun, too
        return "cut" if seen.begun or (seen.stopping and not unbegun) else "refused"
    if status == "cancelled":
        return "refused" if unbegun else "cut"
    if status == "runs_on" or seen.alive:
        return "runs_on"
    if seen.left or (seen.stopping and not (status == "done" and clean)):
        return "cut"
    return "done" if status == "done" else "failed"


def _of_harmless(status: Status, seen: Seen) -> Outcome:
    """Doing it again does no harm, so nobody need know how far it came."""
    if status == "runs_on":
        return "done" if seen.cls == "read_only" else "runs_on"
    return "failed" if status == "cancelled" or status == "stopped" else status


def acknowledged_end(state: State, call: int, done: bool, now: float) -> End:
    """The record that settles an open call; UsageError when it is not open."""
    if all(o.intent.call != call for o in state.open):
        known = ", ".join(f"#{o.intent.call}" for o in state.open) or "none"
        raise UsageError(f"Call #{call} is not open, so there is nothing to settle.", f"Open calls: {known}.")
    return End(
        time=now,
        call=call,
        how="resolved",
        by="person",
        finding="completed" if done else "not_started",
        why=f"a person looked and says that it was {'done' if done else 'not done'}",
    )

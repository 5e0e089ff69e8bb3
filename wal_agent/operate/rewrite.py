"""Look at the conversation of a job at rest: what a compaction would do, what a rewrite took out; set marks in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from wal_agent.agents.base import Unit
from wal_agent.clock import SystemClock
from wal_agent.conversation.rewrite import CompactionPolicy, tokens_of
from wal_agent.supervise import control
from wal_agent.supervise.control import ask_own_run
from wal_agent.supervise.rewrite import (
    Home,
    Rewritten,
    mark_of,
    open_conversation,
    plan_compaction,
    read_conversation,
    read_trace,
    rewriting_of,
    unchanged,
)
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.state import RewriteAt, State


def foresee_compaction(state: State, blobs: Blobs, home: Home, policy: CompactionPolicy, now: float) -> Rewritten:
    """What `compact` would do. UsageError: there is no conversation."""
    talk = read_conversation(state, blobs, home)
    change = plan_compaction(state, talk, home, policy, now)
    done = unchanged(talk)
    return replace(done, turns=change.turns, left=tokens_of(change.now)) if change else done


def read_units(state: State, blobs: Blobs, home: Home) -> tuple[Unit, ...]:
    """The conversation as the log has it. UsageError: there is none."""
    return read_conversation(state, blobs, home).units


def end_of(state: State, blobs: Blobs, home: Home) -> str:
    """The key of the newest message, "" in front of the first."""
    units = read_units(state, blobs, home)
    return units[-1].key if units else ""


def left_out(trace: RewriteAt, blobs: Blobs, home: Home) -> list[Unit]:
    """The messages that the rewrite took out of the conversation."""
    units = rewriting_of(home.agent).units(read_trace(trace, blobs))
    keys = [unit.key for unit in units]
    if trace.record.first not in keys or trace.record.last not in keys:
        return [] if trace.record.undoes else list(units)
    return list(units[keys.index(trace.record.first) : keys.index(trace.record.last) + 1])


def mark_own_run(env: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """Have the run whose tool this is set the mark; its job, None where no run answers. UsageError: it refuses."""
    return control.unless_refused(ask_own_run(env, control.MARK, {"name": name}))


def mark_at_rest(job: OpenedJob, home: Home, name: str) -> None:
    units = open_conversation(job, home).units
    job.writer.append(mark_of(name, job.writer.state.session, units, SystemClock().now()))

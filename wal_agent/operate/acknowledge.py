"""Settle a call or a step by the word of a person (I8), or note the word of the agent.

The live run does it, where there is one here; else it is done under an epoch of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from wal_agent.clock import SystemClock
from wal_agent.errors import UsageError
from wal_agent.operate.at_rest import JobAccess, RunHasJob, act_unowned, kept_reason, leaving
from wal_agent.records import End, StepEnded
from wal_agent.supervise import control
from wal_agent.supervise.control import ask_own_run
from wal_agent.supervise.ends import acknowledged_end
from wal_agent.wal.damage import sound_state
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.state import State


def acknowledge_call(at: JobAccess, call: int | str, done: bool) -> None:
    """Settle the call, or the step of this name, durably: by its live run, where there is one here, else under an epoch
    of its own. UsageError: it is not open; LeaseHeld: a run that cannot be reached from here has it, or this
    machine's spool holds records that come before it; Denied: the job is encrypted with another key."""
    seen = at.lease()

    def settle(job: OpenedJob) -> None:
        state, now = job.replay.state, SystemClock().now()
        wanted: Literal["closed", "released"] = "closed" if state.turn == "completed" else "released"
        with leaving(job, seen, wanted, kept_reason(seen.doc.reason)):
            job.writer.append(_settling_record(sound_state(job.replay), call, done, now))

    def check(state: State) -> None:
        _settling_record(state, call, done, 0.0)

    try:
        act_unowned(at, seen, settle, check)
    except RunHasJob:
        question = {"call" if isinstance(call, int) else "step": call, "done": done}
        answer = control.ask_run(seen.doc.host, seen.doc.run, (at.bucket.url, at.keys.job), control.ACK, question)
        if control.unless_refused(answer) is None:
            raise


def _settling_record(state: State, call: int | str, done: bool, now: float) -> End | StepEnded:
    """What settles a call, or the step of this name. UsageError."""
    if isinstance(call, int):
        return acknowledged_end(state, call, done, now)
    from wal_agent.supervise.steps import settled_step

    return settled_step(state, call, done, now)


def answer_for_call(env: Mapping[str, str], call: int, because: str) -> None:
    """Record the agent's word on a call that its recovery asked about, by the run whose tool this is. UsageError: this
    is no tool of a run, or the run refuses."""
    if not because.strip():
        raise UsageError("--because is empty.", "Say what you found, with the command that showed it.")
    if control.unless_refused(ask_own_run(env, control.SETTLE, {"call": call, "because": because})) is None:
        raise UsageError(
            "`wal-agent settle` is for the agent, in a tool of its run; no such run answers here.",
            f"A person resolves a call with: wal-agent ack {call} --job JOB --done (or --not-done)",
        )

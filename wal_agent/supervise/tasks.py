"""Bound the calls of a task's run by the run that asked for it, and count them against budgets (docs/TASKS.md).

The run of a task asks its caller's run over that run's socket, right before it allows a call. The caller answers as
it would for a call of its own (R7), with the seconds for which it still may; no answer is a no. So a call of a task is
never allowed once its caller's job is another's, and nested tasks are bound by all runs around them. Each run counts
its own calls and those of its tasks; a budget that is used up refuses the next one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.errors import UsageError
from wal_agent.paths import MARKER, SOCKET
from wal_agent.records import TaskOf
from wal_agent.supervise import control
from wal_agent.supervise.checkpoints import Checkpointer
from wal_agent.wal.keys import Keys, check_job
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

VARIABLE: Final = "WAL_AGENT_TASK"  # of a task's run: TaskStart, as JSON
ASKING: Final = 5.0  # seconds for the caller's answer
MAX_NESTED: Final = 64  # jobs of nested tasks whose calls are counted at a start


class TaskStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `wal-agent task` gives the run that it starts. `budget`: calls, 0 for no limit; `run`: the caller's, ""
    where a person asked, whose task no run bounds; `counted`: a run around has a budget."""

    of: TaskOf
    budget: int = 0
    run: str = ""
    counted: bool = False


_start = msgspec_compat.of_json(TaskStart)
_number = msgspec_compat.of_values(float)


def read_task(env: Mapping[str, str]) -> TaskStart | None:
    """Return what `wal-agent task` said; None: this run is no task's. UsageError: it is damaged."""
    if not (text := env.get(VARIABLE)):
        return None
    try:
        return _start.decode(text)
    except ValueError as error:
        raise UsageError(f"{VARIABLE} is damaged.", "It is set by: wal-agent task PROMPT") from error


class OwnLease(Protocol):
    """What is asked of the run's own lease."""

    def may_allow(self) -> bool:
        """R7."""

    def seconds_left(self) -> float:
        """Return how long `may_allow` stays true without a renewal; 0: it is not."""


class CallerRun(msgspec.Struct, frozen=True):
    """The run that asked for the task. `ask`: its socket; None: no answer. `counted`: it counts the calls of this
    one."""

    ask: Callable[[dict[str, Any]], dict[str, Any] | None]
    epoch: int
    counted: bool = False

    @staticmethod
    def of(start: TaskStart, env: Mapping[str, str]) -> CallerRun | None:
        """Return it; None: a person asked. `env`: of the command that the caller's tool has started."""
        if not start.run:
            return None
        path, own = env.get(SOCKET, ""), env.get(MARKER) == start.run

        def ask(question: dict[str, Any]) -> dict[str, Any] | None:
            return control.ask_socket(Path(path), start.run, control.TASK, question, ASKING) if own else None

        return CallerRun(ask, start.of.epoch, start.counted)


class TaskBounds:
    """What the calls of a run are bound by beside its own log. From hook threads."""

    def __init__(
        self, lease: OwnLease, clock: Clock, caller: CallerRun | None = None, budget: int = 0, spent: int = 0
    ) -> None:
        """`budget`: calls, 0 for no limit; `spent`: of it, by earlier runs and their tasks."""
        self._lease, self._clock, self._caller = lease, clock, caller
        self.budget = budget
        self._spent, self._lock = spent, threading.Lock()

    def until(self) -> float:
        """Ask the runs around this one, and return until when (boot time, seconds) they let it allow a call: 0.0 for
        not at all, infinity where there is none."""
        if self._caller is None:
            return math.inf
        asked = self._clock.boot()  # before: the answer counts from when it was given
        said = self._caller.ask({"ask": "call", "epoch": self._caller.epoch})
        try:
            left = _number(said.get("left")) if said else 0.0
        except msgspec.ValidationError:
            left = 0.0
        return asked + left if left > 0 else 0.0

    def may_allow(self) -> bool:
        """R7 here and in each run around: the last check before an allow."""
        until = self.until()
        return self._lease.may_allow() and self._clock.boot() < until

    def take_call(self) -> bool:
        """Count a call, here and in each run around; whether all budgets had one left. A caller that does not answer
        refuses the call itself, if it changes anything."""
        with self._lock:
            self._spent += 1
            left = not self.budget or self._spent <= self.budget
        counted = self._caller is not None and self._caller.counted
        said = self._caller.ask({"ask": "count"}) if self._caller and counted else None
        return left and not (said and said.get("over"))

    @property
    def counted(self) -> bool:
        """Whether each call counts somewhere."""
        return self.budget > 0 or (self._caller is not None and self._caller.counted)

    def answer(self, question: Mapping[str, Any], epoch: int, refusal: str) -> dict[str, Any]:
        """Answer a task of this run's. `epoch`: of this run; `refusal`: why no call may begin here, "" for none."""
        if question.get("ask") == "count":
            return {"over": not self.take_call()}
        if question.get("epoch") != epoch or refusal or not self._lease.may_allow():
            return {"left": 0}
        left = min(self._lease.seconds_left(), self.until() - self._clock.boot())
        return {"left": max(0.0, left)}


def begin_task(name: str, state: State, checkpoints: Checkpointer) -> int:
    """For `wal-agent task`: make the checkpoint in front of the task's job `name`, durable on return, unless the log
    has one; its number. UsageError: no job can have that name; what an append raises; Unavailable."""
    known = state.tasks.get(check_job(name))
    return known.checkpoint if known is not None else checkpoints.make_durable(task=name)


def spent_by(bucket: Bucket, state: State) -> int:
    """Return how many calls a job and its tasks have made, refused ones included, by their logs."""
    spent, waiting, seen = state.next_call - 1, [*state.tasks], set[str]()
    while waiting and len(seen) < MAX_NESTED:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        nested = replay(bucket, Keys(name)).state
        spent += nested.next_call - 1
        waiting += nested.tasks
    return spent

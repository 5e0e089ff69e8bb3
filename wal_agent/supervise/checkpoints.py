"""When a live run makes a checkpoint: by time, by a change of phase, before a compaction or a shutdown, or asked for.

A checkpoint costs no put of its own: it waits for company in the log's queue. Nothing waits for it but who typed
`wal-agent checkpoint`. Its content is conversation/checkpoint.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.conversation.checkpoint import MAX_PLANNED, NOTE, STEP, TITLE, Occasion, checkpoint_of, task_phase
from wal_agent.errors import UsageError
from wal_agent.events import CheckpointFailed
from wal_agent.records import PhaseName, PlanStep, Progress, TaskPhase, Trigger
from wal_agent.supervise.context import RunContext, await_durable, not_durable_error
from wal_agent.wal.state import State
from wal_agent.wal.writer import DEFERRED, NOW, Ticket

WORKING: frozenset[PhaseName] = frozenset(("awaiting_model", "executing_tools", "compacting"))
LOOK = 5.0  # seconds between two looks at the log for a change of phase
APART = 60.0  # seconds between two checkpoints for a change of phase


class CheckpointQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question of `wal-agent checkpoint` over the run's socket."""

    title: str = ""
    phase: TaskPhase | Literal[""] = ""
    progress: int = -1
    note: str = ""
    plan: tuple[PlanStep, ...] | None = None


_said = msgspec_compat.of_values(CheckpointQuestion)


class Checkpointer:
    """Makes the checkpoints of one agent process. `tick` is called by one thread, the others by any."""

    def __init__(self, context: RunContext) -> None:
        settings = context.settings
        self._every, self._ttl_days = settings.checkpoint, settings.checkpoint_ttl_days
        self._job, self._agent = context.job.keys.job, context.agent.name
        self._writer, self._clock, self._emit = context.job.writer, context.clock, context.emit
        self._lock = threading.Lock()
        self._number = 0
        self._made: object = _content(self._writer.state)
        self._phase: TaskPhase = task_phase(self._writer.state)
        self._worked = 0.0  # seconds of work since the newest checkpoint
        self._at = self._looked = self._ticked = self._clock.boot()
        self._failed = False

    def tick(self, phase: PhaseName) -> None:
        """Make the checkpoints that are due. Never raises."""
        now = self._clock.boot()
        self._worked += now - self._ticked if phase in WORKING else 0.0
        self._ticked = now
        if self._every <= 0 or now - self._looked < min(LOOK, self._every):
            return
        self._looked = now
        state = self._writer.state
        if _content(state) == self._made:
            return
        if self._worked >= self._every:
            self.make("periodic")
        elif task_phase(state) != self._phase and now - self._at >= APART:
            self.make("phase_change")

    def make(self, trigger: Trigger, *, defer: bool = True, task: str = "") -> tuple[int, Ticket] | None:
        """Append a checkpoint of what the log says now; its number. None: it failed, which is reported once and harms
        nothing. `task`: the job of the task that begins behind it."""
        try:
            with self._lock:
                acked = self._writer.acked
                self._number = max(self._number, acked.state.checkpointed) + 1
                at = Occasion(self._job, self._agent, acked.seq, trigger, self._clock.now(), self._ttl_days, task=task)
                record = checkpoint_of(acked.state, at, number=self._number)
                ticket = self._writer.append(record, wait=DEFERRED if defer else NOW)
                self._made, self._phase = _content(acked.state), task_phase(acked.state)
                self._worked, self._at = 0.0, self._clock.boot()
                return self._number, ticket
        except Exception as error:  # noqa: BLE001 - a courtesy to the log, never in the way of the work
            if not self._failed:
                self._failed = True
                self._emit(CheckpointFailed(str(error) or repr(error)))
            return None

    def before(self, trigger: Literal["pre_compaction", "pre_shutdown"]) -> None:
        """Make a checkpoint before something that loses what is at hand, unless there is nothing yet."""
        if self._every > 0 and self._writer.state.ran:
            self.make(trigger)

    def answer(self, question: Mapping[str, Any], by_agent: bool) -> dict[str, Any]:
        """`wal-agent checkpoint`: log what was said of the task, then make a checkpoint; both are durable on return.
        UsageError; what an append raises; Unavailable."""
        said = read_progress(question, self._clock.now(), by_agent)
        if said is not None:
            await_durable(self._writer.append(said))
        return {"job": self._job, "number": self.make_durable()}

    def make_durable(self, task: str = "") -> int:
        """Make a checkpoint because it was asked for, and return its number once the bucket has it. Unavailable.
        `task`: as of `make`."""
        made = self.make("manual", defer=False, task=task)
        if made is None:
            raise not_durable_error()
        number, ticket = made
        await_durable(ticket)
        return number


def _content(state: State) -> object:
    """What differs between two checkpoints that are worth two records."""
    return state.calls, len(state.open), state.turn, state.prompt, state.progress, state.session


def read_progress(question: Mapping[str, Any], now: float, by_agent: bool) -> Progress | None:
    """The record of what `question` (from a socket: hostile) says; None: it says nothing. UsageError, ValueError."""
    said = _said(dict(question))
    plan = None
    if said.plan is not None:
        if len(said.plan) > MAX_PLANNED:
            raise UsageError(f"A plan of {len(said.plan)} steps is too long.", f"At most {MAX_PLANNED}: sum some up.")
        plan = tuple(PlanStep(text=step.text[:STEP], state=step.state) for step in said.plan)
    if not -1 <= said.progress <= 100:
        raise UsageError(f"--progress {said.progress} is not possible.", "Allowed: 0 to 100, in percent.")
    if not (said.title or said.phase or said.note or plan is not None or said.progress >= 0):
        return None
    return Progress(
        time=now,
        title=" ".join(said.title.split())[:TITLE],
        phase=said.phase,
        progress=said.progress,
        note=said.note[:NOTE],
        plan=plan,
        by="agent" if by_agent else "person",
    )

"""Hold what is fixed while agents run under one epoch, what the parts of a running agent ask of the whole, and the
run's phase as one word (ARCHITECTURE.md): a table from phase and event to the next phase and what to do.

The watchdog, pauses, `status`, the fleet and the metrics read the phase and nothing else. Hooks may come late, twice or
never, so each event is legal in each phase; a completed turn always leads to `awaiting_user` or `stopped`, unless the
run is on its way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

import msgspec

from wal_agent.agents.base import (
    Agent,
    AwaitingApproval,
    Command,
    Compacted,
    Compacting,
    Deny,
    Env,
    HookEvent,
    ModelRequest,
    SessionEnded,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from wal_agent.config import APPEND_DEADLINE, Settings
from wal_agent.errors import Unavailable, WalAgentError
from wal_agent.records import PhaseName
from wal_agent.wal.writer import LATER, NOW, Ticket, Wait

if TYPE_CHECKING:
    from wal_agent.clock import Clock
    from wal_agent.events import Emit
    from wal_agent.messages.values import KvValues
    from wal_agent.wal.job import OpenedJob

MAX_BACKLOG = 32 << 20  # bytes waiting for the bucket above which captures wait (I9)
Phase = PhaseName
PhaseEvent = Literal[
    "session_started",
    "turn_started",
    "model_asked",
    "tool_started",
    "inner_tool_started",  # by a subagent
    "tool_ended",  # and others run
    "last_tool_ended",
    "approval_asked",
    "approval_over",  # what was asked for has ended, and others run
    "compaction_started",
    "compaction_ended",  # inside a turn
    "compaction_ended_idle",
    "turn_completed",
    "turn_failed",
    "session_ended",
    "pause_asked",
    "drain_asked",
    "agent_ended",
]

Action = Literal[
    "rearm",  # the watchdog begins to count anew
    "save",  # a capture is worth its price now
    "end_agent",  # of a pause: the agent has had its last word, and may be ended
]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
EVENTS: Final[tuple[PhaseEvent, ...]] = get_args(PhaseEvent)
Outcome = tuple[Phase, tuple[Action, ...]]

_AT_WORK: Final[tuple[Phase, ...]] = (
    "starting",
    "awaiting_model",
    "executing_tools",
    "awaiting_approval",
    "awaiting_user",
    "compacting",
)

# What an event leads to while the agent works, whatever the phase.
_LEADS: Final[dict[PhaseEvent, Outcome]] = {
    "session_started": ("awaiting_user", ("rearm",)),
    "turn_started": ("awaiting_model", ("rearm", "save")),
    "model_asked": ("awaiting_model", ("rearm", "save")),
    "tool_started": ("executing_tools", ("rearm",)),
    "inner_tool_started": ("executing_tools", ("rearm",)),
    "tool_ended": ("executing_tools", ("rearm", "save")),
    "last_tool_ended": ("awaiting_model", ("rearm", "save")),
    "approval_asked": ("awaiting_approval", ("rearm",)),
    "compaction_started": ("compacting", ("rearm", "save")),
    "compaction_ended": ("awaiting_model", ("rearm", "save")),
    "compaction_ended_idle": ("awaiting_user", ("rearm", "save")),
    "turn_failed": ("awaiting_user", ("rearm", "save")),
    "turn_completed": ("awaiting_user", ("rearm", "save")),
    "session_ended": ("awaiting_user", ("rearm", "save")),
    "pause_asked": ("pausing", ("rearm", "save")),
    "drain_asked": ("draining", ("rearm", "save")),
    "agent_ended": ("stopped", ()),
}

# Where the phase matters.
_EXCEPT: Final[dict[tuple[Phase, PhaseEvent], Outcome]] = {
    # An agent's own housekeeping behind a turn, and calls that it left in the background, make no turn.
    ("awaiting_user", "inner_tool_started"): ("awaiting_user", ()),
    ("awaiting_user", "tool_ended"): ("awaiting_user", ("save",)),
    ("awaiting_user", "last_tool_ended"): ("awaiting_user", ("save",)),
    # A compaction between two turns asks the model by itself.
    ("compacting", "model_asked"): ("compacting", ("rearm",)),
    # A tool that was being approved has its before-hook behind it: other calls' ends say nothing of the question.
    ("awaiting_approval", "tool_ended"): ("awaiting_approval", ("save",)),
    ("awaiting_approval", "approval_over"): ("executing_tools", ("rearm", "save")),
    # A pause lets the agent hear what its last call gave, and say where it is; a drain has no time for that.
    ("awaiting_user", "pause_asked"): ("pausing", ("rearm", "save", "end_agent")),
    ("pausing", "last_tool_ended"): ("pausing", ("save",)),
    ("pausing", "model_asked"): ("pausing", ("save",)),
    ("pausing", "turn_completed"): ("pausing", ("save", "end_agent")),
    ("pausing", "turn_failed"): ("pausing", ("save", "end_agent")),
    ("pausing", "session_ended"): ("pausing", ("end_agent",)),
    ("pausing", "drain_asked"): _LEADS["drain_asked"],
    ("pausing", "agent_ended"): _LEADS["agent_ended"],
    ("draining", "last_tool_ended"): ("draining", ("save",)),
    ("draining", "turn_completed"): ("draining", ("save",)),
    ("draining", "turn_failed"): ("draining", ("save",)),
    ("draining", "agent_ended"): _LEADS["agent_ended"],
}


def _outcome(phase: Phase, event: PhaseEvent) -> Outcome:
    stays: Outcome = (phase, ())
    return _EXCEPT.get((phase, event), _LEADS.get(event, stays) if phase in _AT_WORK else stays)


TABLE: Final[dict[tuple[Phase, PhaseEvent], Outcome]] = {(p, e): _outcome(p, e) for p in PHASES for e in EVENTS}


def next_phase(phase: Phase, event: PhaseEvent) -> Outcome:
    """The phase after `event`, and what to do on entering it."""
    return TABLE[phase, event]


def is_idle(phase: Phase) -> bool:
    """Whether time that passes in this phase says that something hangs: only the model owes an answer
    (ARCHITECTURE.md), in a turn or to a compaction."""
    return phase in ("awaiting_model", "compacting")


def event_of(event: HookEvent, running: int, turn_open: bool) -> PhaseEvent | None:
    """What a hook's word is to the table; None: nothing. `running`: calls that run after it."""
    match event:
        case SessionStarted():
            return "session_started"
        case TurnStarted():
            return "turn_started"
        case ModelRequest():
            return "model_asked"
        case ToolStarting(inner=inner):
            return "inner_tool_started" if inner else "tool_started"
        case ToolEnded():
            return "tool_ended" if running else "last_tool_ended"
        case AwaitingApproval():
            return "approval_asked"
        case Compacting(aside=True):
            return None
        case Compacting(done=done):
            if not done:
                return "compaction_started"
            return "compaction_ended" if turn_open else "compaction_ended_idle"
        case TurnCompleted(pending=pending):
            # Its commands in the background go on, and the model owes nothing until one ends.
            return "inner_tool_started" if pending else "turn_completed"
        case TurnFailed():
            return "turn_failed"
        case SessionEnded():
            return "session_ended"
        case _:
            return None


class RunContext(msgspec.Struct, frozen=True):
    """The job that a run owns, and what it works with. `env`: what the agent gets; `emit`: takes each event; `values`:
    those of steps that are on a server, None where they are in the log."""

    job: OpenedJob
    agent: Agent
    settings: Settings
    workspace: Path
    env: Env
    clock: Clock
    emit: Emit = lambda _: None
    values: KvValues | None = None

    @property
    def capture_wait(self) -> Wait:
        """How long a capture may wait for company in the log: inside a turn only, since behind its end the agent or
        the person may leave at any moment; not at all with `durability = sync`."""
        inside = self.job.writer.state.turn == "started" and self.settings.durability != "sync"
        return LATER if inside else NOW


def await_durable(ticket: Ticket) -> None:
    """Wait until an append is durable. Unavailable: the bucket does not take it now; what the ticket raises."""
    if ticket.wait(APPEND_DEADLINE) == "undecided":
        raise not_durable_error()


def not_durable_error() -> Unavailable:
    return Unavailable("The bucket cannot be reached now.", "Try again.")


class Launch(msgspec.Struct, frozen=True):
    """How the agent starts: its command, and the session that it is to work in."""

    command: Command
    session: str
    resumed: bool = False
    notice: str = ""  # the recovery's words, with which its first turn begins
    waits: bool = False  # the first turn is a person's, with the notice in front
    turn_open: bool = False  # the session has a turn that is not completed
    interactive: bool = True  # a person sits before it
    args: tuple[str, ...] = ()  # the user's own
    context: str = ""  # words for the model at the first boundary that can carry them


class Supervisor(Protocol):
    """What the parts of a running agent ask of the whole (live.py). From any thread. Only
    `may_begin_turn` and `answer_command` wait for anything."""

    def stop(self, error: WalAgentError) -> None:
        """End the agent's whole tree, for this reason."""

    def fail(self, error: BaseException) -> None:
        """Report a failure of ours. Fenced and damage end the run."""

    def request_save(self) -> None:
        """Capture the session soon."""

    def compacted(self, found: Compacted, session: str) -> None:
        """The session's file shows a compaction that is done."""

    def turn_stopped(self) -> None:
        """The session's file shows that a person stopped the turn."""

    def know_compactions(self, keys: set[str]) -> None:
        """Compactions of before this run, by their keys, which the session's file may show again."""

    def mark_boundary(self, call: int) -> None:
        """Calls numbered up to this are all in the session file from now on, if they come there at all."""

    def switch_session(self, session: str) -> None:
        """The agent began another session."""

    def may_begin_turn(self, session: str) -> Deny | None:
        """Wait until a turn of `session` may begin; the refusal where it may not."""

    def on_phase(self, actions: Sequence[Action]) -> None:
        """Do what the table of phases asks for on an event."""

    def answer_command(self, event: str, question: dict[str, Any], by_agent: bool) -> dict[str, Any]:
        """Answer a command of a person on this machine, or of a tool of the agent's (`by_agent`). Waits for the bucket
        at most for an acknowledgement. WalAgentError: it is refused; LookupError: there is no such command; KeyError,
        TypeError, ValueError."""

    def check_handshake(self, appended: bytes) -> None:
        """Look at what was appended to the session file (I5): a turn that began without a handshake has no hooks."""

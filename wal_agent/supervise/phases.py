"""What the run is doing, as one word (DESIGN 8), from hook events. Pure; any event in any phase gives a legal phase."""

from __future__ import annotations

from typing import Literal

from wal_agent.agents.base import (
    AwaitingApproval,
    HookEvent,
    ModelRequest,
    OtherEvent,
    SessionEnded,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)

Phase = Literal[
    "starting", "awaiting_model", "executing_tools", "awaiting_approval", "awaiting_user", "draining", "stopped"
]


def next_phase(phase: Phase, event: HookEvent, running: int) -> Phase:
    """The phase after `event`; `running` counts the calls that are running after it. `draining` and `stopped` stay."""
    if phase in ("draining", "stopped"):
        return phase
    match event:
        case TurnStarted() | ModelRequest():
            return "awaiting_model"
        case ToolStarting(inner=inner) if inner and phase == "awaiting_user":
            return phase  # the agent's own housekeeping behind a turn
        case ToolEnded() if not running and phase == "awaiting_user":
            return phase
        case ToolStarting():
            return "executing_tools"
        case ToolEnded():
            return "executing_tools" if running else "awaiting_model"
        case AwaitingApproval():
            return "awaiting_approval"
        case TurnCompleted(pending=True):
            return phase
        case TurnCompleted() | SessionStarted() | SessionEnded():
            return "awaiting_user"
        case OtherEvent():
            return phase

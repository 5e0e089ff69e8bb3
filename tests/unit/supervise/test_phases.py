"""supervise/phases.py: one word for what the run is doing."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from wal_agent.supervise.phases import Phase, next_phase

LEGAL: tuple[Phase, ...] = get_args(Phase)
EVENTS: list[HookEvent] = [
    SessionStarted("s", "startup"),
    TurnStarted("s", "p"),
    TurnCompleted("s"),
    ModelRequest("s"),
    ToolStarting("s", "t", b"{}"),
    ToolEnded("s", "t", b"{}", b"{}", False),
    AwaitingApproval("s", "t"),
    SessionEnded("s", "exit"),
    OtherEvent("x"),
]


@settings(deadline=None)
@given(st.sampled_from(LEGAL), st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), max_size=30))
def test_any_events_in_any_order_leave_a_legal_phase(phase: Phase, events: list[tuple[HookEvent, int]]) -> None:
    """DESIGN 8: total over events; what gives the machine up is never left again."""
    for event, running in events:
        after = next_phase(phase, event, running)
        assert after in LEGAL
        if phase in ("draining", "stopped"):
            assert after == phase
        else:
            assert after not in ("draining", "stopped", "starting") or after == phase
        phase = after


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_only_awaiting_model_counts_as_idle_so_each_event_must_name_its_phase(event: HookEvent) -> None:
    expected = {
        TurnStarted: "awaiting_model",
        ModelRequest: "awaiting_model",
        ToolStarting: "executing_tools",
        ToolEnded: "awaiting_model",
        AwaitingApproval: "awaiting_approval",
        TurnCompleted: "awaiting_user",
        SessionStarted: "awaiting_user",
        SessionEnded: "awaiting_user",
        OtherEvent: "starting",
    }
    assert next_phase("starting", event, 0) == expected[type(event)]


def test_one_of_two_tools_that_ended_leaves_the_run_executing() -> None:
    assert next_phase("executing_tools", ToolEnded("s", "t", b"{}", b"{}", False), 1) == "executing_tools"


def test_housekeeping_behind_a_turn_leaves_it_the_users() -> None:
    begun, ended = ToolStarting("s", "t", b"{}", inner="memory"), ToolEnded("s", "t", b"{}", b"{}", False)
    assert next_phase(next_phase("awaiting_user", begun, 1), ended, 0) == "awaiting_user"
    assert next_phase("executing_tools", begun, 2) == "executing_tools"
    assert next_phase("awaiting_user", ToolStarting("s", "t", b"{}"), 1) == "executing_tools"

"""supervise/context.py: one word for what the run is doing, from one table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal_agent.agents.base import (
    AwaitingApproval,
    Compacting,
    HookEvent,
    ModelRequest,
    OtherEvent,
    SessionEnded,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from wal_agent.supervise.context import (
    EVENTS,
    PHASES,
    TABLE,
    Phase,
    PhaseEvent,
    event_of,
    is_idle,
    next_phase,
)

GOING: dict[Phase, frozenset[Phase]] = {
    "pausing": frozenset({"pausing", "draining", "stopped"}),
    "draining": frozenset({"draining", "stopped"}),
    "stopped": frozenset({"stopped"}),
}

any_phase = st.sampled_from(PHASES)
any_events = st.lists(st.sampled_from(EVENTS), max_size=30)


def after(phase: Phase, *events: PhaseEvent) -> Phase:
    for event in events:
        phase = next_phase(phase, event)[0]
    return phase


@settings(deadline=None)
@given(any_phase, any_events)
def test_any_events_in_any_order_leave_a_legal_phase(phase: Phase, events: list[PhaseEvent]) -> None:
    """ARCHITECTURE.md: total over events; a run that is on its way out never comes back to work."""
    for event in events:
        found = after(phase, event)
        assert found in GOING.get(phase, frozenset(PHASES) - {"starting"} | {phase})
        phase = found


@settings(deadline=None)
@given(any_events)
def test_a_completed_turn_always_comes_back_to_the_user_or_to_the_end(events: list[PhaseEvent]) -> None:
    found = after("starting", *events, "turn_completed")
    assert found == "awaiting_user" or after(found, "agent_ended") == "stopped"
    if not {"pause_asked", "drain_asked", "agent_ended"} & set(events):
        assert found == "awaiting_user"


@settings(deadline=None)
@given(any_events)
def test_no_events_wedge_it_the_next_turn_is_seen(events: list[PhaseEvent]) -> None:
    found = after("starting", *events, "turn_started")
    assert found == "awaiting_model" or {"pause_asked", "drain_asked", "agent_ended"} & set(events)


@given(any_phase)
def test_the_agents_end_ends_it(phase: Phase) -> None:
    assert after(phase, "agent_ended") == "stopped"


def test_entering_a_phase_rearms_the_watchdog() -> None:
    for (phase, event), (to, actions) in TABLE.items():
        assert phase == to or to == "stopped" or "rearm" in actions, (phase, event)


def test_only_the_model_owes_an_answer() -> None:
    """Also while it shortens the conversation: a compaction that stands still is no work."""
    assert [phase for phase in PHASES if is_idle(phase)] == ["awaiting_model", "compacting"]


def test_a_pause_ends_the_agent_once_it_has_had_its_last_word() -> None:
    """Not with its last call's end: it has yet to hear what that gave, and to say where it is."""
    ends = {(phase, event) for (phase, event), (_, actions) in TABLE.items() if "end_agent" in actions}
    last: tuple[PhaseEvent, ...] = ("turn_completed", "turn_failed", "session_ended")
    assert ends == {("awaiting_user", "pause_asked"), *(("pausing", event) for event in last)}


def test_an_answered_question_is_left_behind_where_others_run() -> None:
    assert next_phase("awaiting_approval", "approval_over") == ("executing_tools", ("rearm", "save"))
    assert all(after(phase, "approval_over") == phase for phase in PHASES if phase != "awaiting_approval")


@pytest.mark.parametrize(
    ("event", "running", "expected"),
    [
        (TurnStarted("s", "p"), 0, "awaiting_model"),
        (ModelRequest("s"), 0, "awaiting_model"),
        (ToolStarting("s", "t", b"{}"), 0, "executing_tools"),
        (ToolEnded("s", "t", b"{}", b"{}", False), 0, "awaiting_model"),
        (ToolEnded("s", "t", b"{}", b"{}", False), 1, "executing_tools"),
        (AwaitingApproval("s", "t"), 0, "awaiting_approval"),
        (Compacting("s", done=False), 0, "compacting"),
        (Compacting("s", done=False, aside=True), 0, "executing_tools"),
        (Compacting("s", done=True), 0, "awaiting_model"),
        (TurnFailed("s", "quota", "429"), 0, "awaiting_user"),
        (TurnCompleted("s"), 0, "awaiting_user"),
        (TurnCompleted("s", pending=True), 0, "executing_tools"),
        (SessionStarted("s", "startup"), 0, "awaiting_user"),
        (SessionEnded("s", "exit"), 0, "awaiting_user"),
        (OtherEvent("x"), 0, "executing_tools"),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, int | str) else "",
)
def test_each_hooks_word_leads_to_its_phase(event: HookEvent, running: int, expected: Phase) -> None:
    found = event_of(event, running, turn_open=True)
    assert (after("executing_tools", found) if found else "executing_tools") == expected


def test_a_compaction_between_two_turns_leaves_the_run_the_users() -> None:
    found = event_of(Compacting("s", done=True), 0, turn_open=False)
    assert found is not None and after("awaiting_user", "compaction_started", "model_asked", found) == "awaiting_user"


def test_housekeeping_behind_a_turn_leaves_it_the_users() -> None:
    assert after("awaiting_user", "inner_tool_started", "last_tool_ended") == "awaiting_user"
    assert after("executing_tools", "inner_tool_started") == "executing_tools"
    assert after("awaiting_user", "tool_started") == "executing_tools"

"""Going down: how long each step has, when the agent is told to end, and when a paused one is let be."""

from __future__ import annotations

import threading
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.supervise.crew import PATIENCE
from tests.unit.wal.world import FakeClock
from wal_agent.supervise.context import Phase, PhaseEvent, next_phase
from wal_agent.supervise.exits import LAST_SAVE, LAST_SAVE_AT_LEAST, GracefulShutdown, ShutdownPlan

Kind = Literal["drain", "pause", "hang"]


class Agent:
    """Told what is due while its phases go on and its calls run."""

    def __init__(self, phase: Phase = "awaiting_model") -> None:
        self.clock = FakeClock(1000.0)
        self.descent = GracefulShutdown(self.clock, free=False)
        self.phase = phase
        self.reads = self.writes = False

    def go(self, kind: Kind, lasts: float = 100.0) -> Agent:
        now = self.clock.boot()
        assert self.descent.begin(ShutdownPlan(kind, "x", now, now + lasts, "going"), lambda: None)
        self.enter("pause_asked" if kind == "pause" else "drain_asked")
        return self

    def enter(self, event: PhaseEvent) -> None:
        self.phase, actions = next_phase(self.phase, event)
        self.descent.free = self.descent.free or "end_agent" in actions

    def due(self, seconds: float = 0.0) -> str:
        self.clock.at += seconds
        return self.descent.step(self.reads or self.writes, self.writes)


@given(st.floats(0, 1e6), st.floats(0, 600), st.floats(0, 1e6))
def test_each_step_of_going_down_has_its_time(began: float, length: float, hurried: float) -> None:
    down = ShutdownPlan("drain", "gcp", began, began + length, "")
    assert down.began <= down.half <= down.gone <= down.saved <= down.until
    hurried += began
    quick = ShutdownPlan("drain", "gcp", began, began + length, "", hurried=hurried)
    assert quick.half <= hurried and quick.gone <= hurried
    assert quick.gone <= quick.saved <= quick.end <= down.until
    assert quick.saved <= down.saved and quick.end <= hurried + 20


def test_why_it_went_down() -> None:
    assert ShutdownPlan("drain", "sigterm", 0, 1, "").why == "drained (SIGTERM)"
    assert ShutdownPlan("drain", "aws", 0, 1, "").why == "preempted (aws)"
    assert ShutdownPlan("pause", "quota", 0, 1, "").why == "paused"
    assert ShutdownPlan("hang", "model", 0, 1, "").why == "the model did not answer"
    assert ShutdownPlan("hang", "start", 0, 1, "").why == "the agent did not begin"
    assert ShutdownPlan("hang", "exit", 0, 1, "").why == "the agent did not end behind its turn"


# ---- who begins it


def test_no_changing_call_begins_once_the_agent_may_be_ended() -> None:
    """I1: else one that was allowed between the two would be cut off at its first step."""
    descent, order = GracefulShutdown(FakeClock(1000.0), free=False), list[str]()
    assert descent.begin(
        ShutdownPlan("drain", "x", 1000.0, 1100.0, "going"),
        lambda: order.append(descent.step(False, False) or "goes on"),
    )
    assert [*order, descent.step(False, False)] == ["goes on", "terminate"]


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [("drain", "drain", False), ("drain", "pause", False), ("pause", "drain", True), ("hang", "pause", False)],
)
def test_the_first_word_counts_but_a_drain_overrules(first: Kind, second: Kind, counts: bool) -> None:
    descent, denied = GracefulShutdown(FakeClock(), free=False), list[str]()
    assert descent.begin(ShutdownPlan(first, "first", 0, 9, "", resume_at=7.0), lambda: denied.append("first"))
    assert descent.begin(ShutdownPlan(second, "second", 0, 9, ""), lambda: denied.append("second")) == counts
    assert denied == (["first", "second"] if counts else ["first"])
    assert descent.down is not None
    assert (descent.down.source, descent.down.resume_at) == ("second" if counts else "first", 7.0)


def test_what_comes_behind_the_agents_end_changes_nothing() -> None:
    descent = GracefulShutdown(FakeClock(), free=False)
    assert descent.close() is None
    assert not descent.begin(ShutdownPlan("drain", "x", 0, 9, ""), lambda: pytest.fail("nobody is there to deny"))
    assert descent.down is None


def test_one_of_many_threads_begins_it() -> None:
    descent, all_there = GracefulShutdown(FakeClock(), free=False), threading.Barrier(8)
    began: list[bool] = []

    def begin() -> None:
        all_there.wait(PATIENCE)
        began.append(descent.begin(ShutdownPlan("drain", "x", 0, 9, ""), lambda: None))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(began) == [False] * 7 + [True]


# ---- what is due


def test_an_agent_that_nobody_ends_goes_on() -> None:
    agent = Agent()
    assert agent.due() == agent.due(1e6) == ""
    assert agent.descent.left(3.0) == 3.0 and agent.descent.to_save() == LAST_SAVE


def test_a_drain_waits_for_changing_calls_alone() -> None:
    agent = Agent("executing_tools").go("drain")
    agent.writes = True
    assert agent.due() == ""
    agent.writes, agent.reads = False, True
    assert agent.due() == "terminate" and agent.due() == ""


def test_a_paused_agent_is_ended_with_its_last_word() -> None:
    agent = Agent("executing_tools").go("pause")
    agent.reads = True
    agent.enter("tool_ended")
    assert agent.due() == ""
    agent.reads = False
    agent.enter("last_tool_ended")
    agent.enter("model_asked")
    assert agent.due(1.0) == agent.due(5.0) == ""
    agent.enter("turn_completed")
    assert agent.due() == "terminate" and agent.due(1.0) == ""


def test_a_paused_agent_that_says_nothing_is_ended_all_the_same() -> None:
    silent, idle, busy = Agent().go("pause"), Agent("awaiting_user").go("pause"), Agent().go("pause")
    assert silent.due(9.0) == "" and silent.due(2.0) == "terminate"
    assert idle.due(0.1) == "terminate", "it waits for a person, and has nothing to say"
    busy.reads = True
    assert busy.due(49.0) == "" and busy.due(2.0) == "terminate", "half of the time is over"


def test_who_does_not_end_is_killed_while_there_is_time_to_save() -> None:
    agent = Agent("executing_tools").go("drain")
    agent.writes = True
    assert [agent.due(49.0), agent.due(1.0), agent.due(14.0), agent.due(1.0)] == ["", "terminate", "", "kill"]
    assert agent.descent.to_save() == 15.0


def test_a_hurry_takes_the_time_of_tools_but_not_that_of_saving() -> None:
    agent = Agent("executing_tools").go("drain", lasts=1000.0)
    agent.writes = True
    assert agent.due(1.0) == ""
    agent.descent.hurry()
    assert agent.due() == "kill"
    assert agent.descent.to_save() == LAST_SAVE and agent.descent.left(3.0) < 1.0
    agent.clock.at += 5.0
    agent.descent.hurry()
    assert agent.descent.to_save() == LAST_SAVE - 5.0, "a third one is no new beginning"
    agent.clock.at += 100.0
    assert agent.descent.to_save() == LAST_SAVE_AT_LEAST

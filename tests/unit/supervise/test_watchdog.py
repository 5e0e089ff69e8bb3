"""supervise/watchdog.py: what takes long, by the time that passes awake; and whether the main loop turns."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import AGENTS
from wal_agent.config import Settings
from wal_agent.events import HungUp, TakesLong
from wal_agent.records import Class, Late
from wal_agent.supervise.context import PHASES, Phase, is_idle
from wal_agent.supervise.gate import RunningCall
from wal_agent.supervise.live import stdin_is_fed, watchdog_limits
from wal_agent.supervise.watchdog import LATE, STALLED, STUCK, Liveness, Watchdog, WatchdogLimits, watched_phase

USUAL = WatchdogLimits()
HANG = WatchdogLimits(hang=600)


def call(number: int, cls: Class = "read_only") -> RunningCall:
    return RunningCall(number, f"tool{number}", b"{}", "", True, 1.0, cls=cls)


class Post:
    """A watch that is looked after every `step` seconds."""

    def __init__(self, bounds: WatchdogLimits = USUAL, step: int = 1) -> None:
        self.watch = Watchdog(bounds)
        self.step = step
        self.awake = 1000.0
        self.told: list[tuple[float, TakesLong | HungUp]] = []  # with the second

    def look(self, phase: Phase, what: str = "", *running: RunningCall) -> None:
        self.told += [(self.awake - 1000, told) for told in self.watch.tick(self.awake, phase, what, running)]

    def stay(self, seconds: int, phase: Phase, what: str = "", *running: RunningCall) -> list[TakesLong | HungUp]:
        """So long in `phase`; gives what was told meanwhile."""
        before = len(self.told)
        for _ in range(0, seconds, self.step):
            self.look(phase, what, *running)
            self.awake += self.step
        return [told for _, told in self.told[before:]]


def test_an_idle_model_is_told_once_and_counts_anew_with_each_step() -> None:
    post = Post()
    assert post.stay(90, "awaiting_model") == [] and not post.watch.late
    assert post.stay(1, "awaiting_model", "the last tool") == [TakesLong("model", 90)]
    assert post.stay(1000, "awaiting_model", "the last tool") == []
    assert post.watch.late == (TakesLong("model", 1090),)
    post.watch.rearm()  # another request, in the same phase
    assert post.stay(90, "awaiting_model") == [] and not post.watch.late
    post.stay(1, "executing_tools")  # a change of phase alone does it as well
    assert post.stay(90, "awaiting_model") == []
    assert post.stay(1, "awaiting_model") == [TakesLong("model", 90)]


def test_the_hard_timeout_is_off_unless_asked_for_and_comes_once() -> None:
    assert not any(isinstance(told, HungUp) for told in Post().stay(20_000, "awaiting_model"))
    assert Post(HANG).stay(700, "awaiting_model") == [TakesLong("model", 90), HungUp(600)]
    assert Post(WatchdogLimits(idle=0, hang=5)).stay(700, "awaiting_model") == [HungUp(5)]


@pytest.mark.parametrize("phase", [phase for phase in PHASES if not is_idle(phase)])
def test_no_other_phase_is_a_wait_for_the_model(phase: Phase) -> None:
    """A person who thinks, a tool that runs, a run on its way out: nobody is to be interrupted."""
    told = Post(WatchdogLimits(idle=5, hang=10)).stay(3000, phase, "", call(1))
    assert not any(isinstance(one, HungUp) or one.what == "model" for one in told)


def test_a_compaction_that_does_not_end_is_a_wait_for_the_model() -> None:
    assert Post(HANG).stay(700, "compacting") == [TakesLong("model", 90), HungUp(600)]


@pytest.mark.parametrize(("phase", "what"), [("starting", "start"), ("awaiting_user", "exit")])
def test_an_agent_that_nobody_sits_before_has_to_begin_and_to_end(phase: Phase, what: Late) -> None:
    """Else its lease is renewed for ever, and nobody learns of it. A short hard timeout is for the model's answers."""
    alone = WatchdogLimits(hang=60, stuck=300)
    assert Post(alone).stay(2000, phase, "a tool") == [TakesLong(what, 300), HungUp(300, what)]
    assert Post(WatchdogLimits(hang=600, stuck=300)).stay(2000, phase) == [TakesLong(what, 300), HungUp(600, what)]
    assert Post(WatchdogLimits(stuck=300)).stay(9000, phase) == [TakesLong(what, 300)]
    assert Post(HANG).stay(9000, phase) == []


def test_a_session_that_began_without_a_turn_has_not_begun() -> None:
    assert watched_phase("awaiting_user", turned=False) == "starting"
    assert [p for p in PHASES if watched_phase(p, turned=False) != p] == ["awaiting_user"]
    assert all(watched_phase(p, turned=True) == p for p in PHASES)


@pytest.mark.parametrize("phase", ["starting", "awaiting_user"])
def test_an_agent_that_a_program_feeds_waits_for_its_words(phase: Phase) -> None:
    post = Post(WatchdogLimits(hang=60, stuck=300))
    for _ in range(2000):
        assert post.watch.tick(post.awake, phase, "", [], fed=True) == []
        post.awake += 1
    assert post.stay(299, phase) == [] and len(post.stay(9, phase)) == 2


def test_a_question_is_told_again_ever_more_seldom() -> None:
    """5, 15, 45 min, ... then daily: a week's wait is no mail an hour."""
    post = Post(step=5)
    told = post.stay(5 * 86_400, "awaiting_approval", "rm")
    assert all(isinstance(one, TakesLong) and (one.what, one.tool) == ("approval", "rm") for one in told)
    assert [round(at / 60) for at, _ in post.told][:6] == [5, 15, 45, 135, 405, 1215]
    assert len(told) <= 10
    gaps = [b - a for (a, _), (b, _) in zip(post.told, post.told[1:], strict=False)]
    assert max(gaps) <= 86_405


@pytest.mark.parametrize(
    ("cls", "seconds"), [("read_only", 120), ("idempotent", 600), ("mutation", 1800), ("unknown", 1800)]
)
def test_a_tool_has_the_time_of_its_class_and_is_told_once(cls: Class, seconds: int) -> None:
    post = Post()
    assert post.stay(seconds, "executing_tools", "", call(1, cls)) == []
    assert post.stay(5000, "executing_tools", "", call(1, cls)) == [TakesLong("tool", seconds, "tool1")]
    assert post.watch.late == (TakesLong("tool", seconds + 4999, "tool1"),)
    post.watch.rearm()  # another call's beginning
    assert post.stay(5000, "executing_tools", "", call(1, cls), call(2, "mutation")) == [
        TakesLong("tool", 1800, "tool2")
    ]
    post.stay(1, "executing_tools")
    assert not post.watch.late
    assert post.stay(121, "executing_tools", "", call(1)) == [TakesLong("tool", 120, "tool1")]  # of another run


def test_a_tool_that_waits_for_a_person_does_not_run() -> None:
    post = Post()
    post.stay(100, "executing_tools", "", call(1))
    assert {told.what for told in post.stay(5000, "awaiting_approval", "", call(1)) if isinstance(told, TakesLong)} == {
        "approval"
    }
    assert post.stay(19, "executing_tools", "", call(1)) == []


def test_nothing_is_told_where_it_is_switched_off() -> None:
    post = Post(WatchdogLimits(0, 0, 0, 0))
    for phase in PHASES:
        assert post.stay(10_000, phase, "", call(1)) == []


def test_an_agent_that_tells_nothing_is_not_watched() -> None:
    """It is in one turn from its beginning to its end, and healthy."""
    settings = Settings("file:///b", "job", hang_timeout=60, idle_soft=5)
    assert watchdog_limits(AGENTS["generic"], settings, interactive=False) == WatchdogLimits(0, 0, 0, 0)
    assert watchdog_limits(AGENTS["gemini"], settings, interactive=True) == WatchdogLimits(5, 300, 120, 60)
    assert watchdog_limits(AGENTS["gemini"], settings, interactive=False) == WatchdogLimits(5, 300, 120, 60, STUCK)


@pytest.mark.parametrize("jump", [LATE + 0.1, 3600, 1e9, -1, -1e9])
def test_time_between_two_looks_that_is_no_ones_does_not_fire_it(jump: float) -> None:
    """The process was stopped or starved; a clock that goes backwards is no wait either."""
    post = Post(WatchdogLimits(idle=90, hang=100))
    post.stay(85, "awaiting_model")
    post.awake += jump
    assert post.stay(5, "awaiting_model") == []
    assert post.stay(2, "awaiting_model") == [TakesLong("model", 90)]


steps = st.lists(
    st.tuples(
        st.sampled_from(PHASES),
        st.floats(-1e6, 1e6) | st.floats(0, LATE),
        st.booleans(),
        st.lists(st.integers(1, 3), unique=True),
    ),
    max_size=60,
)


@given(steps)
def test_it_speaks_only_of_what_it_saw_last_that_long(story: list[tuple[Phase, float, bool, list[int]]]) -> None:
    """Any phases, any times: the model is told of only where it owes an answer, a question only where one stands, a
    tool only while tools run; nothing before its time has passed in looks that came in time, and once a wait."""
    bounds = WatchdogLimits(idle=10, approval=8, tool=2, hang=15)
    watch, awake = Watchdog(bounds), 0.0
    since, was, told_model = 0.0, None, False  # most that can have been waited in this phase
    for phase, passed, rearmed, calls in story:
        awake += passed
        if rearmed:
            watch.rearm()
        if rearmed or phase != was:
            since, was, told_model = 0.0, phase, False
        elif 0 <= passed <= LATE:
            since += passed
        for found in watch.tick(awake, phase, "t", [call(n) for n in calls]):
            if isinstance(found, HungUp):
                assert is_idle(phase) and found.seconds >= 15 and since >= found.seconds - 1e-3
            elif found.what == "model":
                assert is_idle(phase) and since >= 10 - 1e-3 and not told_model
                told_model = True
            elif found.what == "approval":
                assert phase == "awaiting_approval" and since >= 8 - 1e-3
            else:
                assert phase == "executing_tools" and found.seconds >= 2
        assert all(late.what != "tool" or phase == "executing_tools" for late in watch.late)


@pytest.mark.parametrize("make", [os.pipe, lambda: [s.detach() for s in socket.socketpair()]], ids=["pipe", "socket"])
def test_stdin_is_fed_while_its_other_end_is_open(make: Callable[[], tuple[int, int]]) -> None:
    ours, theirs = make()
    try:
        os.write(theirs, b"x")
        assert stdin_is_fed(ours)
    finally:
        os.close(theirs)
    assert not stdin_is_fed(ours)
    os.close(ours)
    assert not stdin_is_fed(ours)
    with Path(os.devnull).open() as null:
        assert not stdin_is_fed(null.fileno())


def test_a_loop_that_turns_is_well_and_one_that_hangs_is_not() -> None:
    pulse = Liveness()
    assert not pulse.stalled(1e9), "before the agent runs, other limits hold"
    pulse.beat(100.0)
    assert not pulse.stalled(100.0 + STALLED)
    assert pulse.stalled(100.1 + STALLED)
    pulse.beat(150.0)
    assert not pulse.stalled(150.0)
    pulse.rest()
    assert not pulse.stalled(1e9)

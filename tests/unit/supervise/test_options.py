"""supervise/options.py: what is waited for is on the screen once it takes long, in one line."""

from __future__ import annotations

import threading

from tests.unit.supervise.crew import PATIENCE, until
from wal_agent.supervise.options import SAID_AFTER, WaitReport, agent_wait, wait_line


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def tick(waiting: WaitReport) -> None:
    with waiting._changed:
        waiting._changed.notify()


def test_a_long_wait_is_said_once_with_its_bound() -> None:
    """Nobody sits before a screen that says nothing."""
    clock, said, over = Clock(), list[str](), threading.Event()
    waiting = WaitReport(said.append, now=clock)

    def wait() -> None:
        with waiting.waiting_for("the bucket", 20.0):
            over.wait(PATIENCE)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: waiting._waits, "it waits")
    clock.time += SAID_AFTER
    tick(waiting)
    until(lambda: said, "it is said")
    clock.time += 100.0
    tick(waiting)
    over.set()
    thread.join(PATIENCE)
    assert said == ["waiting for the bucket (since 2 s; gives up after 20 s)"]


def test_what_does_not_take_long_is_not_said() -> None:
    """I6."""
    clock, said = Clock(), list[str]()
    waiting = WaitReport(said.append, now=clock)
    with waiting.waiting_for("one"):
        clock.time += SAID_AFTER - 0.1
        tick(waiting)
    clock.time += 10
    tick(waiting)
    with waiting.waiting_for("two"):
        tick(waiting)
    assert said == []


def test_of_nested_waits_the_innermost_is_said() -> None:
    said: list[str] = []
    waiting = WaitReport(said.append)
    with waiting.waiting_for("the start", after=0.0):
        until(lambda: said == [wait_line("the start", 0, 0)], "the outer one")
        with waiting.waiting_for("its bucket", 5.0, 0.0):
            until(lambda: len(said) == 2, "the inner one")
    assert said == ["waiting for the start (since 0 s)", "waiting for its bucket (since 0 s; gives up after 5 s)"]


def test_an_agent_that_nobody_sits_before_is_waited_for_at_its_beginning_and_its_end() -> None:
    """Gemini's process lives on as long as a name look-up of its statistics hangs."""
    assert agent_wait("gemini", begun=False, done=False) == "gemini to begin"
    assert agent_wait("gemini", begun=True, done=False) == ""
    assert agent_wait("gemini", begun=True, done=True) == "gemini to end; its turn is over"


def test_what_is_waited_for_around_another_wait_begins_anew() -> None:
    """The time in which a person thinks is no time of the bucket's."""
    clock, said = Clock(), list[str]()
    waiting = WaitReport(said.append, now=clock)
    with waiting.waiting_for("the bucket"):
        with waiting.waiting_for("an answer", after=3600.0):
            clock.time += 100.0
            tick(waiting)
        tick(waiting)
        assert waiting._waits[-1].since == clock.time
    assert said == []

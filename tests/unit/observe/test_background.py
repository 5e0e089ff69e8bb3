"""observe/logs.py: whoever blocks, blocks alone."""

from __future__ import annotations

import threading

import pytest

from tests.unit.supervise.crew import until
from wal_agent.events import Event, EventBus, LeaseRenewed, Ready
from wal_agent.observe.logs import BackgroundListener


class Inner:
    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.closed = False

    def on_event(self, at: float, event: Event) -> None:
        self.go_on.wait(30)
        if event == Ready():
            raise OSError("broken")
        self.heard.append(event)

    def close(self) -> None:
        self.closed = True


def test_it_hears_all_in_order_and_is_closed() -> None:
    inner, said = Inner(), list[str]()
    aside = BackgroundListener(lambda: inner, "log", said.append)
    told = [LeaseRenewed(n) for n in range(500)]
    for each in told:
        aside.on_event(0.0, each)
    aside.close()
    assert (inner.heard, inner.closed, said) == (told, True, [])


def test_one_that_blocks_delays_nobody_and_what_is_lost_is_told() -> None:
    inner, said = Inner(), list[str]()
    inner.go_on.clear()
    aside = BackgroundListener(lambda: inner, "log", said.append, most=10, last=0.01)
    for n in range(100):
        aside.on_event(0.0, LeaseRenewed(n))
    aside.close()
    assert said == ["log: what was left could not be handed over within 0.01 s."]
    inner.go_on.set()


def test_dropped_events_are_counted() -> None:
    inner, said = Inner(), list[str]()
    inner.go_on.clear()
    aside = BackgroundListener(lambda: inner, "log", said.append, most=10, last=30)
    for n in range(100):
        aside.on_event(0.0, LeaseRenewed(n))
    inner.go_on.set()
    aside.close()
    assert said[0].startswith("log: ") and said[0].endswith(" events were dropped, as they were not taken in time.")
    assert len(inner.heard) in (10, 11) and inner.closed


@pytest.mark.parametrize("when", ["made", "heard"])
def test_a_failure_is_the_announcers_once_and_the_others_hear_on(when: str) -> None:
    inner, beside, failed = Inner(), Inner(), list[BaseException]()

    def make() -> Inner:
        if when == "made":
            raise OSError("broken")
        return inner

    aside = BackgroundListener(make, "log", lambda _: None)
    bus = EventBus([aside, beside], lambda: 0.0, failed.append, last=60.0)
    if when == "heard":
        aside.on_event(0.0, Ready())
    until(lambda: aside._error, "it failed")
    for n in range(3):
        bus.emit(LeaseRenewed(n))
    bus.close()
    assert [str(each) for each in failed] == ["broken"]
    assert len(beside.heard) == 3 and len(inner.heard) == (3 if when == "heard" else 0)

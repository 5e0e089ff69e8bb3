"""observe/serve.py: what restarts a pod, and what takes it out of the ready ones."""

from __future__ import annotations

import pytest

from tests.unit.observe.story import TAKEN
from tests.unit.wal.world import FakeClock
from wal_agent.events import AgentEnded, Event, LeaseLost, LeaseRenewed, LeaseSettled, Ready, RenewalFailed, Saved
from wal_agent.observe.serve import MAX_SAVE_AGE, Health


class Probe:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hangs = False
        self.health = Health(self.clock, lambda now: self.hangs, 10.0)

    def on_event(self, *events: Event) -> Probe:
        for event in events:
            self.health.on_event(0.0, event)
        return self


@pytest.fixture
def probe() -> Probe:
    return Probe()


def test_ready_once_the_agent_works_and_the_lease_is_held(probe: Probe) -> None:
    assert probe.health.ready() == "no agent is at work"
    probe.on_event(TAKEN)
    assert probe.health.ready() == "no agent is at work"
    probe.on_event(Ready())
    assert probe.health.ready() == ""
    probe.clock.sleep(30)
    assert probe.health.ready() == "the lease is not held"
    probe.on_event(LeaseRenewed(4, 30.0))
    assert probe.health.ready() == ""


@pytest.mark.parametrize(
    "event",
    [LeaseLost("x"), LeaseSettled("closed", ""), AgentEnded(0, "completed", ""), RenewalFailed("away", 0.0)],
)
def test_not_ready_any_more(probe: Probe, event: Event) -> None:
    assert probe.on_event(TAKEN, Ready(), event).health.ready() != ""
    assert probe.health.alive() == "", "no reason to restart it"


def test_not_ready_while_nothing_can_be_saved_and_alive_all_the_same(probe: Probe) -> None:
    probe.on_event(TAKEN, Ready())
    for _ in range(4):
        probe.clock.sleep(MAX_SAVE_AGE / 3)
        probe.on_event(LeaseRenewed(4, 30.0))
    assert probe.health.ready() == f"nothing could be saved for {MAX_SAVE_AGE * 4 / 3:.0f} s"
    assert probe.health.alive() == ""
    probe.on_event(Saved("workspace", 1, 0.1))
    assert probe.health.ready() != "", "the conversation is what counts"
    assert probe.on_event(Saved("session", 0, 0.1)).health.ready() == ""


def test_a_loop_that_hangs_is_neither_alive_nor_ready(probe: Probe) -> None:
    probe.on_event(TAKEN, Ready())
    probe.hangs = True
    assert probe.health.alive() == probe.health.ready() == "the supervisor's loop hangs"

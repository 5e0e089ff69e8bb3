"""Going down: what the supervisor's loop sees of it, and when a paused or fed agent is let be."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.wal.world import FakeClock
from wal_agent.happened import HungUp, TakesLong
from wal_agent.supervise.calls import Running
from wal_agent.supervise.down import Down
from wal_agent.supervise.live import Live, fed
from wal_agent.supervise.phases import Phase, next_phase
from wal_agent.supervise.watchdog import Bounds, Watch

READS = Running(1, "read_file", b"{}", "", changes=False, began=0.0, cls="read_only")
WRITES = Running(2, "write_file", b"{}", "", changes=True, began=0.0, cls="mutation")


class Loop:
    """A `Live` of which nothing lives but its tick: a child that is told, calls that run."""

    def __init__(self, phase: Phase = "awaiting_model") -> None:
        self.did: list[str] = []
        self.running: list[Running] = []
        self.clock = FakeClock(1000.0)
        self.phase: Phase = phase
        self.live = live = object.__new__(Live)
        live._pulse = cast(Any, SimpleNamespace(beat=lambda _: None))
        live._clock, live._stopped, live._terminated, live._down = self.clock, None, None, None
        live._over = live._free = False
        live._busy, live._ready, live._drain_budget, live._going = 0.0, True, 20.0, threading.Lock()
        live._tell = lambda _: None
        live._watch = Watch(Bounds(hang=60, stuck=300))
        live._launch = cast(Any, SimpleNamespace(command=SimpleNamespace(no_stdin=True)))
        live._child = cast(
            Any, SimpleNamespace(terminate=lambda: self.did.append("terminate"), kill=lambda: self.did.append("kill"))
        )
        live.autosave = cast(Any, SimpleNamespace(poke=lambda: None))
        live.gate = cast(
            Any,
            SimpleNamespace(
                running=lambda: self.running,
                changing=lambda: [call for call in self.running if call.changes],
                drain=self.drain,
            ),
        )
        live.conversation = cast(
            Any,
            SimpleNamespace(
                hooks_live=SimpleNamespace(is_set=lambda: True),
                look=lambda: (self.phase, ""),
                enter=self.enter,
                turned=True,
            ),
        )

    def drain(self, sentence: str) -> None:
        self.did.append(f"drain, going down {self.live._down is not None}")

    def enter(self, event: Any) -> None:
        self.phase, actions = next_phase(self.phase, event)
        self.live._entered(actions)

    def tick(self, seconds: float = 0.0) -> list[str]:
        self.clock.at += seconds
        self.live._tick()
        return self.did

    def go(self, kind: Any) -> Loop:
        now = self.clock.boot()
        self.live.go_down(Down(kind, "x", now, now + 100, "going"))
        self.did.clear()
        return self


def test_no_changing_call_begins_once_the_loop_may_end_the_agent() -> None:
    """I1: else one that was allowed between the two would be cut off at its first step."""
    loop = Loop()
    loop.live.go_down(Down("drain", "x", 1000.0, 1100.0, "going"))
    assert loop.did == ["drain, going down False"] and loop.live._down is not None


def test_a_drain_waits_for_changing_calls_alone() -> None:
    loop = Loop().go("drain")
    loop.running = [WRITES]
    assert loop.tick() == []
    loop.running = [READS]
    assert loop.tick() == ["terminate"]


def test_a_paused_agent_is_ended_with_its_last_word() -> None:
    loop = Loop("executing_tools").go("pause")
    loop.running = [READS]
    loop.enter("tool_ended")
    assert loop.tick() == []
    loop.running = []
    loop.enter("last_tool_ended")
    loop.enter("model_asked")
    assert loop.tick(1.0) == loop.tick(5.0) == []
    loop.enter("turn_completed")
    assert loop.tick() == ["terminate"] and loop.tick(1.0) == ["terminate"]


def test_a_paused_agent_that_says_nothing_is_ended_all_the_same() -> None:
    silent, idle, busy = Loop().go("pause"), Loop("awaiting_user").go("pause"), Loop().go("pause")
    assert silent.tick(9.0) == [] and silent.tick(2.0) == ["terminate"]
    assert idle.tick(0.1) == ["terminate"], "it waits for a person, and has nothing to say"
    busy.running = [READS]
    assert busy.tick(49.0) == [] and busy.tick(2.0) == ["terminate"], "half of the time is over"


@pytest.mark.parametrize(
    ("phase", "turned", "what"),
    [
        ("starting", False, "did not begin"),
        ("awaiting_user", False, "did not begin"),
        ("awaiting_user", True, "did not end"),
    ],
)
def test_an_agent_that_hangs_at_an_end_of_its_life_is_given_up(phase: Phase, turned: bool, what: str) -> None:
    """Also one whose session began, and no turn of it."""
    loop, told = Loop(phase), list[Any]()
    loop.live.conversation.turned = turned
    loop.live._tell = told.append
    for _ in range(301):
        loop.tick(1.0)
    assert [type(one) for one in told] == [TakesLong, HungUp]
    assert loop.live._down is not None and what in loop.live._down.why


@pytest.mark.parametrize("make", [os.pipe, lambda: [s.detach() for s in socket.socketpair()]], ids=["pipe", "socket"])
def test_stdin_is_fed_while_its_other_end_is_open(make: Callable[[], tuple[int, int]]) -> None:
    ours, theirs = make()
    try:
        os.write(theirs, b"x")
        assert fed(ours)
    finally:
        os.close(theirs)
    assert not fed(ours)
    os.close(ours)
    assert not fed(ours)
    with Path(os.devnull).open() as null:
        assert not fed(null.fileno())

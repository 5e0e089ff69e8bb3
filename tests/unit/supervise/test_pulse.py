"""supervise/pulse.py: whether the supervisor's own loop turns."""

from __future__ import annotations

from wal_agent.supervise.pulse import STALLED, Liveness


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

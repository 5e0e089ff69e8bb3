"""End to end: a machine that is about to go gives its job up in good order, in time; what does not fit is a crash."""

from __future__ import annotations

import signal

from tests.e2e.scene import Scene, shell, told, until
from tests.processes import still_runs
from tests.servers.metadata import ACTION, PREEMPTED, metadata
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

FOR_EVER = 1000  # seconds: longer than any test waits


def draining(scene: Scene) -> None:
    """Told by the heartbeat."""
    until(lambda: scene.lease().phase == "draining", "it is draining")


def next_host(scene: Scene) -> str:
    """Start on another machine, without waiting for anything; what its model is told."""
    scene.script(Turn(text="Going on."))
    seen = len(scene.model.requests)
    again = scene.machine("vm-2").ask("work", wait=True)
    assert again.process.returncode == 0, again.stderr()
    return told(scene.model.requests[seen])


def test_a_notice_lets_a_short_tool_end_and_the_next_host_goes_on_at_once(scene: Scene) -> None:
    wait = "echo began >> side; until [ -e go ]; do sleep 0.05; done; echo ended >> side"
    scene.script(Turn(text="Working.", calls=[shell(wait)]), Turn(text="never said"))
    hold = scene.hold_turn(1)
    one = scene.machine("vm-1")
    with metadata() as cloud:
        options = ["--preemption", "gcp", "--drain", "600"]
        run = one.ask("work", options=options, GCE_METADATA_HOST=cloud.host)
        until(lambda: scene.side() == ["began"], "the tool runs")
        cloud.asked(PREEMPTED, 2)
        cloud.preempt()
        draining(scene)
        (scene.workspace / "go").touch()
        assert run.wait() == 143, run.stderr()
    hold.set()
    assert "is saved and stopped" in run.stderr()
    assert scene.side() == ["began", "ended"]
    assert (scene.lease().state, scene.lease().reason) == ("released", "preempted (gcp)")
    state = scene.replay().state
    assert state.workspace is not None and state.workspace.holds == 1, "its effects were saved before the lease"
    assert [c.record.trigger for c in state.checkpoints] == ["pre_shutdown"]
    said = next_host(scene)
    assert "The machine that you worked on" in said and "preempted (gcp). You are now on" in said
    assert "no tool call was in flight" in said
    assert scene.side() == ["began", "ended"]


@deep
def test_a_notice_interrupts_a_long_tool_at_half_its_time(scene: Scene) -> None:
    scene.script(Turn(text="Working.", calls=[shell(f"echo began >> side; sleep {FOR_EVER}")]))
    one = scene.machine("vm-1")
    with metadata() as cloud:
        options = ["--preemption", "aws", "--drain", "24"]
        endpoint = f"http://{cloud.host}/"
        run = one.ask("work", options=options, AWS_EC2_METADATA_SERVICE_ENDPOINT=endpoint)
        until(lambda: scene.side() == ["began"], "the tool runs")
        cloud.act({"action": "terminate", "time": "2099-09-18T08:22:00Z"})
        cloud.asked(ACTION, 2)
        assert run.wait() == 143, run.stderr()
    assert (scene.lease().state, scene.lease().reason) == ("released", "preempted (aws)")
    assert not still_runs(one.home, f"sleep {FOR_EVER}")


@deep
def test_sigterm_twice_waits_for_no_tool_and_the_next_host_is_told(scene: Scene) -> None:
    scene.script(Turn(text="Working.", calls=[shell(f"echo began >> side; sleep {FOR_EVER}")]))
    one = scene.machine("vm-1")
    run = one.ask("work", options=["--drain", "600"])
    until(lambda: scene.side() == ["began"], "the tool runs")
    run.kill(signal.SIGTERM)
    draining(scene)
    assert run.process.poll() is None
    run.kill(signal.SIGTERM)
    assert run.wait() == 143, run.stderr()
    assert (scene.lease().state, scene.lease().reason) == ("released", "drained (SIGTERM)")
    assert not still_runs(one.home, f"sleep {FOR_EVER}")
    said = next_host(scene)
    assert "drained (SIGTERM). What still ran then was interrupted." in said
    assert "One tool call was in flight" in said and "echo began >> side" in said

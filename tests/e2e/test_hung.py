"""A model that does not answer: told in `status`, the agent ended where that was asked for, and carried on with."""

from __future__ import annotations

import threading

import pytest

from tests.e2e.scene import Scene, check_log, until
from tests.tiers import deep
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.rehearsal.model import Turn

pytestmark = pytest.mark.parametrize("scene", ["gemini"], indirect=True)
shell = rehearsal.shell


@deep
def test_a_hung_model_is_told_then_ended_then_gone_on_with(scene: Scene) -> None:
    """Soft: it is told, and goes on. Hard: the agent is ended and the job given up; the next start carries on. I8: what
    was done before is not done again."""
    scene.script(Turn(calls=[shell("echo did >> side")]), Turn(hold=threading.Event()))
    machine = scene.machine("a")
    patient = machine.ask("do it", WAL_AGENT_IDLE_SOFT="0.5")
    scene.asked(2)

    def told() -> bool:
        view = machine.status()
        late = [(one["what"], one["tool"]) for one in view["late"]]
        return (view["phase"], late) == ("awaiting_model", [("model", "")]) and view["late"][0]["seconds"] >= 0.5

    until(told, "status says that the model takes long")
    assert "waiting for the model since" in machine.cli("status").stdout
    patient.kill()
    patient.died()

    scene.script(Turn(hold=threading.Event()))
    hung = machine.ask("do it", options=("--hang-timeout", "1"))
    assert hung.wait() not in (0, 143), hung.stderr()
    assert [r["why"] for r in machine.log() if r["type"] == "run_ended"] == ["the model did not answer"]
    assert machine.status()["state"] == "released"

    before = scene.records()
    scene.script(Turn(text="done"))  # also when it hung before it had asked
    last = machine.ask("do it", wait=True)
    assert last.wait() == 0, last.stderr()
    assert scene.side() == ["did"]
    check_log(scene, before)

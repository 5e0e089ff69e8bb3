"""I8 on the real CLIs: what an agent stopped at a time limit, or left running, is not over, whatever it says of it."""

from __future__ import annotations

import pytest

from tests.e2e.scene import Machine, Scene, until
from wal_agent.rehearsal.model import Call, Turn

CHARGE = "echo charged >> side; sleep 600; echo over >> side"
BEHIND = '(echo paid >> side; sleep 600) > /dev/null 2>&1 & until test -n "$(cat side | grep paid)"; do sleep 0.1; done'
LIMITS: dict[str, dict[str, object]] = {"opencode": {"timeout": 3000}, "pi": {"timeout": 3}}


def _limited(machine: Machine, command: str) -> Call:
    tool, input = machine.rehearsal.shell(command)
    return tool, {**input, **LIMITS[machine.agent]}


@pytest.mark.parametrize("scene", LIMITS, indirect=True)
def test_what_a_limit_stopped_and_what_runs_on_stay_open(scene: Scene) -> None:
    """Issue 32: each of them was "done" or "failed", and the next start said that no tool call was in flight."""
    machine = scene.machine("vm")
    left = Turn(calls=[machine.rehearsal.shell(BEHIND)])
    scene.script(Turn(calls=[_limited(machine, CHARGE)]), left, Turn(text="Done."))
    last = scene.hold_turn(2)
    run = machine.run(*machine.rehearsal.args("please do the work"))
    scene.asked(3)
    records = until(lambda: _with(scene, "runs_on"), "the second call runs on")
    last.set()
    run.wait()
    assert [(r["type"], r["call"]) for r in records if r["type"] in ("end", "cut", "runs_on")] == [
        ("cut", 1),
        ("runs_on", 2),
    ]
    assert next(r for r in records if r["type"] == "runs_on")["pids"]
    assert [o.intent.call for o in scene.replay().state.open] == [1, 2]
    assert scene.side() == ["charged", "paid"]


def _with(scene: Scene, kind: str) -> list[dict[str, object]]:
    found = scene.records()
    return found if any(r["type"] == kind for r in found) else []

"""Issue 17.1 on the real CLIs: the caller's conversation gets the result of a task, and not one line of its steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.scene import Scene, until
from wal_agent.rehearsal.model import Called, Returned, Said, Turn

STEP = "echo heron-in-building-seven >> side"
RESULT = "The heron moved out in May."


def seen(scene: Scene, n: int) -> str:
    return "\n".join(str(part) for part in scene.model.history(n))


@pytest.mark.parametrize("scene", ["claude", "gemini"], indirect=True)
def test_the_caller_gets_the_result_alone_and_a_crash_repeats_nothing(scene: Scene) -> None:
    """The run is killed while the child's model thinks; the same task carries on in the same job, and typed once more
    it prints what is kept."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    path = f"{Path(sys.executable).parent}:{scene.program.parent}:{os.environ['PATH']}"
    ask = shell('wal-agent task "where is the heron"')
    scene.script(Turn(calls=[ask]), Turn(calls=[shell(STEP)]), Turn("never said"))
    scene.hold_turn(2)
    run = machine.run(*machine.rehearsal.args("ask about the heron"), PATH=path)
    scene.asked(3)
    assert "where is the heron" in seen(scene, 2) and "heron-in-building-seven" in seen(scene, 2)
    (child,) = [each.name for each in scene.bucket.iterdir() if ".task-" in each.name]
    until(lambda: any(r["type"] == "end" for r in scene.records(child)), "the child's call is over")
    until(lambda: [r for r in scene.records(child) if r.get("settled")], "and in its saved session")
    run.kill()
    run.died()
    machine.end()
    asked = len(scene.model.requests)
    scene.script(Turn(calls=[ask]), Turn(RESULT), Turn(calls=[ask]), Turn("All is done."))
    again = machine.run(*machine.rehearsal.args("ask about the heron"), wait=True, PATH=path)
    assert again.process.returncode == 0, again.stderr()
    last = scene.model.history(len(scene.model.requests) - 1)
    results = [part.text for part in last if isinstance(part, Returned) and RESULT in part.text]
    assert len(results) == 2, "the second one is kept, and no model was asked for it"
    assert len(scene.model.requests) - asked == 4
    said = "\n".join(part.text for part in last if isinstance(part, Said))
    assert "heron-in-building-seven" not in said
    calls = [str(part) for part in last if isinstance(part, Called)]
    assert not any(STEP in call for call in calls), "no step of the child is a call of the caller"
    assert scene.side() == ["heron-in-building-seven"]

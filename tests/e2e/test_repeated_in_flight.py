"""Decision 052 on real CLIs: a model that makes the call in flight again without looking is refused, once it has looked
it is not."""

from __future__ import annotations

import pytest

from tests.e2e.scene import Scene, until
from wal_agent.rehearsal.model import Returned, Turn

CHARGE = "#!/bin/sh\necho charged >> side\n[ -e calm ] || exec sleep 1000\n"


@pytest.mark.parametrize("scene", ["claude", "codex", "gemini"], indirect=True)
def test_a_call_in_flight_does_not_run_again_before_anything_has_looked(scene: Scene) -> None:
    """I1, I8: whether it happened is not known, so nothing is changed; the same call runs once the agent has looked."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    program = scene.workspace / "charge"
    program.write_text(CHARGE)
    program.chmod(0o755)
    scene.script(Turn(calls=[shell("./charge 49.90")]))
    run = machine.run(*machine.rehearsal.args("charge the customer"))
    until(lambda: scene.side() == ["charged"], "the charge has happened")
    run.kill()
    run.died()
    machine.end()

    (scene.workspace / "calm").touch()
    scene.script(
        Turn(calls=[shell("./charge 49.90")]),
        Turn(calls=[shell("./charge 49.90")]),
        Turn(calls=[shell("cat side")]),
        Turn(calls=[shell("./charge 49.90")]),
        Turn("All is done."),
    )
    asked = len(scene.model.requests)
    again = machine.run(*machine.rehearsal.args("charge the customer"), wait=True)
    assert again.process.returncode == 0, again.stderr()
    told = [part.text for part in scene.model.history(asked + 2) if isinstance(part, Returned)][-2:]
    assert len(told) == 2 and all("wal-agent settle 1" in text for text in told)
    assert scene.side() == ["charged", "charged"], "the first one, and the one behind the look"
    intents = [r["input"]["data"] for r in scene.records() if r["type"] == "intent"]
    assert sum("charge 49.90" in text for text in intents) == 2 and sum("cat side" in text for text in intents) == 1

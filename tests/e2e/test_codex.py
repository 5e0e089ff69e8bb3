"""A whole run of Codex, where what it tells of a call differs from hook to file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.contract.test_codex import CODE_MODE, PATCH
from tests.e2e.scene import Scene, until
from tests.tiers import deep
from wal_agent.agents.codex import rehearsal as codex_rehearsal
from wal_agent.rehearsal.model import Call, Model, Turn


@deep
def test_a_command_that_is_a_patch(tmp_path: Path, agent_cli: Callable[[str], Path]) -> None:
    """It is no call whose before-hook did not fire (I5, I6): the run goes on, and the call has its one end (I8)."""
    with Model(codex_rehearsal.rehearsal.dialect) as model:
        scene = Scene(tmp_path, agent_cli("codex"), model, "codex")
        try:
            one = scene.machine("vm-1")
            shell = one.rehearsal.shell
            scene.script(Turn(calls=[shell(PATCH)]), Turn(calls=[shell("sleep 1; echo two >> side")]), Turn("bye"))
            run = one.run(*one.rehearsal.args("do it"), wait=True)
            assert run.process.returncode == 0, run.stderr()
            assert scene.side() == ["two"]
            ends = [r["how"] for r in scene.records() if r["type"] == "end"]
            assert ends == ["done", "done"]
        finally:
            scene.close()


LEFT = "echo up >> side; sleep 300; echo down >> side"
SCRIPT = f"text(await tools.exec_command({{cmd: {json.dumps(LEFT)}, yield_time_ms: 300}}))"


@deep
@pytest.mark.parametrize(
    ("call", "flags"),
    [
        (("exec_command", {"cmd": LEFT, "yield_time_ms": 300}), ()),
        (("exec", {"input": SCRIPT}), CODE_MODE),
    ],
    ids=["by the model", "by a script"],
)
def test_a_command_that_the_turn_leaves_running(
    call: Call, flags: Sequence[str], tmp_path: Path, agent_cli: Callable[[str], Path]
) -> None:
    """I8: Codex ends it when it ends, and may be gone before it has written so. It had begun, so it stays open."""
    with Model(codex_rehearsal.rehearsal.dialect) as model:
        scene = Scene(tmp_path, agent_cli("codex"), model, "codex")
        try:
            one = scene.machine("vm-1")
            scene.script(Turn(calls=[call]), Turn("bye"))
            hold = scene.hold_turn(1)
            run = one.run(*one.rehearsal.args("do it"), *flags)
            until(lambda: scene.side() == ["up"], "the command runs")
            hold.set()
            assert run.wait() == 0, run.stderr()
            assert "open: #1" in run.stderr()
            kinds = {r["type"] for r in scene.records() if r.get("call") == 1}
            assert kinds & {"cut", "runs_on"} and "end" not in kinds
            assert one.status()["state"] == "released"
            assert scene.side() == ["up"]
        finally:
            scene.close()

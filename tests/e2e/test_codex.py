"""A whole run of Codex, where what it tells of a call differs from hook to file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.contract.test_codex import PATCH
from tests.e2e.scene import Scene
from wal_agent.agents.codex.rehearsal import CodexRehearsal
from wal_agent.loopback.model import Model, Turn


def test_a_command_that_is_a_patch(tmp_path: Path, agent_cli: Callable[[str], Path]) -> None:
    """It is no call whose before-hook did not fire (I5, I6): the run goes on, and the call has its one end (I8)."""
    with Model(CodexRehearsal().dialect) as model:
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


def test_a_command_that_the_turn_leaves_running(tmp_path: Path, agent_cli: Callable[[str], Path]) -> None:
    """Codex ends it when it ends, and may be gone before it has written so: nobody is asked about it all the same."""
    with Model(CodexRehearsal().dialect) as model:
        scene = Scene(tmp_path, agent_cli("codex"), model, "codex")
        try:
            one = scene.machine("vm-1")
            server = ("exec_command", {"cmd": "echo up >> side; sleep 300; echo down >> side", "yield_time_ms": 300})
            scene.script(Turn(calls=[server]), Turn("bye"))
            run = one.run(*one.rehearsal.args("do it"), wait=True)
            assert run.process.returncode == 0, run.stderr()
            assert "not settled" not in run.stderr()
            assert [r["how"] for r in scene.records() if r["type"] == "end"] == ["interrupted"]
            assert scene.side() == ["up"]
        finally:
            scene.close()

"""I5 where the hooks themselves are off: found before the start, at the handshake, or at the first unseen call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.scene import Scene, until
from tests.tiers import deep
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.rehearsal.model import Turn

pytestmark = pytest.mark.parametrize("scene", ["gemini"], indirect=True)
shell = rehearsal.shell
TASK = "please do the work"
OFF = json.dumps({"hooksConfig": {"enabled": False}})


@deep
@pytest.mark.parametrize("place", ["project", "user"])
def test_switched_off_in_a_settings_file(scene: Scene, place: str) -> None:
    """I5, I7: refused before anything is started or written, in a line that names the file and the key."""
    machine = scene.machine("vm-1")
    file = scene.workspace / ".gemini/settings.json" if place == "project" else machine.settings
    file.parent.mkdir(exist_ok=True)
    file.write_text(OFF)
    run = machine.ask(TASK, wait=True)
    assert run.process.returncode == 78
    shown = ".gemini/settings.json" if place == "project" else "~/.gemini/settings.json"
    assert f"({shown}: hooksConfig.enabled is false)" in run.stderr()
    assert "Nothing was run." in run.stderr()
    assert len(run.stderr().splitlines()) == 1
    assert scene.model.requests == []
    assert machine.status()["state"] == "none"
    assert file.read_text() == OFF


def test_a_list_of_extensions_does_not_shut_ours_out(scene: Scene) -> None:
    """I5, I6: with `-e none` no extension of the user's is loaded, and every call is logged all the same."""
    scene.script(Turn(calls=[shell("echo one >> side")]), Turn(text="All done."))
    machine = scene.machine("vm-1")
    run = machine.run("-y", "-e", "none", "-p", TASK, wait=True)
    assert run.process.returncode == 0, run.stderr()
    assert [r["how"] for r in scene.records() if r["type"] == "end"] == ["done"]
    assert scene.side() == ["one"]


def wrapper(scene: Scene, text: str) -> Path:
    """A Gemini that does something behind our back before it is Gemini."""
    path = scene.root / "gemini"
    path.write_text(f'#!/bin/sh\n{text}\nexec "{scene.program}" "$@"\n')
    path.chmod(0o755)
    return path


@deep
def test_no_handshake(scene: Scene) -> None:
    """I5: nobody could see that these hooks are off. The turn begins without them, and the run ends before the model
    has answered, so no tool can have run."""
    scene.script(Turn(calls=[shell("echo one >> side")]))
    hold = scene.hold_turn(0)
    machine = scene.machine("vm-1")
    behind = wrapper(scene, 'set -- "$@" -e none')
    run = machine.ask(TASK, WAL_AGENT_GEMINI=str(behind))
    assert run.wait() == 78, run.stderr()
    assert "hooks did not answer" in run.stderr()
    assert "wal-agent doctor" in run.stderr()
    hold.set()
    assert scene.side() == []
    assert not [r for r in scene.records() if r["type"] == "intent"]
    assert machine.status()["state"] == "released"


@deep
def test_an_unseen_call(scene: Scene) -> None:
    """I5: the session began with hooks, but none told of this call. It ran; nothing after it does."""
    scene.script(Turn(calls=[shell("echo one >> side")]), Turn(calls=[shell("echo two >> side")]))
    hold = scene.hold_turn(1)
    machine = scene.machine("vm-1")
    behind = wrapper(scene, 'sed -i s/BeforeTool/BeforeNothing/ "${WAL_AGENT_SOCKET%/*}"/extensions/*/hooks/hooks.json')
    run = machine.ask(TASK, WAL_AGENT_GEMINI=str(behind))
    until(lambda: scene.side() == ["one"], "the unseen call runs")
    assert run.wait() == 78, run.stderr()
    hold.set()
    assert "ran run_shell_command, which no hook announced" in run.stderr()
    assert scene.side() == ["one"]
    assert not list(machine.runtime.glob("*/extensions/*"))

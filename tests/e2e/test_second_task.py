"""A second task on a job that had ended, on the real CLI."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from tests.e2e.scene import Scene, crashed, notices, texts_in, until
from tests.tiers import KINDS, deep
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.recovery.report import name_calls
from wal_agent.rehearsal.model import HistoryText, Turn
from wal_agent.text import unproven_text
from wal_agent.wording import messages

GEMINI = pytest.mark.parametrize("scene", ["gemini"], indirect=True)
shell = rehearsal.shell


@deep
@GEMINI
def test_a_second_task_whose_machine_is_lost_before_its_first_turn_is_done(scene: Scene) -> None:
    """I3: its session is saved and no turn of it is; the log's newest turn is that of the first task. A
    hook of the user's own holds Gemini there, so that the moment is hit surely."""
    first = scene.machine("vm-1")
    scene.script(Turn(calls=[shell("echo one >> side")]), Turn(text="The first is done."))
    assert first.ask("the first task", wait=True).process.returncode == 0

    settings = json.loads(first.settings.read_text())
    wait = {"type": "command", "command": f"while [ ! -e {scene.root}/go ]; do sleep 0.05; done", "timeout": 600_000}
    settings.setdefault("hooks", {})["SessionStart"] = [{"hooks": [wait]}]
    first.settings.write_text(json.dumps(settings))
    run = first.ask("the second task")
    until(lambda: any(r["type"] == "file" and r["epoch"] == 2 for r in scene.records()), "its session is saved")
    first.lost()
    records = [r["type"] for r in scene.records() if r["epoch"] == 2]
    assert "file" in records and "turn" not in records, records
    assert run.process.poll() is not None

    second = scene.machine("vm-2")
    scene.script(Turn(calls=[shell("echo two >> side")]), Turn(text="The second is done."))
    seen = len(scene.model.requests)
    again = second.ask("the second task", options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert scene.side() == ["one", "two"]
    request = scene.model.requests[seen]
    assert sum("the second task" in text for text in texts_in(request)) == 1, texts_in(request)
    assert not any("the first task" in text for text in texts_in(request))
    assert notices(request) == []
    assert second.status()["state"] == "closed"


@deep
@pytest.mark.parametrize("scene", KINDS, indirect=True)
def test_a_call_that_the_agent_answered_for_leaves_the_next_task_alone(scene: Scene) -> None:
    """I8: the agent's word is kept, the call stays open, and the next task is a new session."""
    machine = scene.machine("vm-1")
    crashed(scene, machine)
    look = machine.rehearsal.shell
    settle = f"{shlex.quote(sys.executable)} -m wal_agent settle 1 --because 'only begun is in side'"
    scene.script(
        Turn(calls=[look("cat side")]),
        Turn(calls=[look(settle)]),
        Turn(text="I looked."),
    )
    again = machine.ask("go on", wait=True)
    assert again.process.returncode == 0, again.stderr()
    status = machine.status()
    assert [(c["call"], c["answered"], c["because"]) for c in status["unsettled"]] == [
        (1, True, "only begun is in side")
    ]
    assert (status["state"], status["unproven"]) == ("closed", 1)
    assert unproven_text(1) in machine.cli("list").stdout

    seen = len(scene.model.requests)
    scene.script(Turn(text="The other one is done."))
    other = machine.ask("another task", wait=True)
    assert other.process.returncode == 0, other.stderr()
    heard = [part.text for part in scene.model.history(seen) if isinstance(part, HistoryText)]
    assert not any(text.startswith("[wal-agent recovery]") or text.strip() == "go on" for text in heard)
    [left] = scene.replay().state.open
    about = messages.open_calls_context([(1, left.intent.tool, b"{}", ())]).splitlines()[0]
    assert sum(about in text for text in heard) == 1, "the new session reads of the open call"
    job = f"--job job --bucket {scene.url}"
    named = name_calls(scene.replay().state.open)
    assert messages.still_open(1, named, "only begun is in side", job) in other.stderr()
    assert machine.ask("another task", options=["--once"], wait=True).process.returncode == 0
    assert len(scene.model.requests) == seen + 1, "nobody is asked again"

    assert machine.cli("settle", "1", "--because", "x").returncode == 64  # a person has `ack`
    assert machine.cli("ack", "1", "--not-done").returncode == 0
    assert (machine.status()["state"], machine.status()["unsettled"]) == ("closed", [])
    assert [r["call"] for r in scene.records() if r["type"] == "end" and r["by"] == "person"] == [1]

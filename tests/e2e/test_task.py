"""On the real CLIs: the caller's conversation gets the result of a task, and not one line of its steps."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scene import Machine, Scene, opened, until
from tests.tiers import deep, once
from wal_agent.agents import AGENTS
from wal_agent.rehearsal.model import Called, HistoryText, Returned, Turn
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

STEP = "echo heron-in-building-seven >> side"
RESULT = "The heron moved out in May."


def seen(scene: Scene, n: int) -> str:
    return "\n".join(str(part) for part in scene.model.history(n))


def replayed(scene: Scene, job: str) -> State:
    with opened(scene.url) as bucket:
        return replay(bucket, Keys(job)).state


def main_file(scene: Scene) -> str:
    return AGENTS[scene.agent].main_file


def trace(machine: Machine, *args: str) -> Any:
    return json.loads(machine.cli("trace", *args, "--json").stdout)


@pytest.mark.parametrize("scene", once(["claude", "gemini"], "claude"), indirect=True)
def test_the_caller_gets_the_result_alone_and_a_crash_repeats_nothing(scene: Scene) -> None:
    """The run is killed while the child's model thinks; the same task carries on in the same job, and typed once more
    it prints what is kept."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    path = f"{Path(sys.executable).parent}:{scene.program.parent}:{os.environ['PATH']}"
    ask = shell('wal-agent task "where is the heron"; echo "ended with $?"')
    scene.script(Turn(calls=[ask]), Turn(calls=[shell(STEP)]), Turn("never said"))
    scene.hold_turn(2)
    run = machine.run(*machine.rehearsal.args("ask about the heron"), PATH=path)
    scene.asked(3)
    assert "where is the heron" in seen(scene, 2) and "heron-in-building-seven" in seen(scene, 2)
    (child,) = [each.name for each in scene.bucket.iterdir() if ".task-" in each.name]
    until(lambda: any(r["type"] == "end" for r in scene.records(child)), "the child's call is over")
    parent, task = scene.replay().state, replayed(scene, child).task
    assert task is not None and (task.job, task.epoch, task.checkpoint) == ("job", 1, parent.tasks[child].checkpoint)
    checkpoint = next(c for c in parent.checkpoints if c.record.number == task.checkpoint)
    assert checkpoint.record.role == "rewind_target" and checkpoint.epoch == 1
    until(lambda: [r for r in scene.records(child) if r.get("settled")], "and in its saved session")
    run.kill()
    run.died()
    machine.end()
    asked = len(scene.model.requests)
    scene.script(Turn(calls=[ask]), Turn(RESULT), Turn(calls=[ask]), Turn("All is done."))
    again = machine.run(*machine.rehearsal.args("ask about the heron"), wait=True, PATH=path)
    assert again.process.returncode == 0, again.stderr()
    recovery = scene.replay().state.recovery
    assert recovery is not None and [v.finding for v in recovery.verdicts] == ["partial"]
    assert child in recovery.verdicts[0].why, "the task has its own verdict, by its own log"
    last = scene.model.history(len(scene.model.requests) - 1)
    results = [part.text for part in last if isinstance(part, Returned) and RESULT in part.text]
    assert len(results) == 2, "the second one is kept, and no model was asked for it"
    assert all("ended with 0" in result for result in results), "what is typed behind a task changes no verdict"
    assert len(scene.model.requests) - asked == 4
    said = "\n".join(part.text for part in last if isinstance(part, HistoryText))
    assert "heron-in-building-seven" not in said
    calls = [str(part) for part in last if isinstance(part, Called)]
    assert not any(STEP in call for call in calls), "no step of the child is a call of the caller"
    assert scene.side() == ["heron-in-building-seven"]
    task = replayed(scene, child).task
    assert task is not None and task.epoch == scene.replay().state.epoch, "bound by the run that asked last"
    assert [each["job"] for each in trace(machine, "list")["tasks"]] == [child]
    shown = trace(machine, "show", child)["lines"]
    assert any("heron-in-building-seven" in line["text"] for line in shown)
    raw = machine.cli("trace", "show", child, "--raw").stdout
    assert raw and hashlib.sha256(raw.encode()).hexdigest() == replayed(scene, child).files[main_file(scene)].sha256
    found = json.loads(machine.cli("recall", "heron-in-building-seven", "--json").stdout)["hits"]
    assert child in [hit["job"] for hit in found]
    kept = machine.cli("rm", child, "--yes")
    assert kept.returncode == 64 and "wal-agent rm job" in kept.stderr, "a trace stays as long as its caller"


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_a_budget_two_tasks_at_once_and_kills_around_the_child(scene: Scene) -> None:
    """A child that loops reads that its budget is used up; the command killed in front of its child or behind it is the
    same task when it is typed again."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    path = f"{Path(sys.executable).parent}:{scene.program.parent}:{os.environ['PATH']}"
    step = shell("echo again >> side")
    both = shell('wal-agent task "left" & wal-agent task "right" & wait')
    kills = "; ".join(
        f"WAL_AGENT_FAILPOINT={at} wal-agent task kill" for at in ("task.before_child", "task.after_child")
    )
    scene.script(
        Turn(calls=[shell('wal-agent task --budget-calls 2 "loop"')]),
        *[Turn(calls=[step])] * 3,
        Turn("It is half done."),
        Turn(calls=[both]),
        *[Turn(calls=[step])] * 2,
        *[Turn(RESULT)] * 2,
        Turn(calls=[shell(f"{kills}; wal-agent task kill")]),
        Turn(calls=[step]),
        Turn("It was killed."),
        Turn("All is done."),
    )
    run = machine.run(*machine.rehearsal.args("ask about the heron"), wait=True, PATH=path)
    assert run.process.returncode == 0, run.stderr()
    results = [p.text for p in scene.model.history(len(scene.model.requests) - 1) if isinstance(p, Returned)]
    assert "It is half done." in results[0] and "budget of 2 calls was used up" in results[0]
    assert results[1].count(RESULT) == 2
    assert results[2].count("It was killed.") == 1
    assert scene.side() == ["again"] * 5, "two of the first child, and none of its third call; one of each other"
    assert len(scene.replay().state.tasks) == 4


@pytest.mark.parametrize("scene", once(["claude", "gemini", "codex", "pi", "opencode"], "codex"), indirect=True)
def test_a_fork_begins_in_a_copy_of_the_callers_conversation(scene: Scene) -> None:
    """The child's model gets what was said to the caller, under another session id; the caller's conversation gets none
    of the child's steps. On Gemini outputs that are not those of the schema are asked for once more."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    path = f"{Path(sys.executable).parent}:{scene.program.parent}:{os.environ['PATH']}"
    checked = scene.agent == "gemini"
    schema = scene.root / "schema.json"
    schema.write_text('{"type": "object", "required": ["building"]}')
    command = f"{shlex.quote(sys.executable)} -m wal_agent task --fork"  # Codex's login shell has a PATH of its own
    ask = f"{command} {f'--schema {schema}' if checked else ''} 'and where is it now'"
    scene.script(
        Turn(calls=[shell("echo before >> side")]),  # a call of the caller is in the copy too, and no call of the child
        Turn("The heron is known.", calls=[shell(ask)]),
        Turn(calls=[shell(STEP)]),
        *([Turn(RESULT), Turn('{"summary": "It moved.", "outputs": {"building": 7}}')] if checked else [Turn(RESULT)]),
        Turn("All is done."),
    )
    run = machine.run(*machine.rehearsal.args("ask about the heron"), wait=True, PATH=path)
    assert run.process.returncode == 0, run.stderr()
    assert "ask about the heron" in seen(scene, 2) and "and where is it now" in seen(scene, 2)
    assert "The heron is known." in seen(scene, 2), "the child has the caller's conversation"
    last = scene.model.history(len(scene.model.requests) - 1)
    results = [part.text for part in last if isinstance(part, Returned)]
    wanted = ["It moved.", "building"] if checked else [RESULT]
    assert len(results) == 2 and all(words in results[1] for words in wanted)
    assert scene.side() == ["before", "heron-in-building-seven"]
    (child,) = scene.replay().state.tasks
    assert replayed(scene, child).session != scene.replay().state.session
    assert len(scene.model.requests) == (6 if checked else 5)
    agent = AGENTS[scene.agent]
    files = agent.session_files(scene.replay().state.session, scene.workspace, machine.env())
    assert any(file.name == agent.main_file and file.path.exists() for file in files), "the caller's session is there"

"""`wal-agent run` typed by an agent. Its run has a job, a log and a socket of its own; the outer recovery
ends what it left running, and tells what became of it by its own log."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.scene import Machine, Run, Scene, notices, opened, until
from tests.tiers import deep
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.rehearsal.model import Turn
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys

pytestmark = pytest.mark.parametrize("scene", ["gemini"], indirect=True)  # whose tools outlive it
shell = rehearsal.shell
TASK = "please do the work"
BEGIN = "INNER, begin"
INNER = f"wal-agent run gemini --job inner --ttl 6 -- -y -p '{BEGIN}'"
CALL = shell(f"{INNER} </dev/null >>inner.out 2>&1; echo inner over")
LONG = shell("echo inner >> side; touch begun; while ! [ -e go ]; do sleep 0.1; done; echo late >> side")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def start(machine: Machine, wait: bool = False, **env: str) -> Run:
    return machine.ask(TASK, wait=wait, PATH=PATH, **env)


def inside(scene: Scene, machine: Machine) -> Run:
    """An outer run whose inner run is in a call."""
    scene.script(Turn(calls=[CALL], when=TASK), Turn(calls=[LONG], when=BEGIN), Turn("inner is done"))
    run = start(machine)
    begun = scene.workspace / "begun"
    until(lambda: begun.exists() or run.process.poll() is not None, "the inner call runs")
    assert run.process.poll() is None, run.stderr()
    return run


def inner_state(scene: Scene) -> str:
    with opened(scene.url) as bucket:
        seen = leases.read_lease(bucket, Keys("inner"))
    return seen.doc.state if seen else "none"


def tools(machine: Machine) -> list[psutil.Process]:
    """What runs of the inner call's loop."""
    found = []
    for process in psutil.process_iter():
        try:
            if "-e go" in " ".join(process.cmdline()) and process.environ().get("HOME") == str(machine.home):
                found.append(process)
        except psutil.Error:
            continue
    return found


def recovered(scene: Scene, machine: Machine, *turns: Turn) -> dict[str, Any]:
    """The verdict on the outer call, as the log has it, after the same command was started again."""
    asked = len(scene.model.requests)
    scene.script(*turns)
    again = start(machine, wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert len(notices(scene.model.requests[asked])) == 1
    (record,) = (r for r in scene.records() if r["type"] == "recovery")
    (verdict,) = record["verdicts"]
    found: dict[str, Any] = verdict
    return found


def test_the_inner_tool_is_ended_and_the_same_command_carries_on(scene: Scene) -> None:
    """Only the outer supervisor is killed: the inner run and its tool live on, until the outer recovery ends them."""
    machine = scene.machine("vm-1")
    run = inside(scene, machine)
    runs = {r["type"]: r for r in scene.records("inner")}
    (outer,) = (r["run"] for r in scene.records() if r["type"] == "opening")
    assert runs["opening"]["parents"] == [outer]
    run.kill()
    run.died()
    assert tools(machine), "a tool outlives its CLI"
    verdict = recovered(
        scene,
        machine,
        Turn(calls=[CALL], when="[wal-agent recovery]"),
        Turn("inner has looked", when="[wal-agent recovery]"),
        Turn("all done"),
    )
    assert verdict["finding"] == "partial" and "wal-agent stopped it" in verdict["why"]
    assert not tools(machine) and scene.side() == ["inner"]
    assert "inner has looked" in (scene.workspace / "inner.out").read_text() and inner_state(scene) != "held"


@deep
def test_an_inner_run_that_came_to_its_end_is_completed(scene: Scene) -> None:
    """It did so after the outer run was killed; its own log is the evidence."""
    machine = scene.machine("vm-1")
    run = inside(scene, machine)
    run.kill()
    run.died()
    (scene.workspace / "go").touch()
    until(lambda: inner_state(scene) == "closed", "the inner run comes to its end")
    until(lambda: not tools(machine), "and is gone")
    verdict = recovered(scene, machine, Turn("then all is done"))
    assert (verdict["finding"], verdict["why"]) == (
        "completed",
        "The log of job `inner` says that this run came to the end of its task.",
    )
    assert scene.side() == ["inner", "late"]


@deep
def test_an_inner_run_that_was_lost_too(scene: Scene) -> None:
    """The whole machine was: both are cut off, and the log of the inner job says how far it came."""
    machine = scene.machine("vm-1")
    run = inside(scene, machine)
    run.kill()
    machine.end()
    verdict = recovered(scene, machine, Turn("I looked."))
    assert (verdict["finding"], verdict["why"]) == (
        "partial",
        "The log of job `inner` says that this run was cut off.",
    )


def test_a_run_inside_its_own_job_is_refused(scene: Scene) -> None:
    """It would wait for itself, or fence its own parent. The outer run goes on."""
    machine = scene.machine("vm-1")
    words = "wal-agent run gemini --wait -- -y -p 'INNER, begin' >said 2>&1; echo \"code $?\" >>said"
    scene.script(Turn(calls=[shell(words)]), Turn("All done."))
    run = start(machine, wait=True)
    assert run.process.returncode == 0, run.stderr()
    said = (scene.workspace / "said").read_text()
    assert "typed inside its own run" in said and "--job NAME" in said and "code 64" in said
    assert [r["epoch"] for r in scene.records() if r["type"] == "opening"] == [1]
    assert machine.status()["state"] == "closed" and json.dumps(scene.records())


@deep
@pytest.mark.parametrize("words", ["env -i HOME=$HOME PATH=$PATH", "setsid", ""])
def test_the_parents_are_found_without_the_environment(scene: Scene, words: str) -> None:
    """By the processes, so a tool cannot hide a run from its outer one, nor name one that it is not inside of."""
    machine = scene.machine("vm-1")
    program = "from wal_agent.supervise.ancestry import outer_runs; print(*[a.run for a in outer_runs()])"
    probe = shlex.join([sys.executable, "-c", program])
    scene.script(Turn(calls=[shell(f"WAL_AGENT_RUN=other {words} {probe} >said 2>&1")]), Turn("All done."))
    assert start(machine, wait=True).process.returncode == 0
    (outer,) = (r["run"] for r in scene.records() if r["type"] == "opening")
    assert (scene.workspace / "said").read_text().split() == [outer]

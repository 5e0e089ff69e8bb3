"""Crashes in and after a recovery: every dangling call is told until it is settled, and nothing is done twice."""

from __future__ import annotations

import hashlib

import pytest

from tests.e2e.scene import (
    Machine,
    Run,
    Scene,
    check_exact,
    check_log,
    commands_in,
    notices,
    results_in,
    shell,
    texts_in,
    until,
)
from tests.tiers import deep, once
from wal_agent.agents import AGENTS
from wal_agent.rehearsal.model import Turn
from wal_agent.wording.messages import REPLACES

TASK = "please do the work"


def long_call(name: str) -> str:
    return f"echo {name}-begun >> side; touch {name}-runs; sleep 600; echo {name}-ended >> side"


def killed_in(scene: Scene, machine: Machine, name: str) -> Run:
    """A run that is killed while the call `name` runs."""
    run = machine.ask(TASK, options=["--wait"])
    until(lambda: (scene.workspace / f"{name}-runs").exists(), f"the call {name} runs")
    until(lambda: any(r["type"] == "file" for r in scene.records()), "its session is in the log")
    run.kill()
    run.died()
    return run


@pytest.mark.parametrize("place", once(["one machine", "other machines"], "other machines"))
def test_three_crashes_in_a_row(scene: Scene, place: str) -> None:
    """I3, I4, I8: killed in a call, in the resumed agent's first call, and when the agent was just started again: the
    last recovery tells both calls, the history has every call and every notice once, and nothing ran twice."""
    hosts = [scene.machine("vm-1")] * 4 if place == "one machine" else [scene.machine(f"vm-{n}") for n in range(1, 5)]
    scene.script(Turn(text="A step.", calls=[shell("echo one >> side")]), Turn(calls=[shell(long_call("first"))]))
    killed_in(scene, hosts[0], "first")

    scene.script(Turn(text="I verified the first; now this.", calls=[shell(long_call("second"))]))
    second = killed_in(scene, hosts[1], "second")
    assert "\n  open  " in second.stderr()
    before = scene.records()

    scene.script()
    seen = len(scene.model.requests)
    hosts[2].ask(TASK, options=["--wait"], WAL_AGENT_FAILPOINT="run.after_agent_start").died()
    assert len(scene.model.requests) == seen

    scene.script(Turn(text="I verified both. I stop here."))
    last = hosts[3].ask(TASK, options=["--wait"], wait=True)
    assert last.process.returncode == 0, last.stderr()
    request = scene.model.requests[seen]
    told = notices(request)
    assert len(set(told)) == len(told) <= 2, "each recovery's notice at most once"
    for name in ("first", "second"):
        assert f"echo {name}-begun" in told[-1], "the newest notice tells all that is not settled"
    assert "2 tool calls were in flight" in told[-1]
    assert sum(TASK in text for text in texts_in(request)) == 1
    wanted = ["echo one >> side", long_call("first"), long_call("second")]
    assert commands_in(request) == wanted
    results = [r.text for r in results_in(request)]
    assert ["outcome unknown" in result for result in results] == [False, True, True]

    log = check_log(scene, before)
    assert [r["call"] for r in log if r["type"] == "intent"] == [1, 2, 3]
    assert [r["call"] for r in log if r["type"] == "end"] == [1]
    recovered = [r["from_epoch"] for r in log if r["type"] == "recovery"]
    assert recovered in ([1, 2, 2], [1, 2, 3]), "the third run's record of its agent may not have arrived"
    check_exact(scene, hosts[3])
    assert scene.side() == ["one", "first-begun", "second-begun"]
    assert [c["call"] for c in hosts[3].status()["unsettled"]] == [2, 3]
    (line,) = (line for line in last.stderr().splitlines() if "open: #2 Bash" in line)
    assert ", #3 Bash" in line


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_a_notice_that_no_agent_read_is_not_told_again(scene: Scene) -> None:
    """I4: what a killed recovery put into place is not taken for the agent's own words by the next one."""
    machine = scene.machine("vm-1")
    scene.script(Turn(text="never said"))
    scene.hold_turn(0)
    run = machine.ask(TASK)
    scene.asked(1)
    main = AGENTS["gemini"].main_file

    def saved() -> bool:
        data = machine.session_file().read_bytes()
        file = scene.replay().state.files.get(main)
        return TASK.encode() in data and file is not None and file.sha256 == hashlib.sha256(data).hexdigest()

    until(saved, "the prompt is saved")
    run.kill()
    run.died()
    for point in ("restore.after_moves", "recovery.after_record"):
        machine.ask(TASK, WAL_AGENT_FAILPOINT=point).died()
    scene.script(Turn(text="Going on."))
    again = machine.ask(TASK, wait=True)
    assert again.process.returncode == 0, again.stderr()
    request = scene.model.requests[1]
    assert len(notices(request)) == 1
    assert sum(TASK in text for text in texts_in(request)) == 1
    check_exact(scene, machine)


@deep
def test_a_crash_loop_ends_with_80(scene: Scene) -> None:
    """RECOVERY.md: five crashes in the window, then no agent is started any more, and a line says what to look at."""
    machine = scene.machine("vm-1")
    for _ in range(5):
        machine.ask(TASK, WAL_AGENT_FAILPOINT="run.after_lease").died()
    before = scene.records()
    halted = machine.ask(TASK, wait=True)
    assert halted.process.returncode == 80, halted.stderr()
    assert "5 crashes in 10 minutes" in halted.stderr()
    assert "a person is needed" in halted.stderr()
    assert "wal-agent log --job job" in halted.stderr()
    assert scene.model.requests == []
    check_log(scene, before)
    status = machine.status()
    assert status["state"] == "released"
    assert len(status["crashes"]) == 5
    shown = machine.cli("log", "--crashes")
    assert (shown.stdout + shown.stderr).count("epoch") == 6


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_a_newer_notice_replaces_one_that_was_not_answered(scene: Scene) -> None:
    """I8: the second recovery says in its first line that it replaces the first, and tells the call again."""
    machine = scene.machine("vm-1")
    scene.script(Turn(calls=[shell(long_call("first"), scene.agent)]))
    killed_in(scene, machine, "first")

    seen = len(scene.model.requests)
    scene.script(Turn(text="never said"))
    scene.hold_turn(0)
    run = machine.ask(TASK)
    scene.asked(seen + 1)
    (unread,) = notices(scene.model.requests[seen])
    assert REPLACES not in unread

    def saved() -> bool:
        file = scene.replay().state.files.get(AGENTS["gemini"].main_file)
        data = machine.session_file().read_bytes()
        return file is not None and file.sha256 == hashlib.sha256(data).hexdigest() and b"wal-agent recovery" in data

    until(saved, "the notice is saved")
    run.kill()
    run.died()

    seen = len(scene.model.requests)
    scene.script(Turn(text="I looked. I stop here."))
    again = machine.ask(TASK, wait=True)
    assert again.process.returncode == 0, again.stderr()
    told = notices(scene.model.requests[seen])
    assert REPLACES in told[-1].splitlines()[0]
    assert "echo first-begun" in told[-1]
    assert scene.side() == ["first-begun"], "nothing ran twice"

"""Decision 052 on real CLIs: a model that makes the call in flight again without looking is refused, once it has looked
it is not."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.e2e.scene import Machine, Scene, until
from tests.tiers import KINDS, deep, once
from wal_agent.rehearsal.model import Call, HistoryText, Returned, Turn
from wal_agent.supervise.gate import PATIENCE, STUBBORN
from wal_agent.wording.messages import REFUSED

CHARGE = "#!/bin/sh\necho charged >> side\n[ -e calm ] || exec sleep 1000\n"


def write_charge(scene: Scene) -> None:
    program = scene.workspace / "charge"
    program.write_text(CHARGE)
    program.chmod(0o755)


def cut_off_in_charge(scene: Scene, machine: Machine) -> None:
    """Leave a job whose machine died in the middle of `./charge 49.90`, after the charge."""
    write_charge(scene)
    scene.script(Turn(calls=[machine.rehearsal.shell("./charge 49.90")]))
    run = machine.run(*machine.rehearsal.args("charge the customer"))
    until(lambda: scene.side() == ["charged"], "the charge has happened")
    run.kill()
    run.died()
    machine.end()


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_a_call_in_flight_does_not_run_again_before_anything_has_looked(scene: Scene) -> None:
    """I1, I8: whether it happened is not known, so nothing is changed, in whatever words; the same call runs once the
    agent has looked."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    cut_off_in_charge(scene, machine)

    (scene.workspace / "calm").touch()
    scene.script(
        Turn(calls=[shell("./charge 49.90")]),
        Turn(calls=[shell("cd . && timeout 60 sh -c './charge \"49.90\"'; echo $?")]),
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


@pytest.mark.parametrize("scene", ["pi"], indirect=True)
def test_a_check_that_says_that_it_happened_resolves_the_call(scene: Scene) -> None:
    """I8, decision 063: a real model ran the check, read that it had happened, and charged again. Behind `cd` to the
    workspace it is the same check."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    paid = scene.workspace / "paid"
    paid.write_text("#!/bin/sh\nsed 's/^/49.90 /' side\n")
    paid.chmod(0o755)
    rule = 'match = "./charge"\nclass = "mutation"\nverify = "./paid"\ndone_if = "* charged"\n'
    (scene.workspace / "wal-agent.toml").write_text(f"[[rules]]\n{rule}")
    cut_off_in_charge(scene, machine)

    (scene.workspace / "calm").touch()
    charge = Turn(calls=[shell("timeout 9 ./charge 49.90")])
    check = shell(f"cd {shlex.quote(str(scene.workspace))} && ./paid")
    scene.script(Turn(calls=[check]), charge, Turn(calls=[shell("ls")]), charge, Turn("All is done."))
    asked = len(scene.model.requests)
    again = machine.run(*machine.rehearsal.args("charge the customer"), wait=True)
    assert again.process.returncode == 0, again.stderr()
    told = [part.text for part in scene.model.history(asked + 4) if isinstance(part, Returned)]
    assert scene.side() == ["charged"] and sum("call #1" in text and "49.90 charged" in text for text in told) == 2
    (end,) = [r for r in scene.records() if r["type"] == "end" and r["call"] == 1]
    assert (end["how"], end["finding"]) == ("verified", "completed") and "wal-agent.toml" in end["why"]
    assert machine.status()["state"] == "closed"


@pytest.mark.parametrize("scene", once(KINDS, "claude"), indirect=True)
def test_a_call_that_was_done_before_the_cut_is_refused_once_with_its_result(scene: Scene) -> None:
    """I1: the machine was lost while the model thought about what the call had printed."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    write_charge(scene)
    (scene.workspace / "calm").touch()
    scene.script(Turn(calls=[shell("./charge 49.90; echo receipt 17")]), Turn("Charged."))
    hold = scene.hold_turn(1)
    run = machine.run(*machine.rehearsal.args("charge the customer"))
    until(lambda: any(r["type"] == "end" for r in scene.records()), "the charge is done, and the model thinks")
    run.kill()
    run.died()
    machine.end()
    hold.set()

    again = Turn(calls=[shell("./charge 49.90")])
    scene.script(again, Turn(calls=[shell("cat side")]), Turn("All is done."))
    asked = len(scene.model.requests)
    second = machine.run(*machine.rehearsal.args("charge the customer"), wait=True)
    assert second.process.returncode == 0, second.stderr()
    told = [part.text for part in scene.model.history(asked + 1) if isinstance(part, Returned)][-1]
    assert "call #1" in told and "receipt 17" in told and scene.side() == ["charged"]


INSIDE = "do the inside part"
BRIEF = {"description": "charge", "prompt": INSIDE}
SUBAGENTS: dict[str, tuple[str, dict[str, object]]] = {
    "claude": ("Agent", {**BRIEF, "subagent_type": "general-purpose", "run_in_background": False}),
    "copilot": ("task", {**BRIEF, "name": "sub", "agent_type": "task", "mode": "sync"}),
    "opencode": ("task", {**BRIEF, "subagent_type": "general"}),
    "gemini": ("invoke_agent", {"agent_name": "generalist", "prompt": INSIDE}),
    "qwen": ("agent", {**BRIEF, "subagent_type": "general-purpose", "run_in_background": False}),
}
OWN = ("codex", "gemini", "pi", "qwen")  # log such a call as one of the session itself
CODE_MODE = {"codex": ("-m", "gpt-6-sol"), "pi": ("--tools", "+codemode")}  # whose calls are made by a script


def in_script(agent: str, *commands: str) -> Call:
    """One call of the agent's code mode, that makes these."""
    if agent == "pi":
        return "codemode", {"code": " ".join(f"await tools.bash({json.dumps({'command': c})});" for c in commands)}
    made = (
        f"text(JSON.stringify(await tools.exec_command({{cmd: {json.dumps(c)}, yield_time_ms: 30000}})));"
        for c in commands
    )
    return "exec", {"input": " ".join(made)}


@pytest.mark.parametrize("scene", once([*SUBAGENTS, *CODE_MODE], "codex"), indirect=True)
def test_what_a_subagent_had_completed_is_told_and_refused_once(scene: Scene) -> None:
    """I1, I8: its charge is an effect of the call that was in flight, and no conversation has it; what a
    script of code mode had done is the same."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    write_charge(scene)
    (scene.workspace / "calm").touch()
    charge, on = "./charge 49.90; echo receipt 17", "echo begun >> begun; sleep 1000"
    args, again = (*machine.rehearsal.args("charge the customer"),), shell(charge)
    if scene.agent in CODE_MODE:
        args, again = (*args, *CODE_MODE[scene.agent]), in_script(scene.agent, charge)
        scene.script(Turn(calls=[in_script(scene.agent, charge, on)]))
    else:
        scene.script(Turn(calls=[SUBAGENTS[scene.agent]]), Turn(calls=[shell(charge)]), Turn(calls=[shell(on)]))
    run = machine.run(*args)
    until(lambda: scene.side("begun") == ["begun"], "the subagent has charged, and is in its next call")
    run.kill()
    run.died()
    machine.end()
    scene.script(Turn(calls=[again]), Turn(calls=[shell("cat side")]), Turn("All is done."))
    asked = len(scene.model.requests)
    second = machine.run(*args, wait=True)
    assert second.process.returncode == 0, second.stderr()
    heard = scene.model.history(asked + 1)
    (told,) = [p.text for p in heard if isinstance(p, HistoryText) and "UTC" in p.text and "[wal-agent rec" in p.text]
    *before, refused = [part.text for part in heard if isinstance(part, Returned)]
    if scene.agent in OWN:  # its result can be put back
        assert any("receipt 17" in text for text in before)
    else:
        (line,) = [line for line in told.splitlines() if "./charge 49.90" in line]
        assert line.endswith(": done")
    assert REFUSED in refused and "receipt 17" in refused and scene.side() == ["charged"]


@pytest.mark.parametrize(
    ("scene", "times"),
    [("claude", STUBBORN), pytest.param("gemini", PATIENCE, marks=deep), pytest.param("pi", PATIENCE, marks=deep)],
    indirect=["scene"],
)
def test_a_model_that_only_repeats_a_call_in_flight_ends_the_run(scene: Scene, times: int) -> None:
    """I8: the run ends with 79 and a command for a person, and stays ended. No hook can end Claude Code's turn;
    those of Gemini and pi end before."""
    machine = scene.machine("vm-1")
    cut_off_in_charge(scene, machine)
    (scene.workspace / "calm").touch()
    scene.script(*[Turn(calls=[machine.rehearsal.shell("./charge 49.90")])] * (3 * STUBBORN))
    asked = len(scene.model.requests)
    again = machine.run(*machine.rehearsal.args("charge the customer"), options=("--restart",), wait=True)
    said = again.stderr()
    assert again.process.returncode == 79, said
    assert said.count(f"{times} times without checking anything") == said.count("wal-agent ack 1 --job") == 1
    assert len(scene.model.requests) - asked < 2 * times and scene.side() == ["charged"]
    assert machine.status()["state"] == "released" and [o.intent.call for o in scene.replay().state.open] == [1]


@pytest.mark.parametrize("scene", ["pi"], indirect=True)
def test_a_model_that_makes_one_call_for_ever_ends_a_run_without_a_person(scene: Scene) -> None:
    """A real model ran `echo 'stop here'` for ten minutes."""
    machine = scene.machine("vm-1")
    scene.script(*[Turn(calls=[machine.rehearsal.shell("echo 'stop here'")])] * 40)
    run = machine.run(*machine.rehearsal.args("go"), options=("--loop-limit", "2"), wait=True)
    assert run.process.returncode == 79, run.stderr()
    assert "stop here" in run.stderr() and machine.status()["state"] == "released"
    told = [part.text for part in scene.model.history(len(scene.model.requests) - 1) if isinstance(part, Returned)]
    assert sum("times in a row" in text for text in told) == 1

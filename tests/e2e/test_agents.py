"""Whole runs of several agents: doctor's proofs, hooks that do not answer, a drain, and a machine that is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.scene import Scene, agent_scene, check_exact, check_log, until
from tests.e2e.terminal import Terminal
from tests.tiers import KINDS, SAME_CODE, once
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.model import Call, Called, HistoryText, Part, Returned, Turn

HOOKED = [name for name, agent in AGENTS.items() if rehearsal_of(agent) is not None]
OWN_CODE = [name for name in HOOKED if name not in SAME_CODE]
TASK = "please do the work"
NOTICE = "[wal-agent recovery] "
# Of three kinds of module one: hooks around its file, a file that lags, nested calls. The demo of every agent loses
# three machines in a row, and is a test too (test_demo.py).
LOST = ["gemini", "claude", "codex"]
DRAINED = ["claude", "codex"]


@pytest.fixture(params=once(HOOKED, "codex"))
def scene(request: pytest.FixtureRequest, tmp_path: Path, agent_cli: Callable[[str], Path]) -> Iterator[Scene]:
    with agent_scene(tmp_path, agent_cli, request.param) as made:
        yield made


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_doctor_proves_that_an_allow_runs_and_a_deny_does_not(scene: Scene) -> None:
    done = scene.machine("vm-1").cli("doctor", scene.agent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a denied tool call does not run" in done.stdout + done.stderr


ALLOWED: Mapping[str, Sequence[str]] = {
    "claude": ("--allowedTools=Bash(./paid:*)", "--print"),
    "copilot": ("--allow-tool=shell(./paid)", "--prompt"),
    "gemini": ("-m", "gemini-2.5-pro", "--allowed-tools=run_shell_command(./paid)", "--prompt"),
    "opencode": ("run",),
    "qwen": ("--allowed-tools=run_shell_command(./paid)", "--prompt"),
}


@pytest.mark.parametrize("scene", once(ALLOWED, "claude", "gemini"), indirect=True)
def test_a_list_of_allowed_commands_passes_a_check_behind_cd_as_the_capability_says(scene: Scene) -> None:
    """Decision 064: where it does not, no check is named so. Without a person nothing else may run."""
    machine, paid = scene.machine("vm-1"), scene.workspace / "paid"
    paid.write_text("#!/bin/sh\necho paid >> side\n")
    paid.chmod(0o755)
    behind = f"cd {scene.workspace} && ./paid 3"
    scene.script(*[Turn(calls=[machine.rehearsal.shell(command)]) for command in ("./paid 3", behind)], Turn("done"))
    rules = json.dumps({"bash": {"*": "deny", "./paid *": "allow"}})
    machine.run(*ALLOWED[scene.agent], TASK, wait=True, OPENCODE_PERMISSION=rules)
    assert len(scene.side()) == 1 + AGENTS[scene.agent].capabilities.passes_cd


@pytest.mark.parametrize(
    "scene", once((name for name in OWN_CODE if name not in ("opencode", "kimi")), "codex"), indirect=True
)
def test_no_arguments_without_a_terminal(scene: Scene) -> None:
    """I6: the exit code is the agent's own for no arguments and an empty stdin. (OpenCode and Kilo wait for
    a terminal for ever, and Kimi shows its screen all the same and begins no session.)"""
    machine = scene.machine("vm-1")
    scene.script(Turn("bye"))
    run = machine.run(wait=True)
    bare = subprocess.run(
        [scene.program],
        cwd=scene.workspace,
        env=machine.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.process.returncode == bare.returncode, run.stderr() + bare.stderr


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_no_arguments_on_a_terminal(scene: Scene) -> None:
    """`wal-agent run AGENT` starts the agent's own screen; what ends it is the person's Ctrl-C."""
    machine = scene.machine("vm-1")
    terminal = Terminal(machine, [])
    try:
        until(lambda: [r for r in scene.records() if r["type"] == "agent_started"], "the agent is started")
        for _ in range(60):
            terminal.press("C-c", "C-c")  # some want two within half a second
            if terminal.ended(within=1):
                break
        assert not 64 <= terminal.code() <= 80, terminal.screen()
    finally:
        terminal.close()


TODOS = ({"content": "dig", "status": "completed"}, {"content": "fill", "status": "pending"})
# How each one's plan tool is switched on where it is off, and what calls of it state. Copilot and pi have none.
PLANS: Mapping[str, tuple[tuple[str, ...], Sequence[Call]]] = {
    "claude": (
        (),
        (
            ("ToolSearch", {"query": "select:TaskCreate,TaskUpdate", "max_results": 2}),
            ("TaskCreate", {"subject": "dig", "description": "dig"}),
            ("TaskCreate", {"subject": "fill", "description": "fill"}),
            ("TaskUpdate", {"taskId": "1", "status": "completed"}),
        ),
    ),
    "codex": (
        ("-c", "tools.update_plan.enabled=true"),
        (("update_plan", {"plan": [{"step": row["content"], "status": row["status"]} for row in TODOS]}),),
    ),
    "gemini": (
        (),
        (("write_todos", {"todos": [{"description": row["content"], "status": row["status"]} for row in TODOS]}),),
    ),
    "opencode": ((), (("todowrite", {"todos": [{**row, "priority": "low"} for row in TODOS]}),)),
    "qwen": ((), (("todo_write", {"todos": [{**row, "id": row["content"]} for row in TODOS]}),)),
}
UNPLANNED = ("claude", "codex", "qwen")  # have no plan tool as they come, with this model


@pytest.mark.parametrize("scene", once(sorted(PLANS), "codex"), indirect=True)
def test_the_plan_of_the_agents_own_tool_is_in_its_checkpoint(scene: Scene) -> None:
    machine = scene.machine("vm-1")
    options, calls = PLANS[scene.agent]
    scene.script(Turn("All is done."))
    machine.run(*machine.rehearsal.args("hello"), wait=True)
    declared = json.dumps(scene.model.requests[-1]["tools"])
    off = not any(tool in declared for tool, _ in calls if tool != "ToolSearch")
    assert off == (scene.agent in UNPLANNED), "docs/CHECKPOINTS.md says which plan tools are there"
    if scene.agent == "qwen":
        settings = machine.home / ".qwen/settings.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "tools": {"todoWrite": {"enabled": True}}}))
    scene.script(*(Turn(calls=[call]) for call in calls), Turn("All is done."))
    run = machine.run(*options, *machine.rehearsal.args(TASK), wait=True, CLAUDE_CODE_ENABLE_TODO_TOOLS="1")
    assert run.process.returncode == 0, run.stderr()
    shown = machine.cli("checkpoint", "show", "--at", str(scene.records()[-1]["record"]), "--json")
    context = json.loads(shown.stdout)["context"]
    assert (context["plan"], context["completed_steps"]) == (["dig", "fill"], ["dig"]), scene.model.history()


BEHIND = """\
#!{python}
# Starts the agent without what was injected for this run: no argument, variable or folder of ours.
import os, sys
args = sys.argv[1:]
ours = os.environ.get("WAL_AGENT_RUN", " no run ")
kept = []
for word in args:
    if ours in word:
        if kept and kept[-1].startswith("-") and not word.startswith("-"):
            kept.pop()
        continue
    kept.append(word)
theirs = ("OPENCODE", "KILO", "CLAUDE", "COPILOT", "PI")
for name in [n for n, v in os.environ.items() if ours in v and n.startswith(theirs)]:
    del os.environ[name]
os.execv({program!r}, [{program!r}, *kept, *{more!r}])
"""
SHUT_OUT = {"gemini": ["-e", "none"], "qwen": ["-e", "none"]}


# Kimi's hooks have no switch. Were they silent all the same, its session would be unknown until its end.
@pytest.mark.parametrize("scene", once((name for name in OWN_CODE if name != "kimi"), "codex"), indirect=True)
def test_hooks_that_do_not_answer(scene: Scene) -> None:
    """I5: nobody could see that these hooks are off. The run ends before the model has answered: no tool has run."""
    machine = scene.machine("vm-1")
    scene.script(Turn(calls=[machine.rehearsal.shell("echo one >> side")]), Turn("bye"))
    hold = scene.hold_turn(0)
    behind = scene.root / scene.agent
    words = {"python": sys.executable, "program": str(scene.program), "more": SHUT_OUT.get(scene.agent, [])}
    behind.write_text(BEHIND.format(**words))
    behind.chmod(0o755)
    machine.program = behind
    run = machine.run(*machine.rehearsal.args(TASK))
    if scene.agent == "pi":  # it is given a flag that only our extension knows
        assert (run.wait(), "Unknown option: --wal-agent" in run.stderr()) == (1, True), run.stderr()
    else:
        assert (run.wait(), "hooks did not answer" in run.stderr()) == (78, True), run.stderr()
    hold.set()
    assert scene.side() == []
    assert not [r for r in scene.records() if r["type"] == "intent"]


OFF: dict[str, tuple[str, str, list[str]]] = {  # a file of the project with its text, and words behind the agent's own
    "gemini": (".gemini/settings.json", '{"hooksConfig": {"enabled": false}}', []),
    "claude": ("", "", ["--bare"]),
    "codex": ("", "", ["--disable", "hooks"]),
    "copilot": (".github/copilot/settings.json", '{"disableAllHooks": true}', []),
    "kimi": ("", "", ["acp"]),  # only the user's own settings have them; here its orders come from elsewhere
    "pi": ("", "", ["--mode", "rpc"]),  # its hooks cannot be switched off; here its orders come from elsewhere
    "opencode": ("", "", ["--pure"]),
    "kilo": ("", "", ["--pure"]),
    "qwen": (".qwen/settings.json", '{"disableAllHooks": true}', []),
}


def test_hooks_that_are_switched_off(scene: Scene) -> None:
    """I5, I7: by the project or by a flag. Refused in one line before anything is started or written."""
    name, text, words = OFF[scene.agent]
    if name:
        file = scene.workspace / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    machine = scene.machine("vm-1")
    run = machine.run(*machine.rehearsal.args(TASK), *words, wait=True)
    assert run.process.returncode == 78, run.stderr()
    assert "Nothing was run." in run.stderr() and len(run.stderr().splitlines()) == 1
    assert scene.model.requests == []
    assert machine.status()["state"] == "none"
    assert not name or (scene.workspace / name).read_text() == text


@pytest.mark.parametrize("scene", once(LOST, "codex"), indirect=True)
def test_a_lost_machine(scene: Scene) -> None:
    """I1-I4, I8: killed in a command; on another machine, in the same folder, the agent is told and verifies."""
    one = scene.machine("vm-1")
    shell, args = one.rehearsal.shell, one.rehearsal.args(TASK)
    scene.script(Turn("First.", [shell("echo early >> side")]), Turn("Then.", [shell("echo late >> side; sleep 60")]))
    run = one.run(*args)
    until(lambda: scene.side() == ["early", "late"], "the second command runs")
    until(lambda: scene.replay().state.files, "the session is saved")
    before = scene.records()
    run.kill(signal.SIGKILL)
    one.end()

    scene.model.requests.clear()
    scene.script(Turn("I look.", [shell("cat side")]), Turn("It was done."))
    two = scene.machine("vm-2")
    assert two.run(*args, options=["--wait"], wait=True).process.returncode == 0, two.runs[0].stderr()
    heard = scene.model.history(0)
    assert scene.side() == ["early", "late"]
    assert prompts(heard) == 1
    told = next(part.text for part in heard if isinstance(part, HistoryText) and NOTICE in part.text)
    assert "echo late >> side; sleep 60" in told and "One tool call was in flight" in told
    assert result_of(heard, "echo late").startswith("outcome unknown") or "outcome unknown" in result_of(
        heard, "echo late"
    )
    assert "outcome unknown" not in result_of(heard, "echo early")
    assert "late" in result_of(scene.model.history(1), "cat side")
    check_log(scene, before)
    check_exact(scene, two)


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_a_lost_disk_and_a_completed_call_whose_files_did_not_travel(scene: Scene) -> None:
    """The agent's own session file has the call's result, and its file is not on the new machine."""
    rule = scene.root / "no-captures"
    slow = scene.root / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\n[ -e '{rule}' ] && exec sleep 600\nexec {shutil.which('git')} \"$@\"\n")
    slow.chmod(0o755)
    one = scene.machine("vm-1")
    shell, args = one.rehearsal.shell, one.rehearsal.args(TASK)
    scene.script(Turn("First.", [shell("echo 1 > one")]), Turn("Then.", [shell("echo 2 > two")]), Turn("never said"))
    second, third = scene.hold_turn(1), scene.hold_turn(2)
    run = one.run(*args, PATH=f"{slow.parent}:{os.environ['PATH']}")
    until(lambda: (tree := scene.replay().state.workspace) is not None and tree.holds >= 1, "the tree with call 1")
    rule.touch()
    second.set()
    until(lambda: [e.intent.call for e in scene.replay().state.unheld] == [2], "call 2 ended")
    until(lambda: scene.replay().state.unsettled == (), "the session that has its result is saved")
    assert one.status()["files"]["behind"] == [2]
    run.kill(signal.SIGKILL)
    one.lost()
    shutil.rmtree(scene.workspace)
    third.set()
    rule.unlink()

    scene.model.requests.clear()
    scene.script(Turn("It is done."))
    new = scene.root / "new" / "work"
    new.mkdir(parents=True)
    two = scene.machine("vm-2", workspace=new)
    again = two.run(*args, options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert ((new / "one").exists(), (new / "two").exists()) == (True, False)
    heard = scene.model.history(0)
    notice = next(part.text for part in heard if isinstance(part, HistoryText) and NOTICE in part.text)
    assert "Their changes to files may not be in this workspace" in notice
    assert "- #2 `Bash` `echo 2 > two`" in notice
    assert "#1 " not in notice
    assert "lost" in again.stderr()


@pytest.mark.parametrize("scene", once(DRAINED, "codex"), indirect=True)
def test_a_drain_and_another_machine(scene: Scene) -> None:
    """SIGTERM while the model thinks: saved and given up (143); the next one goes on, and nothing was in flight."""
    one = scene.machine("vm-1")
    shell, args = one.rehearsal.shell, one.rehearsal.args(TASK)
    scene.script(Turn("First.", [shell("echo early >> side")]), Turn("never"))
    hold = scene.hold_turn(1)
    run = one.run(*args)
    scene.asked(2)
    run.kill(signal.SIGTERM)
    assert run.wait() == 143, run.stderr()
    hold.set()
    assert one.status()["state"] == "released"
    one.end()

    scene.model.requests.clear()
    scene.script(Turn("It is done."))
    two = scene.machine("vm-2")
    assert two.run(*args, options=["--wait"], wait=True).process.returncode == 0, two.runs[0].stderr()
    heard = scene.model.history(0)
    assert prompts(heard) == 1
    assert "outcome unknown" not in result_of(heard, "echo early")
    assert two.status()["state"] == "closed"


def prompts(heard: list[Part]) -> int:
    return sum(part.text.count(NOTICE) for part in heard if isinstance(part, HistoryText) and part.role == "user")


def result_of(heard: list[Part], words: str) -> str:
    """The result of the one call whose input has these words."""
    ids = [part.id for part in heard if isinstance(part, Called) and words in " ".join(map(str, part.input.values()))]
    assert len(ids) == 1, f"{words}: told {len(ids)} times"
    return "\n".join(part.text for part in heard if isinstance(part, Returned) and part.id == ids[0])

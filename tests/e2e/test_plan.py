"""On the real CLIs: an agent states its plan with its own tool, and dies; what it was at is remembered rightly."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scene import Machine, Scene, until
from tests.tiers import deep
from tests.unit.recovery.test_prompt_tokens import tokenizer
from wal_agent.agents import AGENTS
from wal_agent.recovery.prompt import MAX_TOKENS
from wal_agent.rehearsal.model import Call, HistoryText, Turn

NOTICE = "[wal-agent recovery]"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the agent types `wal-agent`
STATED = "wal-agent checkpoint --plan -"
TOOLS = {  # each agent's plan tool; pi has none
    "claude": "TaskCreate",
    "codex": "update_plan",
    "copilot": "sql",
    "gemini": "write_todos",
    "kimi": "TodoList",
    "opencode": "todowrite",
    "pi": "",
    "qwen": "todo_write",
}
LAST = "echo one >> side; touch started; sleep 600"
TWICE = "Run the tests of the shop"  # two steps have these words, of which the first is done
SIZES = {"claude": 30, "pi": 100}  # a call for each step; all in one command, of which 16 KiB are read
PLANS = [("codex", 20), *(pytest.param(agent, SIZES.get(agent, 500), marks=deep) for agent in TOOLS)]


def words(size: int, done: int) -> list[str]:
    steps = [f"Move part {n} of the orders over to the new shop, and check it" for n in range(size)]
    steps[3] = steps[done + 1] = TWICE
    return steps


def plan_turns(machine: Machine, steps: Sequence[str], done: int) -> list[Turn]:
    """The model's answers that state the plan, with the first `done` of the steps done."""

    def rows(text: str, ended: str, begun: str = "pending", **more: str) -> list[dict[str, str]]:
        return [{text: step, "status": ended if n < done else begun, **more} for n, step in enumerate(steps)]

    match machine.agent:
        case "claude":
            made: list[Call] = [("TaskCreate", {"subject": step, "description": step}) for step in steps]
            ended: list[Call] = [("TaskUpdate", {"taskId": str(n + 1), "status": "completed"}) for n in range(done)]
            wanted = {"query": "select:TaskCreate,TaskUpdate"}  # its request only names them
            return [Turn(calls=[("ToolSearch", wanted)]), Turn(calls=made), Turn(calls=ended)]
        case "codex":
            return [Turn(calls=[("update_plan", {"plan": rows("step", "completed")})])]
        case "gemini":
            return [Turn(calls=[("write_todos", {"todos": rows("description", "completed")})])]
        case "kimi":
            return [Turn(calls=[("TodoList", {"todos": rows("title", "done")})]), Turn(calls=[("TodoList", {})])]
        case "opencode":
            return [Turn(calls=[("todowrite", {"todos": rows("content", "completed", priority="high")})])]
        case "qwen":
            todos = [{**row, "id": str(n)} for n, row in enumerate(rows("content", "completed"))]
            return [Turn(calls=[("todo_write", {"todos": todos})])]
        case "copilot":
            values = ", ".join(f"('step-{n}', '{step}')" for n, step in enumerate(steps))
            names = ", ".join(f"'step-{n}'" for n in range(done))
            queries = (
                f"INSERT INTO todos (id, title) VALUES {values}",
                f"UPDATE todos SET status = 'done', updated_at = CURRENT_TIMESTAMP WHERE id IN ({names})",
            )
            return [Turn(calls=[("sql", {"description": "Plan", "query": query})]) for query in queries]
    lines = "\\n".join(f"[{'x' if n < done else ' '}] {step}" for n, step in enumerate(steps))
    return [Turn(calls=[machine.rehearsal.shell(f"printf '{lines}\\n' | {STATED}")])]


def switch_on(machine: Machine) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and variables with which the agent has its plan tool."""
    env = {"PATH": PATH}
    match machine.agent:
        case "claude":
            return (), {**env, "CLAUDE_CODE_ENABLE_TODO_TOOLS": "1"}
        case "codex":
            (machine.home / ".profile").write_text(f"PATH='{PATH}'\n")  # its shell is a login shell
            return ("-c", "tools.update_plan.enabled=true"), env
        case "qwen":
            path = machine.home / ".qwen/settings.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "tools": {"todoWrite": {"enabled": True}}}))
    return (), env


def texts_in(scene: Scene, n: int) -> list[str]:
    parts = scene.model.history(n)
    return [part.text for part in parts if isinstance(part, HistoryText) and part.role != "system"]


def answer(machine: Machine, *command: str) -> Any:
    done = machine.cli(*command, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("scene", "size"), PLANS, indirect=["scene"])
def test_a_killed_agent_is_told_what_of_its_plan_is_next(scene: Scene, size: int) -> None:
    """I9: of any length, with two steps of the same words, in a prompt of at most 4,000 tokens. The checkpoint says
    what was noted, read and written, and how far the messages were read. Nothing that only tells wal-agent something
    is an effect, and what the agent repeats is counted."""
    machine, done = scene.machine("vm-1"), size * 7 // 10
    shell, steps = machine.rehearsal.shell, words(size, done)
    args, env = switch_on(machine)
    stating = plan_turns(machine, steps, done)
    made = shell("echo made >> made.txt")
    scene.script(
        *stating,
        Turn(calls=[made]),
        Turn(calls=[shell("grep -c hello README.md")]),
        Turn(calls=[shell("wal-agent checkpoint --note 'The orders are moved.'")]),
        Turn(calls=[shell(LAST)]),
    )
    held = scene.hold_turn(len(stating))
    run = machine.run(*args, *machine.rehearsal.args("move the shop to v2"), wait=False, **env)
    scene.asked(len(stating) + 1)
    asked = json.dumps(scene.model.requests[0])
    assert STATED in asked, "the standing protocol names it"
    assert not TOOLS[scene.agent] or TOOLS[scene.agent] in asked, "the real program offers its plan tool"
    assert machine.cli("send", "--id", "m1", "--from", "ann", "use the heron branch").returncode == 0
    until(lambda: machine.status()["messages"] == 1, "the run has found the message")
    speaks = "tool_ended" in AGENTS[scene.agent].capabilities.speaks
    held.set()
    until(lambda: (scene.workspace / "started").exists(), "the last call runs")
    run.kill()
    run.died()
    machine.end()

    kept = answer(machine, "checkpoint", "show")
    context = kept["context"]
    assert (context["steps"], context["steps_done"], context["draft"]) == (size, done, "The orders are moved.")
    assert kept["active_task"]["title"] == "move the shop to v2"
    assert "grep -c hello README.md: 1" in context["gathered"] and "made.txt" in kept["workspace"]["modified"]
    assert (kept["messages"]["last_acked_seq"], kept["messages"]["pending"]) == (0, speaks), "its turn is not over"

    before = len(scene.model.requests)
    scene.script(Turn(calls=[made]), Turn(calls=[made]), Turn("All is done."))  # asked back once
    again = machine.run(*args, *machine.rehearsal.args("move the shop to v2"), wait=True, **env)
    assert again.process.returncode == 0, again.stderr()
    ours = [text for text in texts_in(scene, before) if "[wal-agent " in text]
    notice = next(text[text.index(NOTICE) :] for text in ours if NOTICE in text and "Plan: " in text)
    shown = [line.removeprefix("- ").strip("` ") for line in notice.splitlines()]
    at = shown.index(f"Plan: {done} of {size} steps are done.")
    assert shown[at + 1 : at + 7] == [f"[x] {steps[done - 1]}", *(f"[ ] {step}" for step in steps[done:][:5])]
    assert shown[at + 7].startswith(f"and {size - done - 5} more open step")
    assert "Note: The orders are moved." in shown
    assert len(tokenizer().encode(notice, disallowed_special=())) <= MAX_TOKENS

    record = scene.records()[-1]["record"]
    (given,) = (r["record"] for r in scene.records() if r["type"] == "message")
    later = answer(machine, "checkpoint", "show", "--at", str(record))
    assert (later["messages"]["last_acked_seq"], later["messages"]["pending"]) == (given, 0)
    effects = {effect["text"] for effect in answer(machine, "effects")["effects"]}
    assert effects == {"echo made >> made.txt", LAST}, "no plan, no checkpoint"
    if scene.agent == "codex":  # others may end their turn when they are asked back
        assert answer(machine, "stats")["total"]["repeated"] == {"completed": 1}

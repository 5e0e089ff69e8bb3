"""I8 on the real CLIs: what an agent stopped at a time limit, left running, or was stopped in, is not over, whatever it
says of it; and what a person refused never began."""

from __future__ import annotations

import json
import os
import random
import signal
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.scene import PATIENCE, Machine, Scene, until
from tests.e2e.terminal import Terminal
from tests.servers.metadata import PREEMPTED, metadata
from tests.tiers import KINDS, deep, once
from wal_agent.agents.base import ACT_BEGINS
from wal_agent.recovery.report import name_calls
from wal_agent.rehearsal.model import Call, HistoryText, Turn
from wal_agent.supervise.gate import HOLD
from wal_agent.wording import messages

CHARGE = "echo charged >> side; sleep 600; echo over >> side"
BEHIND = "(echo paid >> side; sleep 600) > /dev/null 2>&1 & until grep -qs paid side; do sleep 0.1; done"
LIMITS: dict[str, dict[str, object]] = {
    "gemini": {},  # its limit is a setting
    "opencode": {"timeout": 3000},
    "pi": {"timeout": 3},
    "qwen": {"timeout": 3000},
}


def _limited(machine: Machine, command: str) -> Call:
    tool, input = machine.rehearsal.shell(command)
    return tool, {**input, **LIMITS[machine.agent]}


@pytest.mark.parametrize("scene", once(LIMITS, "pi"), indirect=True)
def test_what_a_limit_stopped_and_what_runs_on_stay_open(scene: Scene) -> None:
    """Each of them was "done" or "failed", and the next start said that no tool call was in flight."""
    machine = scene.machine("vm")
    if scene.agent == "gemini":
        shell = {"shell": {"inactivityTimeout": 3}}
        settings = json.loads(machine.settings.read_text())
        machine.settings.write_text(json.dumps({**settings, "tools": {**settings.get("tools", {}), **shell}}))
    left = Turn(calls=[machine.rehearsal.shell(BEHIND)])
    scene.script(Turn(calls=[_limited(machine, CHARGE)]), left, Turn(text="Done."))
    last = scene.hold_turn(2)
    run = machine.run(*machine.rehearsal.args("please do the work"))
    scene.asked(3)
    records = until(lambda: _with(scene, "runs_on"), "the second call runs on")
    last.set()
    run.wait()
    assert [(r["type"], r["call"]) for r in records if r["type"] in ("end", "cut", "runs_on")] == [
        ("cut", 1),
        ("runs_on", 2),
    ]
    assert next(r for r in records if r["type"] == "runs_on")["pids"]
    assert [o.intent.call for o in scene.replay().state.open] == [1, 2]
    scene.script(Turn(text="I have read it."))
    again = machine.run(*machine.rehearsal.args("please go on"), options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    [verdicts] = [r["verdicts"] for r in scene.records() if r["type"] == "recovery"]
    assert [(v["call"], v["finding"]) for v in verdicts] == [(1, "unknown"), (2, "unknown")]
    assert scene.side() == ["charged", "paid"]


GOES_ON = "echo paid >> side; until test -e go; do sleep 0.1; done"
BACKGROUND = [
    pytest.param("gemini", GOES_ON, {"is_background": True}, id="gemini-asked", marks=deep),
    pytest.param("gemini", f"({GOES_ON}) > /dev/null 2>&1 &", {}, id="gemini-detached", marks=deep),
    pytest.param("qwen", GOES_ON, {"is_background": True}, id="qwen-asked", marks=deep),
    pytest.param("qwen", f"({GOES_ON}) > /dev/null 2>&1 &", {}, id="qwen-detached", marks=deep),
    pytest.param("claude", f"({GOES_ON}) > /dev/null 2>&1 &", {}, id="claude-detached", marks=deep),
    pytest.param("copilot", f"({GOES_ON}) > /dev/null 2>&1 &", {}, id="copilot-detached", marks=deep),
    pytest.param("copilot", GOES_ON, {"mode": "async", "shellId": "one"}, id="copilot-asked", marks=deep),
    pytest.param("copilot", GOES_ON, {"initial_wait": 1}, id="copilot-at-its-limit", marks=deep),
    pytest.param("kimi", GOES_ON, {"run_in_background": True, "description": "to pay"}, id="kimi-asked", marks=deep),
    pytest.param("kimi", f"({GOES_ON}) > /dev/null 2>&1 &", {}, id="kimi-detached", marks=deep),
    pytest.param("codex", GOES_ON, {"yield_time_ms": 300}, id="codex-at-its-limit"),
    pytest.param("claude", GOES_ON, {"timeout": 2000}, id="claude-at-its-limit"),  # there Claude itself moves it
]


@pytest.mark.parametrize(("scene", "command", "how"), BACKGROUND, indirect=["scene"])
def test_what_an_agent_leaves_running_is_open_until_it_ends(scene: Scene, command: str, how: dict[str, object]) -> None:
    """It was "done" as soon as the agent had its result, so that a machine lost behind it lost the call too."""
    machine = scene.machine("vm")
    tool, input = machine.rehearsal.shell(command)
    scene.script(Turn(calls=[(tool, {**input, **how})]), Turn(text="Done."), Turn(text="It has ended."))
    last = scene.hold_turn(1)
    run = machine.run(*machine.rehearsal.args("please do the work"))
    held = until(lambda: _with(scene, "runs_on"), "it runs on")
    assert _ends(scene) == [("intent", 1), ("runs_on", 1)] and scene.side() == ["paid"]
    assert next(r for r in held if r["type"] == "runs_on")["pids"]
    assert [o.intent.call for o in scene.replay().state.open] == [1]
    (scene.workspace / "go").touch()
    if scene.agent == "codex":  # it ends with its turn what still runs
        until(lambda: b'"CommandExecution"' in scene.conversation(), "its file says so")
    if scene.agent in ("claude", "codex", "copilot") and how:  # between two requests; `&` ends with its processes
        last.set()
    ended = until(lambda: _with(scene, "end"), "it has ended")
    assert [r["how"] for r in ended if r["type"] == "end"] == ["done"]
    last.set()
    assert run.wait() == 0, run.stderr()


FORKS = "(until test -e half; do sleep 0.1; done; setsid sh -c '{goes_on}' &) > /dev/null 2>&1 &"


@pytest.mark.parametrize(
    "scene", once(["claude", "copilot", "gemini", "kimi", "opencode", "pi", "qwen"], "gemini"), indirect=True
)
def test_what_is_left_running_may_leave_something_itself(scene: Scene) -> None:
    """The first process ends, and the second has neither its session nor a parent: the call was done."""
    machine = scene.machine("vm")
    scene.script(Turn(calls=[machine.rehearsal.shell(FORKS.format(goes_on=GOES_ON))]), Turn(text="Done."))
    last = scene.hold_turn(1)
    run = machine.run(*machine.rehearsal.args("please do the work"))
    until(lambda: _with(scene, "runs_on"), "it runs on")
    (scene.workspace / "half").touch()
    until(lambda: scene.side() == ["paid"], "the second one has begun")
    seen = time.time()
    until(lambda: scene.lease().time > seen + 2 * HOLD, "it is long enough that the first one is gone")
    assert _ends(scene) == [("intent", 1), ("runs_on", 1)]
    (scene.workspace / "go").touch()
    until(lambda: _with(scene, "end"), "it has ended")
    last.set()
    assert run.wait() == 0, run.stderr()


@pytest.mark.parametrize("scene", ["codex"], indirect=True)
def test_what_the_agent_itself_ends_in_the_background_is_not_done(scene: Scene) -> None:
    """Codex ends the process group of a command with its shell, and calls the command done."""
    machine = scene.machine("vm")
    charge = machine.rehearsal.shell("(echo paid >> side; sleep 600; echo late >> side) >/dev/null 2>&1 & sleep 1")
    scene.script(Turn(calls=[charge]), Turn(text="Done."))
    run = machine.run(*machine.rehearsal.args(TASK), wait=True)
    assert run.process.returncode == 0, run.stderr()
    assert _ends(scene) == [("intent", 1), ("cut", 1)] and scene.side() == ["paid"]


def _with(scene: Scene, kind: str) -> list[dict[str, object]]:
    found = scene.records()
    return found if any(r["type"] == kind for r in found) else []


def _charge(scene: Scene, machine: Machine, agent: str) -> tuple[Call, Path]:
    """A call that nothing proves afterwards: a script of the project, which writes to elsewhere."""
    ledger, script = scene.root / "ledger", scene.workspace / "charge.sh"
    script.write_text(f"#!/bin/sh\necho charged >> {ledger}\nsleep 600\n")
    script.chmod(0o755)
    tool, input = machine.rehearsal.shell("./charge.sh 49.90")
    escalated = {"sandbox_permissions": "require_escalated", "justification": "to pay"} if agent == "codex" else {}
    return (tool, {**input, **escalated}), ledger


def _is_paid(ledger: Path) -> bool:
    """The shell makes the file before it writes there."""
    return ledger.exists() and ledger.stat().st_size > 0


def _cut_short(scene: Scene, machine: Machine, call: int, charge: Call, ledger: Path) -> None:
    """It is open, the next start is told of it alone, and an equal call is refused until something has looked."""
    status = machine.status()
    assert (status["state"], [each["call"] for each in status["unsettled"]]) == ("released", [call])
    effects = machine.cli("effects", "--json")
    assert "charge.sh" in effects.stdout, effects.stderr
    seen = len(scene.model.requests)
    scene.script(Turn(calls=[charge]), Turn(text="I do not know."))
    again = machine.run(*machine.rehearsal.args("please go on"), options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    heard = scene.model.history(seen)
    said = [part.text for part in heard if isinstance(part, HistoryText) and part.role == "user"]
    told = [text for text in said if "[wal-agent recovery]" in text and "UTC" in text]
    assert len(told) == 1 and told[0].count("./charge.sh 49.90") == 1
    verdicts = [v for r in scene.records() if r["type"] == "recovery" for v in r["verdicts"]]
    assert [(v["call"], v["finding"]) for v in verdicts] == [(call, "unknown")]
    assert ledger.read_text().splitlines() == ["charged"]
    assert [o.intent.call for o in scene.replay().state.open] == [call]


SIGNALS = [
    pytest.param("codex", "group", signal.SIGINT, id="codex-int"),
    pytest.param("copilot", "group", signal.SIGTERM, id="copilot-term", marks=deep),
    pytest.param("qwen", "group", signal.SIGTERM, id="qwen-term", marks=deep),
    pytest.param("opencode", "group", signal.SIGHUP, id="opencode-hup", marks=deep),
    pytest.param("claude", "group", signal.SIGINT, id="claude-int", marks=deep),
    pytest.param("claude", "group", signal.SIGHUP, id="claude-hup", marks=deep),
    pytest.param("gemini", "group", signal.SIGINT, id="gemini-int", marks=deep),
    pytest.param("pi", "group", signal.SIGTERM, id="pi-term", marks=deep),
    pytest.param("kimi", "group", signal.SIGTERM, id="kimi-term", marks=deep),
    pytest.param("kimi", "group", signal.SIGINT, id="kimi-int", marks=deep),
]


@pytest.mark.parametrize(("scene", "to", "number"), SIGNALS, indirect=["scene"])
def test_a_tool_that_a_signal_stopped_stays_open(scene: Scene, to: str, number: signal.Signals) -> None:
    """Agents end their tools themselves, and call them failed, refused or complete; OpenCode says
    that its turn is over."""
    machine = scene.machine("vm")
    charge, ledger = _charge(scene, machine, "")
    scene.script(Turn(calls=[charge]), Turn(text="Done."))
    machine.enter = ("setsid",)
    run = machine.run(*machine.rehearsal.args("please do the work"), options=["--drain", "4"])
    machine.enter = ()
    until(lambda: _is_paid(ledger), "it is paid")
    os.killpg(run.pid, number)
    run.wait()
    assert [r["state"] for r in scene.records() if r["type"] == "turn"] == ["started"], "no turn was completed"
    _cut_short(scene, machine, 1, charge, ledger)


class Talk(NamedTuple):
    """The words that start an agent so that it asks a person, and what its question shows."""

    args: tuple[str, ...]
    question: str


TASK = "please do the work"
TALKS = {
    "claude": Talk(("--permission-mode", "default", TASK), "Do you want to proceed"),
    "codex": Talk(("-a", "on-request", "-s", "workspace-write", TASK), "Press enter to confirm"),
    "copilot": Talk(("--interactive", TASK), "enter to select"),
    "kimi": Talk((), "Run this command"),
    "opencode": Talk((f"--prompt={TASK}",), "Permission required"),
    "qwen": Talk(("--prompt-interactive", TASK), "Allow execution"),
}


def _asking(machine: Machine) -> None:
    """OpenCode asks about nothing by itself."""
    path = machine.home / ".config/opencode/opencode.json"
    if path.exists():
        path.write_text(json.dumps({**json.loads(path.read_text()), "permission": {"bash": "ask"}}))


def _started(machine: Machine, scene: Scene, *args: str) -> Terminal:
    """An agent at work on the task in a terminal. Kimi asks about the folder, and takes no prompt with its start."""
    term = Terminal(machine, args)
    if scene.agent == "kimi":
        term.shows("Trust this folder")
        term.press("Enter")
        term.shows(r"context: \d+%")
        _type(term, TASK, lambda: bool(scene.model.requests))
    return term


def _said(scene: Scene, request: int) -> list[str]:
    """What a person said, in a request; Kimi's own reminders stand behind it."""
    heard = [part for part in scene.model.history(request) if isinstance(part, HistoryText) and part.role == "user"]
    return [part.text for part in heard if not part.text.startswith("<system-reminder>")]


def _escape(term: Terminal, scene: Scene, kind: str) -> None:
    """Press Esc until the log has such a record: OpenCode and Copilot want two, not at once and not far apart, and a
    busy machine loses some."""
    for pause in (0.7, 0.7, 0.3) * 10:
        term.press("Escape")
        if _happens(lambda: any(r["type"] == kind for r in scene.records()), pause):
            return
    raise AssertionError(f"no {kind}: {_ends(scene)}\n{term.screen()}")


def _happens(what: Callable[[], bool], within: float) -> bool:
    try:
        until(what, "it happens", within)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("scene", once([*TALKS, "pi"], "codex"), indirect=True)
def test_a_yes_and_an_esc_in_the_tool_leave_it_open(scene: Scene) -> None:
    """Logged while the agent lives, and still open when the person has left. pi asks nobody."""
    talk, machine = TALKS.get(scene.agent), scene.machine("vm")
    charge, ledger = _charge(scene, machine, scene.agent)
    _asking(machine)
    scene.script(Turn(calls=[charge]), Turn(text="never"))
    term = _started(machine, scene, *(talk.args if talk else (TASK,)))
    try:
        if talk:
            term.shows(talk.question)
        for _ in range(20):  # an Enter may come too soon
            if talk:
                term.press("Enter")
            if _happens(lambda: _is_paid(ledger), 3):
                break
        assert _is_paid(ledger), term.screen()
        if scene.agent != "copilot":
            until(lambda: machine.status()["phase"] == "executing_tools", "the question is over")
        _escape(term, scene, "cut")
        until(lambda: machine.status()["phase"] == "awaiting_user", "the agent waits for the person")
        _leave(term)
    finally:
        term.close()
    assert _ends(scene) == [("intent", 1), ("cut", 1)]
    _cut_short(scene, machine, 1, charge, ledger)


@deep
@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_what_auto_mode_asks_is_known_until_the_tool_runs(scene: Scene) -> None:
    """It cannot check actions here, so it asks a person, without the hook of other questions."""
    machine = scene.machine("vm")
    charge, ledger = _charge(scene, machine, scene.agent)
    scene.script(Turn(calls=[charge]), Turn(text="never"))
    term = _started(machine, scene, "--permission-mode", "auto", TASK)
    try:
        term.shows("Enter to stay in auto mode")
        until(lambda: machine.status()["phase"] == "awaiting_approval", "the question is known")
        term.press("Enter")
        term.shows("Do you want to proceed")
        assert machine.status()["phase"] == "awaiting_approval"
        term.press("Down", "Enter")
        until(lambda: _is_paid(ledger), "it is paid")
        until(lambda: machine.status()["phase"] == "executing_tools", "the question is over")
        _escape(term, scene, "cut")
        _leave(term)
    finally:
        term.close()


@pytest.mark.parametrize("scene", once(TALKS, "codex"), indirect=True)
def test_a_no_leaves_nothing_open(scene: Scene) -> None:
    """In the words of an Esc in the tool."""
    talk, machine = TALKS[scene.agent], scene.machine("vm")
    charge, ledger = _charge(scene, machine, scene.agent)
    _asking(machine)
    scene.script(Turn(calls=[charge]), Turn(text="never"))
    term = _started(machine, scene, *talk.args)
    try:
        term.shows(talk.question)
        if scene.agent == "qwen":  # its hook comes behind the answer, so the log has nothing of the call
            term.press("Escape")
        else:  # a person answers once the question is on the screen
            until(lambda: machine.status()["phase"] == "awaiting_approval", "the question is known")
            _escape(term, scene, "end")
        _leave(term)
    finally:
        term.close()
    assert _ends(scene) == ([] if scene.agent == "qwen" else [("intent", 1), ("end", 1)]) and not ledger.exists()
    assert {r["how"] for r in scene.records() if r["type"] == "end"} <= {"refused"}
    assert machine.status()["unsettled"] == []
    seen = len(scene.model.requests)
    scene.script(Turn(text="I wait."))
    again = machine.run(*machine.rehearsal.args(TASK), options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    said = _said(scene, seen)
    assert not any("[wal-agent recovery]" in text and "UTC" in text for text in said), "there is nothing to tell"
    assert TASK in said[-1]


ALL = ["claude", "codex", "copilot", "gemini", "kimi", "opencode", "pi", "qwen"]
PROMPTED = [agent for agent in ALL if agent != "kimi"]  # at a terminal, by their command line


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_what_nobody_looked_at_is_told_to_each_new_session(scene: Scene) -> None:
    """I8: the agent had answered that it does not know, and the third start knew of nothing and charged again."""
    machine = scene.machine("vm")
    charge, ledger = _charge(scene, machine, "")
    scene.script(Turn(calls=[charge]), Turn(text="never"))
    run = machine.run(*machine.rehearsal.args(TASK))
    until(lambda: _is_paid(ledger), "it is paid")
    run.kill()
    run.died()
    machine.end()
    scene.script(*[Turn(text="I do not know, ask the operator.")] * 3)
    machine.run(*machine.rehearsal.args("please go on"), options=["--wait"], wait=True)
    assert machine.status()["state"] == "released", "nothing has looked"
    seen = len(scene.model.requests)
    scene.script(Turn(calls=[charge]), *[Turn(text="It was refused.")] * 3)
    machine.run(*machine.rehearsal.args("and another task"), wait=True)
    assert len(scene.model.requests) > seen + 1
    heard = scene.model.history(seen + 1)
    told = [part.text for part in heard if isinstance(part, HistoryText) and "./charge.sh 49.90" in part.text]
    assert len(told) == 1, told
    assert ledger.read_text().splitlines() == ["charged"]
    assert [o.intent.call for o in scene.replay().state.open] == [1]


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_a_pause_in_a_tool_leaves_it_open_and_the_task_goes_on(scene: Scene) -> None:
    """I8: a person's pause ends the tool and the turn; neither is complete."""
    machine = scene.machine("vm")
    charge, ledger = _charge(scene, machine, "")
    scene.script(Turn(calls=[charge]), *[Turn(text="I am back.", when="was paused")] * 3)
    run = machine.run(*machine.rehearsal.args(TASK))
    until(lambda: _is_paid(ledger), "it is paid")
    paused = machine.cli("pause", "--for", "1s", "--reason", "a look")
    assert paused.returncode == 0, paused.stderr
    run.wait()
    turns = [(r["epoch"], r["state"]) for r in scene.records() if r["type"] == "turn"]
    assert (1, "started") in turns and (1, "completed") not in turns
    said = [part.text for part in scene.model.history(len(scene.model.requests) - 1) if isinstance(part, HistoryText)]
    (notice,) = [text for text in said if "[wal-agent recovery]" in text and "UTC" in text]
    assert "`a look`" in notice and "./charge.sh 49.90" in notice
    assert ledger.read_text().splitlines() == ["charged"]


OTHERS = [pytest.param(agent, "stop", marks=deep) for agent in KINDS if agent != "codex"]
OTHERS += [pytest.param("pi", "notice", marks=deep)]


@pytest.mark.parametrize(("scene", "how"), [("codex", "notice"), ("codex", "stop"), *OTHERS], indirect=["scene"])
def test_a_notice_and_a_persons_stop_in_a_tool_leave_it_open(scene: Scene, how: str) -> None:
    """I8: the agent is ended in its tool, which the run says; the next start is told of it, and it is not run again."""
    machine = scene.machine("vm")
    charge, ledger = _charge(scene, machine, "")
    scene.script(Turn(calls=[charge]), Turn(text="Done."))
    with metadata() as cloud:
        options = ["--drain", "4", "--preemption", "gcp"]
        run = machine.run(*machine.rehearsal.args(TASK), options=options, GCE_METADATA_HOST=cloud.host)
        until(lambda: _is_paid(ledger), "it is paid")
        if how == "notice":
            cloud.asked(PREEMPTED, 2)
            cloud.preempt()
        else:
            stopped = machine.cli("stop")
            assert stopped.returncode == 0, stopped.stderr
        assert run.wait() == 143, run.stderr()
    assert "./charge.sh 49.90" in run.stderr(), "it is named"
    assert [r["state"] for r in scene.records() if r["type"] == "turn"] == ["started"], "no turn was completed"
    _cut_short(scene, machine, 1, charge, ledger)


def _behind(scene: Scene, call: Call, shell: str) -> Call:
    """The call, in the background: as the agent is asked for it, or by the shell."""
    tool, input = call
    if scene.agent in ("opencode", "pi"):
        return tool, {**input, "command": f"{input['command']} > /dev/null 2>&1 &"}
    asked: dict[str, dict[str, object]] = {
        "claude": {"run_in_background": True},
        "copilot": {"mode": "async", "shellId": shell},
    }
    return tool, {**input, **asked.get(scene.agent, {"is_background": True})}


@pytest.mark.parametrize("scene", once([a for a in ALL if a not in ("codex", "kimi")], "claude"), indirect=True)
def test_a_server_and_a_charge_in_the_background_end_with_the_run_and_are_named(scene: Scene) -> None:
    """I8: a stop says what it ends. The next start is told of both, and asked about the charge alone."""
    machine = scene.machine("vm")
    server = machine.rehearsal.shell("npx vite --port 0")
    npx = machine.home / "bin" / "npx"
    npx.parent.mkdir()
    npx.write_text("#!/bin/sh\necho up >> side\nexec sleep 600\n")
    npx.chmod(0o755)
    charge, ledger = _charge(scene, machine, "")
    scene.script(Turn(calls=[_behind(scene, server, "one"), _behind(scene, charge, "two")]), Turn(text="never"))
    scene.hold_turn(1)
    run = machine.run(*machine.rehearsal.args(TASK), PATH=f"{npx.parent}:{os.environ['PATH']}")
    until(lambda: scene.side() == ["up"] and _is_paid(ledger), "both run")
    until(lambda: sum(kind == "runs_on" for kind, _ in _ends(scene)) == 2, "both are in the background")
    inputs = {r["call"]: r["input"]["data"] for r in scene.records() if r["type"] == "intent"}
    served = {r["call"]: r.get("serves", False) for r in scene.records() if r["type"] == "runs_on"}
    assert served == {call: "vite" in input for call, input in inputs.items()}  # Gemini begins either one first
    stopped = machine.cli("stop")
    assert stopped.returncode == 0, stopped.stderr
    run.wait()
    both = name_calls(scene.replay().state.open)
    assert messages.ended_in_background(both) in run.stderr()
    seen = len(scene.model.requests)
    scene.script(*[Turn(text="I do not know.")] * 3)
    again = machine.run(*machine.rehearsal.args("please go on"), options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    said = [part.text for part in scene.model.history(seen) if isinstance(part, HistoryText)]
    (notice,) = [text for text in said if "[wal-agent recovery]" in text and "UTC" in text]
    (line,) = [line for line in notice.splitlines() if "vite" in line]
    assert "wal-agent" not in line and "vite --port 0" not in notice.replace(line, ""), "told, and no more"
    left = [o.intent.call for o in scene.replay().state.open]
    assert [served[call] for call in left] == [False], "nobody need look at a server"


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_a_conversation_goes_on_with_the_new_prompt_alone(scene: Scene) -> None:
    """After a clean end there is nothing to tell."""
    machine = scene.machine("vm")
    scene.script(Turn(text="It is done."))
    assert machine.run(*machine.rehearsal.args(TASK), wait=True).process.returncode == 0
    scene.script(Turn(text="So is the rest."))
    again = machine.run(*machine.rehearsal.args("and now the rest"), options=["--continue"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    said = _said(scene, len(scene.model.requests) - 1)
    assert not any("[wal-agent recovery]" in text and "UTC" in text for text in said)
    assert [sum(words in text for text in said) for words in (TASK, "and now the rest")] == [1, 1]
    assert said[-1].endswith("and now the rest")


@deep
@pytest.mark.parametrize("scene", ["opencode"], indirect=True)
def test_a_window_that_is_closed_during_a_tool_leaves_it_open(scene: Scene) -> None:
    """OpenCode said that its turn was over, and the same command opened an empty conversation."""
    talk, machine = TALKS[scene.agent], scene.machine("vm")
    charge, ledger = _charge(scene, machine, scene.agent)
    scene.script(Turn(calls=[charge]), Turn(text="never"))
    term = Terminal(machine, talk.args)
    try:
        until(lambda: _is_paid(ledger), "it is paid")
        run = term.wrapper()
    finally:
        term.close()
    run.wait(PATIENCE)
    assert [r["state"] for r in scene.records() if r["type"] == "turn"] == ["started"], "no turn was completed"
    _cut_short(scene, machine, 1, charge, ledger)
    assert TASK in scene.conversation().decode()


def _ends(scene: Scene) -> list[tuple[str, int]]:
    return [(r["type"], r["call"]) for r in scene.records() if r["type"] in ("intent", "end", "cut", "runs_on")]


def _leave(term: Terminal) -> None:
    for _ in range(60):
        if term.ended(within=1):
            break
        term.press("C-c", "C-c")
    term.code()


@pytest.mark.parametrize("scene", once(PROMPTED, "gemini"), indirect=True)
def test_a_prompt_that_was_stopped_before_its_answer_can_be_asked_again(scene: Scene) -> None:
    """Gemini takes such a prompt out of its session, and refused to resume what was left."""
    machine = scene.machine("vm")
    scene.script(Turn(text="late"), Turn(text="It is done."))
    hold = scene.hold_turn(0)
    args = machine.rehearsal.interactive_args(TASK) or ()
    term = Terminal(machine, args)
    try:
        scene.asked(1)
        for _ in range(4):
            term.press("Escape")
            _happens(lambda: False, 0.7)  # two Escs at once are another key
        _leave(term)
        hold.set()
    finally:
        term.close()
    term = Terminal(machine, args, options=["--wait"])
    try:
        if scene.agent == "opencode":  # it takes no prompt with a session, so the person types the next one
            term.shows("interrupted")
            return
        term.shows("It is done")
        _leave(term)
    finally:
        term.close()
    said = [part.text for part in scene.model.history(len(scene.model.requests) - 1) if isinstance(part, HistoryText)]
    assert any(TASK in text for text in said)


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
@pytest.mark.parametrize("elsewhere", once([False, True], True))
def test_what_was_scheduled_and_is_gone_is_named(scene: Scene, elsewhere: bool) -> None:
    """And no more. Claude Code itself runs a job of CronCreate again in the session of this machine; from
    a bucket it would be anybody's job."""
    first, second = scene.machine("vm"), scene.machine("vm-2")
    told, here = scene.root / "told", second if elsewhere else first
    hook = {"hooks": [{"type": "command", "command": f"(cat; echo) >> {told}"}]}
    (here.home / ".claude").mkdir(exist_ok=True)
    (here.home / ".claude/settings.json").write_text(json.dumps({"hooks": {"Stop": [hook]}}))
    job = ("CronCreate", {"cron": "0 9 * * *", "prompt": "look at the build", "recurring": True})
    wakeup = ("ScheduleWakeup", {"delaySeconds": 3000, "reason": "later", "prompt": "wake me"})
    scene.script(Turn(calls=[job, wakeup]), Turn(text="Scheduled."))
    run = first.run(*first.rehearsal.args(TASK))
    until(lambda: any(r.get("state") == "completed" for r in scene.records() if r["type"] == "turn"), "it is scheduled")
    until(lambda: b"Scheduled." in scene.conversation(), "the session is saved")
    run.kill()
    run.wait()
    first.end()
    told.unlink(missing_ok=True)
    seen = len(scene.model.requests)
    scene.script(Turn(text="I am back."))
    here.run(*here.rehearsal.args(TASK), options=["--wait"])
    until(lambda: told.exists() and told.read_text().endswith("\n"), "its turn ends")
    jobs = [cron["schedule"] for cron in json.loads(told.read_text().splitlines()[0])["session_crons"]]
    texts = [part.text for part in scene.model.history(seen) if isinstance(part, HistoryText)]
    (notice,) = (text for text in texts if text.startswith("[wal-agent recovery] ") and "UTC" in text)
    assert jobs == ([] if elsewhere else ["0 9 * * *"])
    assert ("CronCreate" in notice, "ScheduleWakeup" in notice) == (elsewhere, True)


@deep
@pytest.mark.parametrize("scene", ["qwen"], indirect=True)
def test_what_qwen_scheduled_is_named(scene: Scene) -> None:
    """It was of the process alone, which waits for it without a terminal too."""
    first, second = scene.machine("vm"), scene.machine("vm-2")
    job = ("cron_create", {"cron": "0 9 * * *", "prompt": "look at the build", "recurring": True})
    scene.script(Turn(calls=[job]), Turn(text="Scheduled."))
    run = first.run(*first.rehearsal.args(TASK))
    until(lambda: any(r["type"] == "end" for r in scene.records()), "it is scheduled")
    until(lambda: b"Scheduled." in scene.conversation(), "the session is saved")
    run.kill()
    run.wait()
    first.end()
    seen = len(scene.model.requests)
    scene.script(Turn(text="I am back."))
    again = second.run(*second.rehearsal.args(TASK), options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    texts = [part.text for part in scene.model.history(seen) if isinstance(part, HistoryText)]
    (notice,) = (text for text in texts if text.startswith("[wal-agent recovery] ") and "UTC" in text)
    assert "look at the build" in notice


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_a_turn_without_a_request_completes_nothing(scene: Scene) -> None:
    """Gemini sends no conversation that is larger than its window, and ends with 0."""
    machine = scene.machine("vm")
    own = json.loads(machine.settings.read_text())
    machine.settings.write_text(json.dumps({**own, "model": {"compressionThreshold": 10}}))  # so that it never compacts
    letters = random.Random(1)
    words = ("".join(letters.choices(string.ascii_lowercase, k=6)) for _ in range(700_000))  # no loop to it
    scene.script(Turn(text=" ".join(words)), Turn(text="never"))
    run = machine.run(*machine.rehearsal.args(TASK), wait=True)
    assert run.process.returncode == 0, run.stderr()
    again = machine.run(*machine.rehearsal.args("and now the rest"), options=["--continue"], wait=True)
    assert again.process.returncode == 74, again.stderr()
    assert len(scene.model.requests) == 1 and machine.status()["state"] == "released"


@pytest.mark.parametrize("scene", ["copilot"], indirect=True)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_copilot_scheduled_is_named_where_it_did_not_travel(scene: Scene, elsewhere: bool) -> None:
    """Copilot takes its schedules up again in the session of this machine."""
    first, second = scene.machine("vm"), scene.machine("vm-2")
    here = second if elsewhere else first
    job = ("manage_schedule", {"action": "create", "interval": "1h", "prompt": "look at the build"})
    scene.script(Turn(calls=[job]), Turn(text="Scheduled."))
    term = Terminal(first, ["--experimental", *(first.rehearsal.interactive_args(TASK) or ())])
    try:
        term.shows("Scheduled\\.")
        until(lambda: b"session.schedule_created" in scene.conversation(), "the session is saved")
        until(lambda: first.status()["phase"] == "awaiting_user", "the turn is over")
        term.wrapper().kill()
        first.end()
    finally:
        term.close()
    seen = len(scene.model.requests)
    scene.script(Turn(text="I am back."))
    again = here.run(*here.rehearsal.args("go on"), options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    told = [part.text for part in scene.model.history(seen) if isinstance(part, HistoryText)]
    assert any("`/every`" in text and "look at the build" in text for text in told) == elsewhere


def _killed_in_a_call(scene: Scene) -> tuple[Machine, int]:
    """Behind a payment; the next start's model looks, and says that it was made. And how many requests there were."""
    machine = scene.machine("vm")
    scene.script(Turn(calls=[machine.rehearsal.shell("echo paid >> side; sleep 600")]))
    run = machine.run(*machine.rehearsal.args(TASK))
    until(lambda: scene.side() == ["paid"], "it is paid")
    until(lambda: any(r["type"] == "file" for r in scene.records()), "a session is saved")
    until(lambda: TASK.encode() in scene.conversation(), "it has the task")
    run.kill()
    run.wait()
    seen = len(scene.model.requests)
    scene.script(Turn(calls=[machine.rehearsal.shell("cat side")]), Turn(text="It was paid once."))
    return machine, seen


@pytest.mark.parametrize("scene", once(PROMPTED, "codex"), indirect=True)
def test_at_a_terminal_the_notice_waits_for_the_persons_next_prompt(scene: Scene) -> None:
    """The agent acted on it by itself, in a turn that nobody had asked for."""
    machine, seen = _killed_in_a_call(scene)
    term = Terminal(machine, machine.rehearsal.interactive_args(TASK) or (), options=["--wait"])
    try:
        until(lambda: any(r["type"] == "recovery" for r in scene.records()), "it is recovered")
        term.shows(TASK)  # before that the terminal itself shows what is typed
        _type(term, "where are we now", lambda: len(scene.model.requests) > seen)
        term.shows("It was paid once")
        until(lambda: [r["state"] for r in scene.records() if r["type"] == "turn"][-1] == "completed", "it is told")
        _leave(term)
    finally:
        term.close()
    texts = [
        [part.text for part in scene.model.history(n) if isinstance(part, HistoryText)]
        for n in range(seen, len(scene.model.requests))
    ]
    heard = next(each for each in texts if any("[wal-agent recovery]" in text for text in each))
    told = [n for n, text in enumerate(heard) if "[wal-agent recovery]" in text and "UTC" in text]
    asked = [n for n, text in enumerate(heard) if "where are we now" in text]
    assert len(told) == 1 and asked[-1] >= told[0] and ACT_BEGINS not in "".join(heard)
    prompts = [r["prompt"] for r in scene.records() if r["type"] == "turn" and r.get("prompt")]
    assert scene.side() == ["paid"] and len(prompts) == 2


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_a_run_without_arguments_goes_on_as_the_lost_one_also_at_a_terminal(scene: Scene) -> None:
    """The lost run had a task and nobody to talk to, and so has this one. The log's arguments say so."""
    machine, seen = _killed_in_a_call(scene)
    term = Terminal(machine, (), options=["--wait"])
    try:
        until(lambda: machine.status()["state"] == "closed", "it has ended by itself", 60)
    finally:
        term.close()
    told = [text for text in _said(scene, seen) if "[wal-agent recovery]" in text and "UTC" in text]
    assert len(told) == 1 and scene.side() == ["paid"]
    assert [r["state"] for r in scene.records() if r["type"] == "turn"] == ["started", "started", "completed"]


KEEP = ["claude", "copilot", "opencode"]  # the limits of the others say that they keep it in memory


@pytest.mark.parametrize("scene", once(KEEP, "claude"), indirect=True)
def test_a_prompt_typed_while_a_tool_runs_is_told_after_a_kill(scene: Scene) -> None:
    """I3: killed as soon as the log has it, which is before Claude Code notes it in its file."""
    machine, words = scene.machine("vm"), "and then count the lines"
    scene.script(Turn(calls=[machine.rehearsal.shell("echo begun >> side; sleep 600")]), Turn(text="never"))
    scene.hold_turn(1)  # Copilot asks at once
    term = Terminal(machine, machine.rehearsal.interactive_args(TASK) or ())
    try:
        until(lambda: scene.side() == ["begun"], "the tool runs")
        # OpenCode's file has it last: what is typed in the second before is lost with it. Copilot takes a prompt into a
        # turn that runs without a hook, and writes it at once.
        held: list[Callable[[], bytes]] = [scene.conversation, lambda: str(scene.records()).encode()]
        kept = {"claude": held[1:], "copilot": held, "opencode": held[:1]}[scene.agent]
        _type(term, words, lambda: any(words.encode() in each() for each in kept))
        run = term.wrapper()
        run.kill()
        machine.end()
    finally:
        term.close()
    seen = len(scene.model.requests)
    scene.script(Turn(text="I am back."))
    again = machine.run(*machine.rehearsal.args("please go on"), options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    heard = [part.text for part in scene.model.history(seen) if isinstance(part, HistoryText) and part.role == "user"]
    assert sum(text.count(words) for text in heard) == 1
    assert scene.side() == ["begun"]


def _type(term: Terminal, text: str, sent: Callable[[], bool]) -> None:
    """Type a prompt once the agent takes one, and send it: keys that come too soon are lost, or part of a paste.
    Text that the terminal shows late must not be typed twice."""
    for _ in range(30):
        if term.showed(text, within=0.1):
            break
        term.type(text)
        term.showed(text, within=15)
    for _ in range(20):
        term.press("Enter")
        if _happens(sent, 2):
            return
    raise AssertionError(term.screen())

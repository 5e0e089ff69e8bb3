"""supervise/callers.py: who calls, by tables over chains of processes as the real CLIs make them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wal_agent.agents.base import HookCaller, HookSetup
from wal_agent.agents.claude.hooks import hook_table
from wal_agent.agents.codex.hooks import hook_line as codex_line
from wal_agent.agents.gemini import hooks
from wal_agent.agents.gemini.hooks import hook_line
from wal_agent.agents.hook_line import is_hook_line
from wal_agent.agents.qwen.hooks import hook_line as qwen_line
from wal_agent.supervise.ancestry import Ancestry, Process, ancestry_of, read_process
from wal_agent.supervise.callers import Caller, Callers, KnownAgent, Origin, identify_caller

SUPERVISOR = 100
SETUP = HookSetup("0123456789abcdef", Path("/tmp/wal-agent-0/0123456789abcdef"), ("/opt/client",))
LINE = hook_line(SETUP, "BeforeTool")
INNER_BASH = LINE.partition("\n")[2]
CLIENT = ("/opt/client", "/tmp/wal-agent-0/0123456789abcdef/hook.sock", SETUP.run, "gemini", "BeforeTool", "1", "25")


def at(pid: int, parent: int, session: int, *argv: str) -> Process:
    return Process(pid, parent, float(pid), session, argv)


AGENT = at(200, SUPERVISOR, 100, "node", "gemini")
HOOK = at(300, 200, 100, "bash", "-c", LINE)
OWN = at(300, 200, 300, "/bin/sh", "-c", LINE)  # as Claude and Codex start it: it leads a session
TOOL = at(400, 200, 400, "bash", "-c", "gemini -p 'look'")
INNER = at(410, 400, 400, "node", "gemini", "-p", "look")
INNER_HOOK = at(420, 410, 400, "bash", "-c", LINE)
LAUNCHER = at(200, SUPERVISOR, 100, "sh", "my-gemini")
BELOW = at(210, 200, 100, "node", "gemini")
BELOW_HOOK = at(300, 210, 100, "bash", "-c", LINE)
WRAPPER = at(300, 200, 300, "/bin/sh", "-c", f"nice '{LINE}'")  # CLAUDE_CODE_SHELL_PREFIX
WRAPPED = at(301, 300, 300, "nice", LINE)
EVALS = at(300, 200, 300, "bash", "-c", f"source x && eval '{LINE}' && pwd")
TYPING = at(400, 200, 400, "bash", "-c", "x")


def client(parent: Process, session: int | None = None) -> Process:
    return at(999, parent.pid, parent.session if session is None else session, *CLIENT)


LAUNCHED = (client(BELOW_HOOK), BELOW_HOOK, BELOW, LAUNCHER)


def known(main: Process | None = AGENT, root: Process = AGENT, lives: bool = True) -> KnownAgent:
    return KnownAgent(SUPERVISOR, root, main, lives)


CASES: dict[str, tuple[tuple[Process, ...], HookCaller, KnownAgent, Origin]] = {
    "the agent's hook": ((client(HOOK), HOOK, AGENT), "shell", known(), "agent"),
    "the agent's first hook": ((client(HOOK), HOOK, AGENT), "shell", known(None), "agent"),
    "a bash below the hook's shell": (
        (client(HOOK), at(301, 300, 100, "bash", "-c", INNER_BASH), HOOK, AGENT),
        "shell",
        known(),
        "agent",
    ),
    "a hook in a session of its own": ((client(OWN), OWN, AGENT), "session", known(), "agent"),
    "an agent below a launcher, first": (
        LAUNCHED,
        "shell",
        known(None, LAUNCHER),
        "agent",
    ),
    "an agent below a launcher": (
        LAUNCHED,
        "shell",
        known(BELOW, LAUNCHER),
        "agent",
    ),
    "started again by the launcher": (
        LAUNCHED,
        "shell",
        known(at(205, 200, 100, "node", "gemini"), LAUNCHER, lives=False),
        "agent",
    ),
    "another child of the launcher, beside a live agent": (
        LAUNCHED,
        "shell",
        known(at(205, 200, 100, "node", "gemini"), LAUNCHER),
        "inner",
    ),
    "an agent that a tool started": ((client(INNER_HOOK), INNER_HOOK, INNER, TOOL, AGENT), "shell", known(), "inner"),
    "the same with its shell gone": ((client(INNER_HOOK), INNER_HOOK, INNER), "shell", known(), "inner"),
    "a number that was given again": (
        (client(HOOK), HOOK, Process(200, 400, 250.0, 100, ("node", "gemini"))),
        "shell",
        known(),
        "inner",
    ),
    "a tool that types the line": (
        (at(999, 400, 400, *CLIENT), at(400, 200, 400, "bash", "-c", f"shopt -u x\n(\n{LINE}\n)"), AGENT),
        "shell",
        known(),
        "stranger",
    ),
    "a tool that becomes the line": (
        (at(999, 400, 400, *CLIENT), at(400, 200, 400, "bash", "-c", LINE), AGENT),
        "shell",
        known(),
        "stranger",
    ),
    "a tool that runs the line in a shell": (
        (
            at(999, 401, 400, *CLIENT),
            at(401, 400, 400, "bash", "-c", LINE),
            at(400, 200, 400, "bash", "-c", "x"),
            AGENT,
        ),
        "shell",
        known(),
        "inner",
    ),
    "a tool that starts the client": ((client(TOOL), TOOL, AGENT), "shell", known(), "stranger"),
    "a tool that is the client": ((at(400, 200, 400, *CLIENT), AGENT), "shell", known(), "stranger"),
    "a tool of an agent whose hooks lead sessions": ((client(TOOL), TOOL, AGENT), "session", known(), "stranger"),
    "a child of the agent's session": ((client(AGENT), AGENT), "shell", known(), "agent"),
    "the same, where hooks lead sessions": ((client(AGENT), AGENT), "session", known(), "stranger"),
    "not below the agent": ((client(at(50, 1, 50)), at(50, 1, 50, "bash")), "shell", known(), "stranger"),
    "a hook that the agent left behind": (
        (client(OWN), at(300, SUPERVISOR, 300, "/bin/sh", "-c", LINE)),
        "session",
        known(lives=False),
        "agent",
    ),
    "a hook without its agent, which lives": (
        (client(OWN), at(300, SUPERVISOR, 300, "/bin/sh", "-c", LINE)),
        "session",
        known(),
        "gone",
    ),
    "a caller that is gone": ((), "shell", known(), "gone"),
    "a command before the line": ((client(WRAPPED), WRAPPED, WRAPPER, AGENT), "wrapped", known(), "agent"),
    "a command before the line, first": ((client(WRAPPED), WRAPPED, WRAPPER, AGENT), "wrapped", known(None), "agent"),
    "a tool that evaluates the line": ((client(EVALS), EVALS, AGENT), "wrapped", known(), "stranger"),
    "the agent itself": ((AGENT,), "agent", known(), "agent"),
    "the agent itself, first": ((AGENT,), "agent", known(None), "agent"),
    "a tool of an agent that calls by itself": ((TOOL, AGENT), "agent", known(), "stranger"),
    "the hook line below an agent that calls by itself": ((client(HOOK), HOOK, AGENT), "agent", known(), "stranger"),
}


@pytest.mark.parametrize(("chain", "how", "knows", "origin"), CASES.values(), ids=CASES.keys())
def test_whose_word_it_is(chain: tuple[Process, ...], how: HookCaller, knows: KnownAgent, origin: Origin) -> None:
    assert identify_caller(chain, how, True, knows).origin == origin


@pytest.mark.parametrize("how", ["agent", "shell", "session", "wrapped"])
def test_another_cli_is_never_the_runs_agent(how: HookCaller) -> None:
    """By hooks in its own settings (`configure-hooks --install`), or under a run of `generic`."""
    assert identify_caller((client(HOOK), HOOK, AGENT), how, False, known(None)) == Caller("inner", AGENT)
    assert identify_caller((client(TOOL), TOOL, AGENT), how, False, known(None)).origin == "stranger"


LINES = {
    "gemini": LINE,
    "qwen": qwen_line(SETUP, "PreToolUse"),
    "codex": codex_line(SETUP, "PreToolUse"),
    "claude": hook_table(SETUP)["PreToolUse"][0]["hooks"][0]["command"],
    "installed": hooks.hooks_to_install({}).hooks["BeforeTool"][0]["hooks"][0]["command"],
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_a_shell_is_known_by_our_line_alone(line: str) -> None:
    assert is_hook_line(("bash", "-c", line)) and is_hook_line(("/bin/bash", "--norc", "-c", line))
    assert not is_hook_line(("bash", "-c", f"eval '{line}'")) and not is_hook_line(("bash", "-c", f"true; {line}"))
    assert not is_hook_line((line,)) and not is_hook_line(())


def test_the_first_speaker_stays_the_agent() -> None:
    """Below a launcher too; and the process that the run itself started is believed at any time."""
    living = {p.pid: p for p in (LAUNCHER, BELOW, INNER)}
    callers = Callers("shell", "gemini", SUPERVISOR, living.get)
    with callers.starting() as began:
        began(LAUNCHER.pid)
    inner = (client(INNER_HOOK), INNER_HOOK, INNER, at(400, 210, 400, "bash"), BELOW, LAUNCHER)
    assert callers.identify((client(BELOW_HOOK), BELOW_HOOK, BELOW, LAUNCHER), "gemini").origin == "agent"
    assert callers.identify(inner, "gemini") == Caller("inner", INNER)
    root_hook = at(300, 200, 100, "bash", "-c", LINE)
    assert callers.identify((client(root_hook), root_hook, LAUNCHER), "gemini").origin == "agent"


def test_a_process_and_its_ancestors_are_read() -> None:
    script = "print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", script, "a\nb", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()  # its words are there only some moments after its exec
        found = read_process(child.pid)
        assert found is not None and found.argv[1:4] == ("-c", script, "a\nb") and found.parent == os.getpid()
        assert found.session == os.getsid(child.pid) and found.is_(read_process(child.pid))
        assert ancestry_of(child.pid, os.getpid()) == Ancestry((found,), "supervisor")
        upto = ancestry_of(child.pid, os.getppid())
        assert [p.pid for p in upto.processes] == [child.pid, os.getpid()] and upto.end == "supervisor"
        top = ancestry_of(child.pid)
        assert top.end == "top" and top.processes[-1].parent == 0, "a supervisor may be process 1, as in a container"
    finally:
        child.communicate(b"\n")
    assert read_process(child.pid) is None and ancestry_of(child.pid, os.getpid()) == ancestry_of(0, 1) == Ancestry()

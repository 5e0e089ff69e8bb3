"""supervise/processes.py: a run's processes are found by its marker, and ended."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import command_line, gone
from tests.unit.supervise.crew import PATIENCE, short_folder, until
from wal_agent.agents import AGENTS
from wal_agent.agents.base import HookSetup
from wal_agent.agents.gemini.hooks import MARKER as GEMINI_MARKER
from wal_agent.agents.gemini.hooks import hook_table, hooks_to_install
from wal_agent.agents.hook_line import LINE_SIGN, STANDING, client_command, python_client
from wal_agent.supervise import processes
from wal_agent.supervise.processes import (
    CHAIN,
    MARKER,
    Begun,
    CallProcesses,
    Running,
    await_hooks,
    descendants,
    end_run_processes,
    marked_processes,
)

DETACHED = "setsid sh -c 'echo $$; exec sleep 600' & wait"
STUBBORN = "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & wait"


class Tree:
    """A shell with a child in a session of its own, as agents start tools; `inner` is that child's pid."""

    def __init__(self, script: str) -> None:
        self.run = secrets.token_hex(8)
        self.shell = subprocess.Popen(
            ["sh", "-c", script], env={**os.environ, MARKER: self.run}, stdout=subprocess.PIPE
        )
        assert self.shell.stdout is not None
        self.inner = int(self.shell.stdout.readline())
        if script == DETACHED:
            until(self._begun, "the inner shell has become its program")

    def _begun(self) -> bool:
        inner = psutil.Process(self.inner)
        return inner.cmdline() == ["sleep", "600"] and MARKER in inner.environ()

    def close(self) -> None:
        for process in marked_processes(self.run):
            process.kill()
        self.shell.kill()
        self.shell.communicate()


@pytest.fixture
def trees() -> Iterator[list[Tree]]:
    made: list[Tree] = []
    yield made
    for tree in made:
        tree.close()


def start(trees: list[Tree], script: str) -> Tree:
    trees.append(Tree(script))
    return trees[-1]


def test_a_detached_grandchild_is_found_by_its_marker_also_when_its_parent_is_gone(trees: list[Tree]) -> None:
    """RECOVERY.md: a tool's shell is a session leader and outlives its CLI, so parentage alone would lose it."""
    tree = start(trees, DETACHED)
    assert {p.pid for p in marked_processes(tree.run)} == {tree.shell.pid, tree.inner}
    tree.shell.kill()
    tree.shell.wait()
    assert {p.pid for p in marked_processes(tree.run)} == {tree.inner}
    assert marked_processes(tree.run + "x") == []


def test_what_runs_inside_is_found_by_each_run_around_it(trees: list[Tree]) -> None:
    """A run inside another one's tool overwrites the marker; the chain names both. An unrelated run is
    found by neither, also if its id begins as theirs."""
    outer, inner = secrets.token_hex(8), secrets.token_hex(8)
    env = {**os.environ, MARKER: inner, CHAIN: f"{outer}:{inner}"}
    child = subprocess.Popen(["sleep", "600"], env=env)
    try:
        until(lambda: [p.pid for p in marked_processes(inner)] == [child.pid], "it has its environment")
        assert [p.pid for p in marked_processes(outer)] == [child.pid]
        assert marked_processes(outer[:8]) == marked_processes("") == marked_processes(secrets.token_hex(8)) == []
        assert end_run_processes(outer) == ["sleep 600"]
        assert not psutil.pid_exists(child.pid)
    finally:
        child.kill()
        child.wait()


def test_a_run_is_ended_to_the_last_process_and_says_which(trees: list[Tree]) -> None:
    tree, other = start(trees, DETACHED), start(trees, DETACHED)
    told = end_run_processes(tree.run)
    assert "sleep 600" in told and len(told) == 2
    assert marked_processes(tree.run) == []
    assert {p.pid for p in marked_processes(other.run)} == {other.shell.pid, other.inner}
    assert end_run_processes(tree.run) == []


def test_what_ignores_sigterm_is_ended_all_the_same(trees: list[Tree]) -> None:
    tree = start(trees, STUBBORN)
    end_run_processes(tree.run, grace=0.1)
    until(lambda: marked_processes(tree.run) == [], "it is gone")


def test_a_script_is_ended_before_the_command_that_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on to its next one. Numbers are used again: a command may have a lower one than its script."""
    script = subprocess.Popen(["sh", "-c", "sleep 0.1; sleep 600; touch next"], cwd=tmp_path)
    try:
        told: list[int] = []
        terminate = psutil.Process.terminate

        def note(process: psutil.Process) -> None:
            told.append(process.pid)
            terminate(process)

        monkeypatch.setattr(psutil.Process, "terminate", note)
        parent = psutil.Process(script.pid)
        commands = until(lambda: [p for p in parent.children() if p.cmdline() == ["sleep", "600"]], "it waits for it")
        processes.end_processes([*commands, parent])
        assert told == [script.pid, commands[0].pid] and not (tmp_path / "next").exists()
    finally:
        script.kill()
        script.wait()


def test_what_was_spared_is_left_when_the_adopted_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What sends a run's messages outlives the run that started it."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        pids = {child.pid for child in children}
        monkeypatch.setattr(
            processes, "descendants", lambda pid: [p for p in psutil.process_iter() if p.pid in pids and p.pid != pid]
        )
        processes.spare_child(children[0].pid)
        processes.spare_child(2**22 + 1)  # there is none
        end_run_processes(secrets.token_hex(8), adopted=True)
        assert children[0].poll() is None and not psutil.pid_exists(children[1].pid)
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_it_never_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was started from inside of another one must survive the ending of that one's leftovers."""
    found: list[psutil.Process] = []
    me = psutil.Process()
    run = me.environ().get(MARKER)
    if run is None:
        run = secrets.token_hex(8)
        real = psutil.Process.environ

        def pretended(self: psutil.Process) -> dict[str, str]:
            return {MARKER: run} if self.pid == os.getpid() else real(self)

        monkeypatch.setattr(psutil.Process, "environ", pretended)
        assert me.environ()[MARKER] == run
    found = marked_processes(run)
    assert os.getpid() not in [p.pid for p in found]


def test_a_child_that_ends_while_we_look_hides_none_of_the_others(
    trees: list[Tree], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PROTOCOL.md, Timing: at expiry every running tool is ended, whatever ends by itself at that moment."""
    tree = start(trees, DETACHED)
    real = psutil.Process.status

    def vanishing(self: psutil.Process) -> str:
        if self.pid == tree.shell.pid:
            raise psutil.NoSuchProcess(self.pid)
        return real(self)

    assert {tree.shell.pid, tree.inner} <= {p.pid for p in descendants(os.getpid())}
    monkeypatch.setattr(psutil.Process, "status", vanishing)
    found = {p.pid for p in descendants(os.getpid())}
    assert tree.inner in found and tree.shell.pid not in found


def test_a_zombie_is_no_process(trees: list[Tree]) -> None:
    tree = start(trees, DETACHED)
    tree.shell.kill()
    until(lambda: psutil.Process(tree.shell.pid).status() == psutil.STATUS_ZOMBIE, "nobody has reaped it")
    assert tree.shell.pid not in [p.pid for p in [*marked_processes(tree.run), *descendants(os.getpid())]]


def test_a_description_never_fails(trees: list[Tree]) -> None:
    tree = start(trees, DETACHED)
    shell = psutil.Process(tree.shell.pid)
    assert processes.command_line(shell).startswith("sh -c setsid")
    tree.shell.kill()
    tree.shell.wait()
    assert processes.command_line(shell) == f"pid {shell.pid}"


def injected_lines(run: str, folder: Path, client: tuple[str, ...]) -> list[str]:
    return _commands(hook_table(HookSetup(run=run, run_dir=folder, client=client)))


def _commands(hooks: dict[str, Any]) -> list[str]:
    return [hook["command"] for groups in hooks.values() for group in groups for hook in group["hooks"]]


def test_every_hook_line_has_the_sign(tmp_path: Path) -> None:
    """I5: by it a hook's shell is known from its first moment on, when no client is below it."""
    lines = injected_lines("r", tmp_path, client_command()) + _commands(hooks_to_install({}).hooks)
    assert len(lines) >= 6 and all(LINE_SIGN in line for line in lines)
    standing = AGENTS["kimi"].capabilities.hooks_to_install
    assert standing is not None and all(STANDING in line for line in _commands(standing({"HOME": "/h"}).hooks))
    assert LINE_SIGN == "wal-agent:allow) exit 0;;", (
        "lines that were installed by an earlier wal-agent have these words"
    )


@pytest.mark.parametrize("client", [client_command(), python_client()], ids=["client", "python client"])
@pytest.mark.parametrize("way", ["injected", "installed"])
def test_a_hook_that_waits_for_its_answer_is_no_tool(
    way: str, client: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I5: agents run the tool whose hook was killed, so what is ended at expiry must leave hooks out, whichever way
    they came into the agent's settings."""
    monkeypatch.setattr("wal_agent.agents.installed_hooks.client_command", lambda: client)
    run = secrets.token_hex(8)
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "hook.sock"))
        server.listen()
        server.settimeout(PATIENCE)
        lines = injected_lines(run, folder, client) if way == "injected" else _commands(hooks_to_install({}).hooks)
        env = {MARKER: run, "WAL_AGENT_SOCKET": str(folder / "hook.sock"), GEMINI_MARKER: run, "HOME": str(folder)}
        hook = subprocess.Popen(
            ["bash", "-c", lines[0]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, **env}
        )
        tool = subprocess.Popen(["sleep", "600"], env={**os.environ, **env})
        try:
            asking, _ = server.accept()  # and never answers
            with asking:
                found = [p for p in descendants(os.getpid()) if p.environ().get(MARKER) == run]
                assert len(found) == 3 and hook.pid in [p.pid for p in found]
                with monkeypatch.context() as below_us:
                    below_us.setattr(processes, "descendants", lambda pid: found)
                    assert [p.pid for p in processes.tool_processes(os.getpid(), run, 0.0)] == [tool.pid]
                assert hook.poll() is None
                assert end_run_processes(run, grace=0.1) == ["sleep 600"], "and no hook is told as left over"
        finally:
            for process in (hook, tool):
                process.kill()
                process.communicate()


AGENT = """
import os, subprocess, time
left = subprocess.Popen(["sleep", "600"]).pid
began = time.monotonic()
while time.monotonic() < began + 0.03:  # processes tell their births in hundredths of a second
    pass
forked = os.fork() or time.sleep(600)
print(left, forked, subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


def test_what_the_agent_has_just_forked_may_become_a_hook() -> None:
    """I1, I5: it has the agent's own words until it executes its program; a tool has others by then."""
    agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    left, forked, tool = map(int, agent.stdout.readline().split())
    try:
        until(lambda: psutil.Process(tool).name() == "sleep", "the tool runs its program")
        since = psutil.Process(forked).create_time()
        assert {p.pid for p in descendants(agent.pid)} == {left, forked, tool}
        assert [p.pid for p in processes.tool_processes(agent.pid, "another-run", since)] == [tool], (
            "though one like it was left"
        )
        assert processes.tool_processes(agent.pid, "another-run", time.time() + 60) == [], "it began before the call"
    finally:
        for pid in (left, forked, tool, agent.pid):
            os.kill(pid, signal.SIGKILL)
        agent.communicate()


def test_a_hook_that_its_agent_did_not_wait_for_has_its_say() -> None:
    """Claude does not wait for the hook that tells of its quota; a tool that was left is not waited for."""
    run, looks = secrets.token_hex(8), list[bool]()
    env = {**os.environ, MARKER: run}
    hook = subprocess.Popen(["sh", "-c", f": '{LINE_SIGN}'; read answer"], stdin=subprocess.PIPE, env=env)
    tool = subprocess.Popen(["sleep", "600"], env=env)
    assert hook.stdin is not None
    answer = hook.stdin
    try:
        until(lambda: LINE_SIGN in command_line(psutil.Process(hook.pid)), "the hook has begun")
        await_hooks(run, PATIENCE, lambda: True)
        assert not gone(hook.pid), "nothing is waited for when the machine goes away"

        def answered() -> bool:
            looks.append(True)
            if len(looks) == 3:
                answer.close()
            return False

        await_hooks(run, PATIENCE, answered)
        assert gone(hook.pid) and len(looks) >= 3 and not gone(tool.pid)
    finally:
        end_run_processes(run, grace=0.1)
        hook.wait()
        tool.wait()


@pytest.mark.parametrize(
    "words",
    ["", "agent --now", f"sh -c {LINE_SIGN}", f"sh -c {STANDING}"],
    ids=["gone", "just forked", "hook", "hook in settings"],
)
def test_what_may_be_a_hook_is_no_process_of_a_call(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """I8: a hook that ends between two reads was taken for the tool, and a person's No for a stop of it."""
    agent, shell = 7, 8
    names = {agent: "agent --now", shell: words}
    table = {
        agent: Running((agent, 1), os.getpid(), agent, "agent"),
        shell: Running((shell, 500), agent, shell, "sh"),
    }
    monkeypatch.setattr(processes, "_command", names.get)
    monkeypatch.setattr(processes, "process_table", lambda zombies=False: table)
    calls = CallProcesses(agent, "run-1")
    began = {1: Begun(4.0, "./charge.sh")}
    calls.look(began)
    assert not calls.begun(1) and calls.has_hook(calls.tree(), 4.0)
    names[shell] = "sh -c ./charge.sh"
    calls.look(began)
    assert calls.begun(1) and not calls.has_hook(calls.tree(), 4.0)


AGENT_AND_SHELL = {7: Running((7, 1), os.getpid(), 7, "agent"), 8: Running((8, 500), 7, 8, "sh")}
ORPHAN = Running((9, 501), os.getpid(), 9, "setsid")
LEFT = {7: AGENT_AND_SHELL[7], 9: ORPHAN}
MARKED = f"A=b\0{processes.MARKER}=run-1\0".encode()


@pytest.mark.parametrize(
    ("tables", "words", "variables"),
    [
        ([LEFT], ["", "sleep 60"], [MARKED]),
        ([LEFT], ["setsid"], [b"", MARKED]),
        ([AGENT_AND_SHELL, LEFT], ["sh"], [MARKED]),
    ],
    ids=["no words", "no variables", "a child of what has just ended"],
)
def test_what_executes_its_program_as_its_call_ends_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, tables: list[dict[int, Running]], words: list[str], variables: list[bytes]
) -> None:
    """I8: `(setsid ./charge.sh &)` was over where the look fell between its exec and its words: once in a test."""
    said = {7: ["agent"], 8: ["sh -c x"], 9: words}

    def next_of(values: list[Any]) -> Any:
        return values.pop(0) if len(values) > 1 else values[0]

    monkeypatch.setattr(processes, "_command", lambda pid: next_of(said[pid]))
    monkeypatch.setattr(processes, "_variables", lambda pid: next_of(variables))
    monkeypatch.setattr(processes, "process_table", lambda zombies=False: next_of(tables))
    monkeypatch.setattr(processes, "UNSURE", 60.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    calls = CallProcesses(7, "run-1")
    calls.look({1: Begun(4.0, "./charge.sh")}, over=1)
    assert calls.alive(1) == (9,)


def test_what_stays_unknown_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphan without variables may be anybody's."""
    monkeypatch.setattr(processes, "_command", {7: "agent", 9: "sleep 60"}.get)
    monkeypatch.setattr(processes, "_variables", lambda pid: b"")
    monkeypatch.setattr(processes, "process_table", lambda zombies=False: LEFT)
    calls = CallProcesses(7, "run-1")
    calls.look({1: Begun(4.0, "./charge.sh")}, over=1)
    assert not calls.begun(1)


def test_a_child_of_what_ended_meanwhile_is_in_the_table_with_the_parent_that_it_has_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    init, before, now = (Running((n, n), parent, n, "x") for n, parent in ((1, 0), (6, 5), (6, 1)))
    reads: dict[int, list[Running | None]] = {5: [None], 6: [before, now], 1: [init]}
    listed = [[1, 5], [1, 5, 6]]
    monkeypatch.setattr(psutil, "pids", lambda: listed.pop(0))
    monkeypatch.setattr(processes, "_read_process", lambda pid: reads[pid].pop(0))
    assert processes.process_table() == {1: init, 6: now}

"""supervise/loops.py, and what the gate makes of it: a model that runs one command for ten minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.supervise.crew import Post, ended, starting
from wal_agent.agents.base import Allow, Deny, ToolEnded
from wal_agent.calls.call import ReadCall
from wal_agent.supervise.loops import WAITS, Loops


def shell(command: str = "echo stop", /, **more: object) -> bytes:
    return json.dumps({"command": command, **more}).encode()


def make(loops: Loops, n: int, result: bytes = b"x", seconds: float = 0.0, input: bytes = b"") -> list[str]:
    words: list[str] = []
    for _ in range(n):
        words.append(loops.begin(ReadCall("Bash", input or shell())))
        if not words[-1]:
            loops.end(ReadCall("Bash", input or shell()), result, seconds)
    return words


def test_it_is_told_once_and_then_ended() -> None:
    assert make(Loops(3), 8) == ["", "", "", "tell", "", "", "", "end"]


def test_another_spelling_of_what_is_for_people_is_the_same_call() -> None:
    loops = Loops(2)
    spellings: list[dict[str, object]] = [{}, {"description": "a"}, {"description": "b", "timeout": 9}]
    for n, more in enumerate(spellings):
        word = loops.begin(ReadCall("Bash", shell(**more)))
        assert word == ("tell" if n == 2 else "")
        loops.end(ReadCall("Bash", shell(**more)), b"Output: x\nProcess Group PGID: %d" % n, 0.0)


@pytest.mark.parametrize("break_it", ["result", "call", "prompt", "wait"])
def test_whatever_else_is_no_loop(break_it: str) -> None:
    """A poll that waits, or whose result changes, is work."""
    loops = Loops(3)
    for n in range(20):
        result = b"%d" % (n // 2) if break_it == "result" else b"x"
        assert make(loops, 1, result, WAITS if break_it == "wait" else 0.0) == [""]
        if break_it == "call":
            make(loops, 1, input=shell("ls"))
        elif break_it == "prompt":
            loops.clear()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([b"1", b"2"])), max_size=40), st.integers(1, 4))
def test_nothing_is_said_before_the_limit_and_nothing_ends_untold(calls: list[tuple[str, bytes]], limit: int) -> None:
    loops, row, told = Loops(limit), 0, False
    before: tuple[str, bytes] | None = None
    for name, result in calls:
        word = loops.begin(ReadCall("Bash", shell(name)))
        if before is None or before[0] != name:
            row, told = 0, False
        assert word == ("end" if row >= 2 * limit else "tell" if row >= limit and not told else "")
        assert word != "end" or told
        if word:
            told, before = True, (name, before[1] if before else b"")
            continue
        loops.end(ReadCall("Bash", shell(name)), result, 0.0)
        same = before is not None and row > 0 and before[1] == result
        row, told = (row + 1, told) if same else (1, False)
        before = (name, result)


def test_the_gate_refuses_once_and_then_stops_the_run(tmp_path: Path) -> None:
    post = Post(tmp_path)
    post.gate.loops = Loops(2)
    said: list[str] = []
    with post.committing():
        for _ in range(6):
            decision = post.gate.begin_call(starting("run_shell_command", command="echo stop"))
            said.append(decision.word if isinstance(decision, Deny) else "")
            if isinstance(decision, Allow):
                post.gate.finish_call(ended("run_shell_command", command="echo stop"))
    assert said == ["", "", "loop", "", "", "loop"]
    assert isinstance(decision, Deny) and decision.stop
    assert post.gate.stuck is not None and post.gate.stuck.exit_code == 79 and "echo stop" in post.gate.stuck.what
    assert post.gate.last is not None and post.gate.last.call == 4


def test_beside_work_in_the_background_and_of_a_nested_agent_nothing_is_counted(tmp_path: Path) -> None:
    post = Post(tmp_path)
    post.gate.loops = Loops(1)
    with post.committing():
        post.begin("run_shell_command", command="make")
        result = b'"Command is running in background"'
        post.gate.finish_call(ToolEnded("s", "run_shell_command", shell("make"), result, False, runs_on=True))
        for nested in ("", "", "", "claude:s", "claude:s", "claude:s"):
            look = starting("run_shell_command", command="tail log")
            assert isinstance(post.gate.begin_call(look, nested), Allow)
            post.gate.finish_call(ended("run_shell_command", command="tail log"), nested)

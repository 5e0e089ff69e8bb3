"""supervise/loops.py: a model that runs one command for ten minutes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

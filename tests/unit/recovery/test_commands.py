"""The classifier against commands.jsonl, a table written from the manuals and not from the rules.

A line names a command, its class, and what else would be right (`also`). A command that is not read-only and comes out
read-only would start before its intent is durable (I1): no line may excuse that.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from wal_agent.records import Class
from wal_agent.shell.classify import classify
from wal_agent.shell.rules import load_rules

TABLE = Path(__file__).with_name("commands.jsonl")
CLASSES: tuple[Class, ...] = get_args(Class)
FEWEST = 300
MOST_EXCUSED = 0.25  # the share of lines that may allow a second class


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"cls": "class"}):
    cmd: str
    cls: Class
    also: tuple[Class, ...] = ()
    note: str = ""


@cache
def table() -> tuple[Line, ...]:
    return tuple(msgspec.json.decode(line, type=Line) for line in TABLE.read_bytes().splitlines())


@cache
def answers() -> dict[str, Class]:
    rules = load_rules()
    return {
        line.cmd: classify("run_shell_command", json.dumps({"command": line.cmd}).encode(), rules).cls
        for line in table()
    }


def told(wrong: list[Line]) -> str:
    return "".join(f"\n{line.cmd!r}: {answers()[line.cmd]}, but is {line.cls} {line.note}" for line in wrong)


def test_no_command_that_may_change_something_comes_out_read_only() -> None:
    wrong = [line for line in table() if line.cls != "read_only" and answers()[line.cmd] == "read_only"]
    assert not wrong, told(wrong)


@pytest.mark.parametrize("cls", CLASSES)
def test_commands_have_the_class_that_their_manuals_say(cls: Class) -> None:
    wrong = [line for line in table() if line.cls == cls and answers()[line.cmd] not in (cls, *line.also)]
    assert not wrong, told(wrong)


def test_the_table_is_long_and_strict() -> None:
    lines = table()
    assert len(lines) == len({line.cmd for line in lines}) >= FEWEST
    assert {line.cls for line in lines} == set(CLASSES)
    assert not [line for line in lines if "read_only" in line.also or line.cls in line.also]
    assert sum(bool(line.also) for line in lines) <= MOST_EXCUSED * len(lines)

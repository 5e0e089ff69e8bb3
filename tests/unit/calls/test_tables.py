"""Check the classifier against two tables that were not written from the rules.

commands.jsonl: 2,000 shell commands, classified by the manuals. agents_tools.json: every tool that the tested versions
of the agents declare; tests/contract/test_tools.py compares it with the real CLIs.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from wal_agent.calls.call import ReadCall
from wal_agent.calls.classify import classify
from wal_agent.calls.rules.table import load_rules
from wal_agent.records import Class

TABLE = Path(__file__).with_name("commands.jsonl")
CLASSES: tuple[Class, ...] = get_args(Class)
FEWEST = 300
MAX_EXCUSED = 0.25  # the share of lines that may allow a second class


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
        line.cmd: classify(ReadCall("run_shell_command", json.dumps({"command": line.cmd}).encode()), rules).cls
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
    assert sum(bool(line.also) for line in lines) <= MAX_EXCUSED * len(lines)


TOOLS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("agents_tools.json").read_text("utf-8"))
CALLS = [(t["agent"], t.get("hook", t["tool"]), json.dumps(i), cls) for t in TOOLS for i, cls in t["calls"]]
RULES = load_rules()


@pytest.mark.parametrize(("agent", "tool", "input", "cls"), CALLS)
def test_the_class_of_every_tool_of_every_agent(agent: str, tool: str, input: str, cls: str) -> None:
    rules = RULES.of(agent)
    found = classify(ReadCall(tool, input.encode()), rules)
    assert found.cls == cls


@pytest.mark.parametrize(
    ("agent", "tool"),
    [
        ("qwen", "update_plan"),
        ("pi", "complete_task"),
        ("gemini", "view"),
        ("generic", "Read"),
        ("claude", "read_file"),
    ],
)
def test_another_agents_name_may_be_anyones_tool(agent: str, tool: str) -> None:
    """I1: an extension or a server may call its own tool as some other agent calls one that only reads."""
    assert classify(ReadCall(tool, b"{}"), RULES.of(agent)).cls != "read_only"


def test_text_for_another_agents_shell_is_not_read_as_shell_text() -> None:
    assert classify(ReadCall("bash", b'{"command": "ls"}'), RULES.of("claude")).cls != "read_only"


def test_each_agent_has_a_shell_and_a_file_tool_that_is_known() -> None:
    for agent in {t["agent"] for t in TOOLS}:
        names = {t.get("hook", t["tool"]) for t in TOOLS if t["agent"] == agent}
        assert names & RULES.shells.keys() and names & RULES.files.keys()


def test_a_new_field_of_a_shell_makes_a_command_unknown() -> None:
    for tool, shell in RULES.shells.items():
        plain = {shell.field: "git status"}
        assert classify(ReadCall(tool, json.dumps(plain).encode()), RULES).cls == "read_only"
        assert classify(ReadCall(tool, json.dumps({**plain, "new": 1}).encode()), RULES).cls == "unknown"
        assert classify(ReadCall(tool, json.dumps({**plain, "new": None}).encode()), RULES).cls == "read_only"


def test_what_the_rules_say_of_fields_is_declared_by_an_agent() -> None:
    """A field that no agent has any more is no longer known to change nothing."""
    hooks_only = {"wait_for_previous", "dir_path"}  # Gemini CLI takes them, and declares the first for some tools
    declared: dict[str, set[str]] = {}
    for t in TOOLS:
        declared.setdefault(t.get("hook", t["tool"]), set()).update(t["fields"], *(i for i, _ in t["calls"]))
    for tool, shell in RULES.shells.items():
        if tool in declared:
            assert shell.ignore - hooks_only - {"description"} <= declared[tool], tool
    for tool, kinds in RULES.files.items():
        for known in kinds:
            own = {known.path, known.content, known.old, known.new} - {""} | known.ignore - hooks_only
            assert own <= declared[tool], tool

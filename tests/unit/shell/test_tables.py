"""Every tool that the tested versions of the agents declare: its class, and that its fields are known. The table is
written by hand; tests/contract/test_tools.py holds it against the real CLIs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wal_agent.shell.classify import classify
from wal_agent.shell.rules import load_rules

TOOLS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("agents_tools.json").read_text("utf-8"))
CALLS = [(t["agent"], t.get("hook", t["tool"]), json.dumps(i), cls) for t in TOOLS for i, cls in t["calls"]]
RULES = load_rules()


@pytest.mark.parametrize(("agent", "tool", "input", "cls"), CALLS)
def test_the_class_of_every_tool_of_every_agent(agent: str, tool: str, input: str, cls: str) -> None:
    rules = RULES.of(agent)
    found = classify(tool, input.encode(), rules)
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
    assert classify(tool, b"{}", RULES.of(agent)).cls != "read_only"


def test_text_for_another_agents_shell_is_not_read_as_shell_text() -> None:
    assert classify("bash", b'{"command": "ls"}', RULES.of("claude")).cls != "read_only"


def test_each_agent_has_a_shell_and_a_file_tool_that_is_known() -> None:
    for agent in {t["agent"] for t in TOOLS}:
        names = {t.get("hook", t["tool"]) for t in TOOLS if t["agent"] == agent}
        assert names & RULES.shells.keys() and names & RULES.files.keys()


def test_a_new_field_of_a_shell_makes_a_command_unknown() -> None:
    for tool, shell in RULES.shells.items():
        plain = {shell.field: "git status"}
        assert classify(tool, json.dumps(plain).encode(), RULES).cls == "read_only"
        assert classify(tool, json.dumps({**plain, "new": 1}).encode(), RULES).cls == "unknown"
        assert classify(tool, json.dumps({**plain, "new": None}).encode(), RULES).cls == "read_only"


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

"""What the plugin says and hears."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Compacting,
    Deny,
    ModelRequest,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.opencode.hooks import parse, render

TOOL = {"session": "s", "inner": "", "tool": "bash", "call": "c", "input": {"command": "ls"}}


def said(**more: Any) -> bytes:
    return json.dumps({**TOOL, **more}).encode()


def test_events() -> None:
    assert parse("init", b"{}") == OtherEvent("init")
    assert parse("session", said(source="resume")) == SessionStarted("s", "resume")
    assert parse("turn", said(prompt="hi")) == TurnStarted("s", "hi")
    assert parse("request", said()) == ModelRequest("s")
    assert parse("approval", said(what="bash ls")) == AwaitingApproval("s", "bash ls")
    assert parse("compacting", said(done=False)) == Compacting("s", done=False)
    assert parse("compacting", said(done=True)) == Compacting("s", done=True)
    assert parse("completed", said()) == TurnCompleted("s")
    assert parse("before", said(inner="t")) == ToolStarting("s", "bash", b'{"command": "ls"}', "c", "t")


@pytest.mark.parametrize(
    ("tool", "metadata", "wrong", "clean"),
    [
        ("bash", {"exit": 0}, False, True),
        ("bash", {"exit": 3}, False, False),
        ("bash", {"exit": None}, False, False),
        ("bash", {"exit": False}, False, False),
        ("bash", {}, False, False),
        ("write", {}, False, True),
        ("mcp_x", {}, True, False),
    ],
)
def test_how_a_call_ended(tool: str, metadata: Any, wrong: bool, clean: bool) -> None:
    event = parse("after", said(tool=tool, result={"output": "x", "metadata": metadata}, wrong=wrong))
    assert isinstance(event, ToolEnded)
    assert (event.failed, event.clean) == (wrong, clean)
    stopped = tool == "bash" and metadata.get("exit") is None  # I8: at its time limit, or as it was told to
    assert bool(event.cut) is stopped
    assert json.loads(event.result)["output"] == "x"


@pytest.mark.parametrize(
    "bad", [b"", b"{}", b"[]", b"\xff", said(input=[]), said(input=None), said(call=1), b"[" * 9999]
)
def test_what_is_not_understood_is_denied(bad: bytes) -> None:
    with pytest.raises(ValueError):
        parse("before", bad)


@given(st.sampled_from(["before", "after", "turn", "session", "completed"]), st.binary(max_size=40))
def test_any_bytes(event: str, payload: bytes) -> None:
    with pytest.raises(ValueError):
        parse(event, payload)


def test_answers() -> None:
    assert json.loads(render("before", Allow())) == {"decision": "allow"}
    assert json.loads(render("before", Deny('"no"\n', stop=True))) == {
        "decision": "deny",
        "reason": '"no"\n',
        "stop": True,
    }
    assert json.loads(render("turn", Deny("no")))["decision"] == "allow", "only a tool can be refused"

"""Hook payloads in, answers out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import AGENTS
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Deny,
    HookEvent,
    ModelRequest,
    OtherEvent,
    SessionEnded,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.gemini.hooks import EVENTS

GEMINI = AGENTS["gemini"]
BASE = '{"session_id":"s","transcript_path":"/t","cwd":"/w","hook_event_name":"x","timestamp":"2026"'
CALL = ',"tool_name":"run_shell_command","tool_input":{"command":"a  \\u00e9",  "n":1.0}'


@pytest.mark.parametrize(
    ("event", "rest", "meant"),
    [
        ("SessionStart", ',"source":"resume"', SessionStarted("s", "resume")),
        ("BeforeAgent", ',"prompt":"p\\n"', TurnStarted("s", "p\n")),
        ("AfterAgent", ',"prompt":"p","prompt_response":"r"', TurnCompleted("s")),
        ("PreCompress", ',"trigger":"auto"', ModelRequest("s")),
        ("Notification", ',"notification_type":"ToolPermission","message":"m"', AwaitingApproval("s", "m")),
        ("SessionEnd", ',"reason":"exit"', SessionEnded("s", "exit")),
        ("BeforeTool", CALL, ToolStarting("s", "run_shell_command", b'{"command":"a  \\u00e9",  "n":1.0}')),
        ("Unheard", "", OtherEvent("Unheard")),
    ],
)
def test_what_a_hook_says(event: str, rest: str, meant: HookEvent) -> None:
    assert GEMINI.parse(event, (BASE + rest + "}").encode()) == meant


@pytest.mark.parametrize(
    ("response", "failed", "kept"),
    [
        ({"llmContent": "out", "returnDisplay": {"originalContent": "x" * 9}}, False, {"llmContent": "out"}),
        ({"llmContent": [{"text": "a"}], "error": None}, False, {"llmContent": [{"text": "a"}]}),
        (
            {"llmContent": "", "error": {"message": "no", "type": "t"}},
            True,
            {"llmContent": "", "error": {"message": "no", "type": "t"}},
        ),
        ({}, False, {"llmContent": ""}),
    ],
)
def test_an_end_keeps_what_the_model_got(response: object, failed: bool, kept: object) -> None:
    payload = (BASE + CALL + ',"tool_response":' + json.dumps(response) + "}").encode()
    event = GEMINI.parse("AfterTool", payload)
    assert isinstance(event, ToolEnded)
    assert (event.failed, json.loads(event.result)) == (failed, kept)


@pytest.mark.parametrize(
    ("llm", "clean"),
    [
        ("Output: all well, Exit Code: none", True),
        ("Output: ok\nProcess Group PGID: 7", True),
        ("Output: no\nExit Code: 1\nProcess Group PGID: 7", False),
        ("Exit Code: 128", False),
        ("Output: (empty)\nSignal: 9", False),
        ([{"text": "Error: no such file"}], False),
    ],
)
def test_a_command_that_went_wrong_is_no_clean_end(llm: object, clean: bool) -> None:
    payload = (BASE + CALL + ',"tool_response":' + json.dumps({"llmContent": llm}) + "}").encode()
    event = GEMINI.parse("AfterTool", payload)
    assert isinstance(event, ToolEnded) and (event.clean, event.failed) == (clean, False)


def test_half_of_a_surrogate_pair_does_not_lose_a_call() -> None:
    """JSON.stringify writes a cut emoji so; a refused payload is a denied call, or a lost result."""
    said = rb',"tool_name":"t","tool_input":{"a":"\ud83d"}'
    assert GEMINI.parse("BeforeTool", BASE.encode() + said + b"}") == ToolStarting("s", "t", rb'{"a":"\ufffd"}')
    ended = GEMINI.parse("AfterTool", BASE.encode() + said + rb',"tool_response":{"llmContent":"\ude00 \\ud83d"}}')
    assert isinstance(ended, ToolEnded) and ended.result == rb'{"llmContent":"\ufffd \\ud83d"}'
    assert GEMINI.parse("BeforeAgent", BASE.encode() + rb',"prompt":"\ud83d"}') == TurnStarted("s", "\ufffd")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"session_id":1}',
        (BASE + "}").encode(),
        (BASE + ',"tool_name":"t","tool_input":[]}').encode(),
        (BASE + ',"tool_name":"t","tool_input":"{}"}').encode(),
        b'{"session_id":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_understood_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"hook|object"):
        GEMINI.parse("BeforeTool", payload)


@given(st.sampled_from(EVENTS), st.binary(max_size=80))
def test_junk_is_never_another_error(event: str, payload: bytes) -> None:
    try:
        GEMINI.parse(event, payload)
    except ValueError:
        return


@given(st.text())
def test_a_refusal_is_one_line_that_the_shell_line_takes(reason: str) -> None:
    said = GEMINI.render("BeforeTool", Deny(reason))
    assert said.startswith(b"wal-agent:say {")
    assert said.endswith(b"}\0")
    assert said.count(b"\0") == 1
    assert b"\n" not in said
    assert json.loads(said[14:-1]) == {"decision": "deny", "reason": reason}


def test_the_other_answers() -> None:
    assert GEMINI.render("BeforeTool", Allow()) == b"wal-agent:allow\0"
    assert GEMINI.render("AfterTool", Deny("x")) == b"wal-agent:allow\0", "it ran: a refusal would replace its result"
    assert json.loads(GEMINI.render("BeforeAgent", Deny("x"))[14:-1]) == {"decision": "deny", "reason": "x"}
    stop = json.loads(GEMINI.render("BeforeTool", Deny("x", stop=True))[14:-1])
    assert stop == {"decision": "deny", "reason": "x", "continue": False, "stopReason": "x"}

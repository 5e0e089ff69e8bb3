"""conversation/transcript.py: what each agent's lines say; hostile lines are bounded."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.conversation.transcript import MAX_TEXT, Line, parse_line, parse_lines, read_lines, words_of

WORDS = "the heron sleeps"
AT = "2026-11-22T14:02:13.000Z"
LINES: dict[str, tuple[dict[str, Any], str]] = {
    "claude prompt": ({"type": "user", "timestamp": AT, "message": {"role": "user", "content": WORDS}}, "user"),
    "claude answer": (
        {
            "type": "assistant",
            "timestamp": AT,
            "message": {"role": "assistant", "content": [{"type": "text", "text": WORDS}]},
        },
        "assistant",
    ),
    "claude result": (
        {
            "type": "user",
            "timestamp": AT,
            "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": WORDS}]},
        },
        "tool",
    ),
    "gemini": ({"id": "1", "type": "gemini", "timestamp": AT, "content": WORDS}, "assistant"),
    "codex": (
        {
            "timestamp": AT,
            "type": "response_item",
            "payload": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": WORDS}]},
        },
        "assistant",
    ),
    "codex result": (
        {"timestamp": AT, "type": "response_item", "payload": {"type": "function_call_output", "output": WORDS}},
        "tool",
    ),
    "pi": (
        {
            "type": "message",
            "timestamp": AT,
            "message": {"role": "toolResult", "content": [{"type": "text", "text": WORDS}]},
        },
        "tool",
    ),
    "opencode": (
        {
            "info": {"role": "assistant", "time": {"created": 1}},
            "timestamp": AT,
            "parts": [{"type": "text", "text": WORDS}],
        },
        "assistant",
    ),
    "kimi": (
        {
            "type": "context.append_loop_event",
            "time": 1_795_356_133_000,
            "event": {"type": "content.part", "part": {"type": "text", "text": WORDS}},
        },
        "assistant",
    ),
    "kimi result": (
        {
            "type": "context.append_loop_event",
            "time": 1_795_356_133_000,
            "event": {"type": "tool.result", "toolCallId": "x", "result": {"output": WORDS}},
        },
        "tool",
    ),
    "copilot": ({"type": "user.message", "timestamp": AT, "data": {"content": WORDS}}, "user"),
    "copilot answer": ({"type": "assistant.message", "timestamp": AT, "data": {"content": WORDS}}, "assistant"),
}


@pytest.mark.parametrize("name", sorted(LINES))
def test_role_time_and_words_of_each_format(name: str) -> None:
    given, role = LINES[name]
    found = parse_line(json.dumps(given).encode())
    assert found is not None and WORDS in found.text
    assert (found.role, found.time) == (role, 1_795_356_133.0)


def test_what_stands_around_a_message_is_left_out() -> None:
    """Claude Code's lines name modes, prices and settings beside the message."""
    around = {"permissionMode": "bypassPermissions", "promptSource": "sdk", "effort": "medium"}
    message = {"role": "assistant", "content": [{"type": "text", "text": WORDS}], "usage": {"service_tier": "standard"}}
    found = parse_line(json.dumps({**around, "type": "assistant", "message": message}).encode())
    assert found is not None and found.text == WORDS


def test_the_names_of_copilots_events_are_no_words() -> None:
    names = ("messageId", "originatingMessageId", "interactionId", "turnId", "parentAgentTaskId", "apiCallId")
    data = {"content": WORDS, "transformedContent": f"<time>now</time> {WORDS}", **dict.fromkeys(names, "0e1e")}
    found = parse_line(json.dumps({"type": "assistant.message", "timestamp": AT, "data": data}).encode())
    assert found is not None and (found.role, found.text) == ("assistant", WORDS)


NOBODY = [  # lines of the real programs, shortened
    {"type": "attachment", "attachment": {"type": "environment", "rendered": WORDS}, "rendered": WORDS},
    {"type": "system", "subtype": "stop_hook_summary", "hookInfos": [{"command": f"bash -c '{WORDS}'"}]},
    {"type": "event_msg", "payload": {"type": "item_completed", "item": {"content": WORDS}}},
    {"type": "response_item", "payload": {"type": "message", "role": "developer", "content": [{"text": WORDS}]}},
    {"type": "hook.start", "data": {"hookType": "preToolUse", "input": {"command": WORDS}}},
    {"type": "system.message", "data": {"role": "system", "content": WORDS}},
    {"type": "system", "systemPayload": {"uiEvent": {"response_text": WORDS}}, "message": None},
    {"sessionId": "s", "kind": WORDS},
    {"$set": {"lastUpdated": WORDS}},
    {"type": "part", "message": "msg_1", "data": {"type": "step-finish", "reason": WORDS}},
    {"type": "message", "id": "msg_1", "data": {"role": "user", "agent": WORDS}},
    {"type": "user", "content": f"<system-reminder>\n{WORDS}\n</system-reminder>"},
    {"type": "user", "content": [{"text": f"<session_context>{WORDS}</session_context>"}]},
]


@pytest.mark.parametrize("line", NOBODY, ids=str)
def test_what_nobody_said_is_left_out(line: dict[str, Any]) -> None:
    assert parse_line(json.dumps(line).encode()) is None


def test_a_reminder_is_cut_out_of_what_was_said() -> None:
    """And ids, names of models and copies for the screen stand in no text."""
    block = {"type": "text", "text": f"{WORDS}<system-reminder>be good</system-reminder> well"}
    call = {"type": "toolCall", "id": "toolu_0011", "name": "bash", "arguments": {"command": "ls"}}
    message = {"role": "assistant", "model": "m", "responseId": "msg_1", "content": [block, call]}
    found = parse_line(json.dumps({"type": "message", "id": "e1", "message": message}).encode())
    assert found is not None and found.text == f"{WORDS} well\nbash\nls"


def test_parts_that_are_lines_of_their_own_have_their_messages_role() -> None:
    """OpenCode; a part whose message is not known is the assistant's."""
    lines = [
        {"type": "message", "id": "msg_1", "data": {"role": "user"}},
        {"type": "part", "message": "msg_1", "data": {"type": "text", "text": "go"}},
        {"type": "part", "message": "msg_2", "data": {"type": "text", "text": "gone"}},
        {
            "type": "part",
            "message": "msg_1",
            "data": {"type": "tool", "tool": "bash", "callID": "c", "state": {"output": "x"}},
        },
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert [(line.role, line.text) for line in parse_lines(data)] == [
        ("user", "go"), ("assistant", "gone"), ("tool", "bash\nx"),
    ]  # fmt: skip


def test_results_that_a_user_message_carries_are_the_tools() -> None:
    parts = [{"functionResponse": {"id": "1", "name": "ls", "response": {"output": WORDS}}}]
    for line in ({"type": "user", "content": parts}, {"type": "user", "message": {"role": "user", "parts": parts}}):
        found = parse_line(json.dumps(line).encode())
        assert found is not None and (found.role, found.text) == ("tool", f"ls\n{WORDS}")


def test_what_a_line_says_twice_is_read_once() -> None:
    """Claude Code keeps a tool's output for the model and for its own screen."""
    result = {"role": "user", "content": [{"type": "tool_result", "content": WORDS}]}
    found = parse_line(json.dumps({"type": "user", "message": result, "toolUseResult": {"stdout": WORDS}}).encode())
    assert found is not None and found.text == WORDS


def test_what_is_no_talk_is_left_out() -> None:
    blob = "QUJD" * 300
    copies = {"type": "api-request-blob", "content": WORDS}
    assert parse_line(json.dumps(copies).encode()) is None
    found = parse_line(json.dumps({"role": "user", "id": WORDS, "content": blob, "text": "yes"}).encode())
    assert found is not None and found.text == "yes"


@given(
    st.binary(max_size=300)
    | st.builds(
        lambda v: json.dumps(v).encode(),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
        ),
    )
)
def test_any_line_can_be_read(data: bytes) -> None:
    found = parse_line(data)
    assert found is None or (isinstance(found, Line) and len(found.text) <= MAX_TEXT * 2)


def test_deep_and_long_lines_are_bounded() -> None:
    assert parse_line(b'{"a":' * 100_000) is None
    long = parse_line(json.dumps({"role": "user", "content": ["word " * 1000] * 100}).encode())
    assert long is not None and len(long.text) < MAX_TEXT + 100


def test_lines_are_read_on_from_where_the_last_whole_one_ended() -> None:
    one = json.dumps({"role": "user", "content": "one"}).encode() + b"\n"
    two = json.dumps({"role": "user", "content": "two"}).encode()
    first = list(read_lines(io.BytesIO(one + two)))
    assert [(line.at, line.text) for line in first] == [(0, "one")]
    again = list(read_lines(io.BytesIO(one + two + b"\n"), len(one)))
    assert [(line.at, line.text) for line in again] == [(len(one), "two")]


@pytest.mark.parametrize(
    "line",
    [
        {
            "type": "assistant",
            "message": {"role": "assistant", "content": [{"type": "text", "text": WORDS}], "id": "x y"},
        },
        {
            "type": "message",
            "message": {"content": [{"type": "text", "text": WORDS}], "api": "a", "stopReason": "stop"},
        },
        {"type": "response_item", "payload": {"content": [{"type": "output_text", "text": WORDS}], "phase": "final"}},
        {"type": "gemini", "content": WORDS, "model": "gemini pro"},
        {"type": "assistant", "message": {"parts": [{"text": "a thought", "thought": True}, {"text": WORDS}]}},
        {"type": "assistant.message", "data": {"content": WORDS, "turn": "the first"}},
    ],
)
def test_the_words_of_a_message_are_without_what_else_its_line_says(line: dict[str, Any]) -> None:
    assert words_of(json.dumps(line).encode()) == WORDS


@given(st.recursive(st.none() | st.text() | st.integers(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_hostile_lines_have_no_words_or_text(value: Any) -> None:
    assert isinstance(words_of(json.dumps(value).encode()), str)
    for key in ("message", "content", "parts"):
        assert isinstance(words_of(json.dumps({key: value}).encode()), str)


_KEY = st.sampled_from(["type", "role", "content", "parts", "message", "payload", "data", "text", "time", "timestamp"])
_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["go", "\ud83d", "tool_result", AT, "user"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEY, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_KEY, _VALUE, max_size=6))
def test_whatever_a_line_holds_its_words_can_be_stored(fields: dict[str, object]) -> None:
    """An agent writes half an emoji as an escape (a cut string), and a stranger any value under any key."""
    data = json.dumps(fields).encode()
    line = parse_line(data)
    (words_of(data) + (line.text if line is not None else "")).encode()


def test_half_an_emoji_costs_only_itself() -> None:
    data = json.dumps({"type": "user", "content": "go \ud83d on"}).encode()
    found = parse_line(data)
    assert found is not None and found.text == words_of(data) == "go \ufffd on"

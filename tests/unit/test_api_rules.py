"""Each API takes a conversation of its own form, and refuses what its real one refuses for good."""

from __future__ import annotations

from copy import deepcopy

import pytest

from wal_agent.api_rules import Check, Json, check_anthropic, check_chat, check_gemini, check_responses

HELLO: Json = {"role": "user", "content": "hello"}


def _use(*ids: str) -> Json:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "t", "input": {}} for id in ids]}


def _result(*ids: str) -> Json:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": ""} for id in ids]}


def _call(*ids: str) -> Json:
    calls = [{"id": id, "type": "function", "function": {"name": "t", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _tool(id: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": ""}


def _item(kind: str, id: str) -> Json:
    return {"type": kind, "call_id": id, "name": "t", "arguments": "{}", "output": ""}


def _turn(role: str, key: str, *names: str) -> Json:
    return {"role": role, "parts": [{key: {"name": name}} for name in names]}


ASKED = {"role": "user", "parts": [{"text": "hello"}]}
ITEM = {"type": "message", "role": "user", "content": "hello"}
VALID: dict[Check, Json] = {
    check_anthropic: {"messages": [HELLO, _use("a", "b"), _result("b"), _result("a"), HELLO, _use("c"), _result("c")]},
    check_chat: {"messages": [HELLO, _call("a", "b"), _tool("b"), _tool("a"), HELLO]},
    check_responses: {
        "input": [
            ITEM,
            _item("function_call", "a"),
            _item("custom_tool_call", "b"),
            ITEM,
            _item("custom_tool_call_output", "b"),
            _item("function_call_output", "a"),
        ]
    },
    check_gemini: {"contents": [ASKED, _turn("model", "functionCall", "a"), _turn("user", "functionResponse", "a")]},
}


@pytest.mark.parametrize("check", VALID)
def test_a_valid_conversation_is_taken(check: Check) -> None:
    assert check(VALID[check]) == []
    assert check({}) == []


@pytest.mark.parametrize("check", VALID)
def test_each_message_with_a_call_or_a_result_needs_the_other(check: Check) -> None:
    """Without any one of them the conversation is refused."""
    key = next(iter(VALID[check]))
    for n, message in enumerate(VALID[check][key]):
        body = deepcopy(VALID[check])
        del body[key][n]
        if message in (HELLO, ITEM, ASKED):
            continue
        assert check(body), f"without {message}"


@pytest.mark.parametrize("check", [check_anthropic, check_chat, check_gemini])
def test_a_result_belongs_right_behind_its_call(check: Check) -> None:
    key = next(iter(VALID[check]))
    between = {"contents": [ASKED, {"role": "model", "parts": [{"text": "x"}]}]}.get(key, [{**HELLO}, {**HELLO}])
    between = [between[0], {**between[1], "role": "model" if key == "contents" else "assistant"}]
    body = deepcopy(VALID[check])
    body[key][2:2] = between
    assert check(body)


def test_anthropic() -> None:
    """Ids have a form (https://docs.anthropic.com/en/api/messages); results are first in their message, and unique."""
    for faulty in (
        [HELLO, _use("a/1"), _result("a/1")],
        [HELLO, _use("call.1"), _result("call.1")],
        [HELLO, _use(""), _result("")],
        [HELLO, _use("a"), _result("a", "a")],
        [HELLO, _use("a"), HELLO, _result("a")],
        [HELLO, _use("a"), _result("a"), _use("a"), _result("a")],
        [_use("a"), _result("a")],
        [HELLO, {"role": "tool", "content": "x"}],
        [HELLO, {"role": "assistant", "content": [{"type": "text", "text": ""}]}],
        [HELLO, {"role": "assistant", "content": []}, HELLO],
    ):
        assert check_anthropic({"messages": faulty}), faulty
    assert "[a-zA-Z0-9_-]+" in check_anthropic({"messages": [HELLO, _use("a/1"), _result("a/1")]})[0]
    mixed = {"role": "user", "content": [*_result("a")["content"], {"type": "text", "text": "and"}]}
    assert check_anthropic({"messages": [HELLO, _use("a"), mixed]}) == []


def test_chat() -> None:
    for faulty in (
        [HELLO, _call("a" * 41), _tool("a" * 41)],
        [HELLO, _call(""), _tool("")],
        [HELLO, _call("a", "a"), _tool("a"), _tool("a")],
        [HELLO, _call("a"), _tool("a"), _tool("a")],
        [HELLO, {**_call("a"), "tool_calls": []}],
        [HELLO, {"role": "model", "content": "x"}],
        [{"role": "user", "content": None}],
    ):
        assert check_chat({"messages": faulty}), faulty
    named = _call("a")
    named["tool_calls"][0]["function"]["name"] = "read (extension)"
    assert check_chat({"messages": [HELLO, named, _tool("a")]})


def test_responses() -> None:
    for faulty in (
        [_item("function_call", "a" * 65), _item("function_call_output", "a" * 65)],
        [_item("function_call", "a"), _item("custom_tool_call_output", "a")],
        [_item("function_call_output", "a"), _item("function_call", "a")],
        [*[_item("function_call", "a")] * 2, _item("function_call_output", "a")],
        [_item("function_call", "a"), *[_item("function_call_output", "a")] * 2],
        [{"type": "message", "role": "tool", "content": "x"}],
    ):
        assert check_responses({"input": faulty}), faulty


def test_gemini() -> None:
    asked, told = _turn("model", "functionCall", "a"), _turn("user", "functionResponse", "a")
    for faulty in (
        [ASKED, asked, _turn("user", "functionResponse", "a", "a")],
        [ASKED, asked, _turn("user", "functionResponse", "b")],
        [ASKED, _turn("model", "functionCall", "a b"), _turn("user", "functionResponse", "a b")],
        [asked, told],
        [{"role": "user", "parts": []}],
        [{"role": "tool", "parts": [{"text": "x"}]}],
    ):
        assert check_gemini({"contents": faulty}), faulty
    ids = deepcopy([ASKED, asked, told])
    ids[1]["parts"][0]["functionCall"]["id"] = "1"
    ids[2]["parts"][0]["functionResponse"]["id"] = "2"
    assert check_gemini({"contents": ids})

"""What a session file holds of people's words (`Reconciled.prompts`): a crash may leave a file without any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wal_agent.agents import AGENTS

S = "6e68637d-d547-4d4b-aa1f-b44129f5d965"
AT = "2026-01-01T00:00:00.000Z"


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def claude(content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"type": "user", "uuid": "u1", "parentUuid": None, "timestamp": AT, "message": message, **more}


def codex(text: str) -> dict[str, Any]:
    payload = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"type": "response_item", "timestamp": AT, "payload": payload}


def gemini(*parts: Any) -> dict[str, Any]:
    return {"id": "m1", "type": "user", "timestamp": AT, "content": list(parts)}


def qwen(kind: str) -> dict[str, Any]:
    return {"uuid": "q1", "parentUuid": None, "type": kind, "message": {"role": "user", "parts": [{"text": "do it"}]}}


def pi(role: str) -> dict[str, Any]:
    message = {"role": role, "content": [part("do it")]}
    return {"type": "message", "id": "00000001", "parentId": None, "timestamp": AT, "message": message}


def opencode(role: str) -> list[dict[str, Any]]:
    of = {"session": S, "created": 1}
    return [
        {"type": "session", "id": S, "row": {"title": "t"}},
        {"type": "message", "id": "msg_1", **of, "data": {"role": role}},
        {"type": "part", "id": "prt_1", **of, "message": "msg_1", "data": part("do it")},
    ]


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "out"}
RESPONSE = {"functionResponse": {"id": "t", "name": "ls", "response": {}}}
CONTEXT = {"text": "<session_context>\nx</session_context>"}
WITH: dict[str, list[list[dict[str, Any]]]] = {
    "codex": [[codex("do it")]],
    "gemini": [[gemini({"text": "do it"})], [gemini(CONTEXT, {"text": "do it"})]],
    "qwen": [[qwen("user")]],
    "pi": [[pi("user")]],
    "opencode": [opencode("user")],
}
WITHOUT: dict[str, list[list[dict[str, Any]]]] = {
    "claude": [[claude("caveat", isMeta=True)], [claude([RESULT])]],
    "codex": [[codex("<environment_context>x</environment_context>")]],
    "gemini": [[gemini(CONTEXT)], [gemini(RESPONSE)]],
    "qwen": [[qwen("tool_result")]],
    "pi": [[pi("assistant")]],
    "opencode": [opencode("assistant"), opencode("user")[:2]],
    "copilot": [[{"type": "session.start", "data": {"sessionId": S}}]],
}


def heard(name: str, records: list[dict[str, Any]]) -> tuple[str, ...] | None:
    main = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    return AGENTS[name].reconcile(main, S, Path("/w"), ()).prompts


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_session_without_a_persons_words(name: str) -> None:
    assert {heard(name, records) for records in [[], *WITHOUT[name]]} == {()}


@pytest.mark.parametrize("name", sorted(WITH))
def test_a_session_with_them(name: str) -> None:
    assert {heard(name, records) for records in WITH[name]} == {None}


def test_claudes_file_may_lack_a_prompt_that_the_log_has() -> None:
    assert heard("claude", [claude("one"), claude("caveat", isMeta=True), claude([part("two")])]) == ("one", "two")


def test_copilot_keeps_them_as_its_hooks_tell_them() -> None:
    def said(text: str, **more: Any) -> dict[str, Any]:
        return {"type": "user.message", "data": {"content": text, "transformedContent": f"now: {text}"}, **more}

    assert heard("copilot", [said("one"), said("inner", agentId="sub"), said("two")]) == ("one", "two")


def test_an_agent_that_is_no_such_program_tells_of_none() -> None:
    assert AGENTS["generic"].reconcile(b"", S, Path("/w"), ()).prompts is None

"""A session's id comes from outside and becomes part of paths, arguments and records, so each module takes
only what can be an id."""

from __future__ import annotations

import json

import pytest

from wal_agent.agents import AGENTS
from wal_agent.agents.base import TurnStarted

TURNS = {
    "gemini": ("BeforeAgent", "session_id", {"prompt": "x"}),
    "qwen": ("UserPromptSubmit", "session_id", {"prompt": "x"}),
    "claude": ("UserPromptSubmit", "session_id", {"prompt": "x"}),
    "codex": ("UserPromptSubmit", "session_id", {"prompt": "x"}),
    "copilot": ("userPromptSubmitted", "sessionId", {"prompt": "x"}),
    "opencode": ("turn", "session", {"prompt": "x"}),
    "pi": ("before_agent_start", "session", {"prompt": "x"}),
}
GOOD = ["3f2a91c0-1111-2222-3333-444455556666", "ses_5a1b2c3dffeXYZ", "s"]
BAD = ["", "a\0b", "../x", "a/b", "a\\b", "-p", ".", "a\n", "a b", "é", "\u202ea", "a" * 256]


@pytest.mark.parametrize("agent", TURNS)
@pytest.mark.parametrize("session", GOOD)
def test_what_is_an_id(agent: str, session: str) -> None:
    event, key, more = TURNS[agent]
    assert AGENTS[agent].parse(event, json.dumps({key: session, **more}).encode()) == TurnStarted(session, "x")


@pytest.mark.parametrize("agent", TURNS)
@pytest.mark.parametrize("session", BAD)
def test_what_is_none(agent: str, session: str) -> None:
    event, key, more = TURNS[agent]
    with pytest.raises(ValueError):
        AGENTS[agent].parse(event, json.dumps({key: session, **more}).encode())


@pytest.mark.parametrize(
    ("agent", "event", "key", "more"),
    [
        ("claude", "PreToolUse", "agent_id", {"session_id": "s", "tool_name": "Bash", "tool_input": {}}),
        ("codex", "PreModelRequest", "agent_id", {"session_id": "s"}),
        ("opencode", "before", "inner", {"session": "s", "tool": "bash", "call": "1", "input": {}}),
        ("copilot", "preToolUse", "parentAgentId", {"sessionId": "s", "toolName": "bash", "toolArgs": {}}),
    ],
)
def test_a_subagents_too(agent: str, event: str, key: str, more: dict[str, object]) -> None:
    AGENTS[agent].parse(event, json.dumps({**more, key: "a1"}).encode())
    with pytest.raises(ValueError):
        AGENTS[agent].parse(event, json.dumps({**more, key: "a/../b"}).encode())

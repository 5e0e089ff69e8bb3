"""Esc fires no hook; the session says that the agent waits. The lines are the programs' own."""

from __future__ import annotations

import json

import pytest

from wal_agent.agents import AGENTS

STOPS: dict[str, list[dict[str, object]]] = {
    "claude": [
        {
            "type": "user",
            "isSidechain": False,
            "message": {"role": "user", "content": [{"type": "text", "text": "[Request interrupted by user]"}]},
            "uuid": "92e55707-ec04-4e9b-b2ad-fbc257196450",
        }
    ],
    "codex": [{"type": "event_msg", "payload": {"type": "turn_aborted", "reason": "interrupted"}}],
    "copilot": [{"type": "abort", "data": {"reason": "user initiated"}, "id": "a", "parentId": "b"}],
    "gemini": [{"id": "1d19", "type": "info", "content": "Request cancelled."}, {"$set": {"lastUpdated": "x"}}],
    "qwen": [
        {
            "type": "system",
            "subtype": "ui_telemetry",
            "systemPayload": {"uiEvent": {"event.name": "qwen-code.tool_call", "status": "cancelled"}},
        },
        {"type": "tool_result", "message": {"role": "user", "parts": []}},
    ],
}
NEXT: dict[str, dict[str, object]] = {
    "claude": {"type": "user", "message": {"role": "user", "content": "go on"}},
    "codex": {"type": "event_msg", "payload": {"type": "task_started"}},
    "copilot": {"type": "user.message", "data": {"content": "go on"}, "id": "c", "parentId": "a"},
    "gemini": {"id": "1d20", "type": "user", "content": [{"text": "go on"}]},
    "qwen": {"type": "user", "message": {"role": "user", "parts": [{"text": "go on"}]}},
}


@pytest.mark.parametrize("name", STOPS)
def test_a_stop_counts_until_the_next_prompt(name: str) -> None:
    stopped = AGENTS[name].capabilities.stopped_turn
    assert stopped is not None
    lines = [json.dumps(line).encode() + b"\n" for line in (*STOPS[name], NEXT[name])]
    assert stopped(b"".join(lines[:-1])) and not stopped(b"".join(lines)) and not stopped(b"")
    assert not stopped(b"junk " + lines[0].replace(b'"', b"'"))

"""Words for calls that are put back into a session from the log, whatever the agent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from wal_agent.agents.base import LoggedCall
from wal_agent.agents.session_files import Json, decode_json

MAX_RESULT = 40_000  # characters of one result, as in Gemini's own cut


def unknown_result(call: LoggedCall) -> str:
    """The result of a call whose outcome nobody knows."""
    return "outcome unknown: " + (call.note or "the machine was lost while this call ran.")


def noted_result(text: str, call: LoggedCall) -> str:
    """A result's text, capped, with what the log has to say of it."""
    text = capped_text(text, call.call)
    return f"{text}\n\n[wal-agent: {call.note}]" if call.note else text


def capped_text(text: str, call: int) -> str:
    if len(text) <= MAX_RESULT:
        return text
    head, tail = MAX_RESULT // 5, MAX_RESULT - MAX_RESULT // 5
    cut = len(text) - MAX_RESULT
    return f"{text[:head]}\n\n[wal-agent: {cut} characters left out; `wal-agent log` has call {call}]\n\n{text[-tail:]}"


def call_input(call: LoggedCall) -> Json:
    """A call's input as an object; empty where it cannot be read."""
    try:
        value = decode_json(call.input)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def end_time(timestamp: Any) -> float:
    """When a call of a session file had ended, in seconds since 1970; unknown counts as late enough."""
    try:
        at = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return float("inf")
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

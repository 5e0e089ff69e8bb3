"""What bytes appended to a session file tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.jsonl import encode, records, well_formed

_STATUS: dict[str, Literal["done", "failed", "cancelled"]] = {
    "success": "done",
    "error": "failed",
    "cancelled": "cancelled",
}


def seen_calls(appended: bytes) -> list[SeenCall]:
    """From the telemetry that Qwen Code keeps in the session for its own screen: one event for each call that is over,
    with its input, which a result alone does not tell."""
    found: list[SeenCall] = []
    for record, _ in records(appended):
        payload = record.get("systemPayload") if record is not None else None
        event = payload.get("uiEvent") if isinstance(payload, dict) else None
        if record is None or not isinstance(event, dict) or event.get("event.name") != "qwen-code.tool_call":
            continue
        status = _STATUS.get(str(event.get("status")))
        if status is not None:
            refused = status == "cancelled" and event.get("decision") == "reject"
            tool, input = str(event.get("function_name", "")), well_formed(encode(event.get("function_args") or {}))
            found.append(SeenCall(tool, input, "refused" if refused else status, str(record.get("uuid", ""))))
    return found


def unhooked(appended: bytes) -> bool:
    """A user's record is written when the UserPromptSubmit hook is over, before the model is asked."""
    return any(r is not None and r.get("type") == "user" for r, _ in records(appended))

"""What bytes appended to a session file tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.session_files import Json, encode_json, records, well_formed

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
        event = _call_event(record)
        if record is None or event is None:
            continue
        status = _STATUS.get(str(event.get("status")))
        if status is not None:
            refused = status == "cancelled" and event.get("decision") == "reject"
            tool, input = (
                str(event.get("function_name", "")),
                well_formed(encode_json(event.get("function_args") or {})),
            )
            found.append(SeenCall(tool, input, "refused" if refused else status, str(record.get("uuid", ""))))
    return found


def _call_event(record: Json | None) -> Json | None:
    payload = record.get("systemPayload") if record is not None else None
    event = payload.get("uiEvent") if isinstance(payload, dict) else None
    return event if isinstance(event, dict) and event.get("event.name") == "qwen-code.tool_call" else None


def settled_length(appended: bytes) -> int:
    """Up to a batch that has fewer results than events. Qwen Code 0.15.10 queues its events, then its results, in one
    go, and does not wait for their writing before its next hook: the end of the file may be between any two of them. A
    record of another kind behind them shows that no result is to come (a subagent's calls have none)."""
    begin = end = missing = 0
    for line in appended.splitlines(keepends=True):
        kind = _kind(line)
        if kind == "event":
            begin = begin if missing else end
            missing += 1
        elif missing:
            missing = missing - 1 if kind == "result" else 0
        end += len(line)
    return begin if missing else end


def _kind(line: bytes) -> Literal["event", "result", "other"]:
    if b"qwen-code.tool_call" not in line and b"tool_result" not in line:  # most lines are: they are not decoded twice
        return "other"
    record = next((record for record, _ in records(line)), None)
    if record is not None and record.get("type") == "tool_result":
        return "result"
    return "event" if _call_event(record) is not None else "other"


def proves_turn(appended: bytes) -> bool:
    """A user's record is written when the UserPromptSubmit hook is over, before the model is asked."""
    return any(r is not None and r.get("type") == "user" for r, _ in records(appended))

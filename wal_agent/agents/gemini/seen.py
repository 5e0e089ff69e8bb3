"""What bytes appended to a session file tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from wal_agent.agents.base import SeenCall

_STATUS: dict[str, Literal["done", "failed", "cancelled"]] = {
    "success": "done",
    "error": "failed",
    "cancelled": "cancelled",
}


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines; junk is passed over, as Gemini does."""
    for line in data.split(b"\n"):
        if line.lstrip()[:1] != b"{":
            continue
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def messages(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that one line tells: itself, or those of a checkpoint."""
    if "$set" in record:
        inner = record["$set"].get("messages") if isinstance(record["$set"], dict) else None
        return [m for m in inner if isinstance(m, dict)] if isinstance(inner, list) else []
    return [record] if isinstance(record.get("type"), str) else []


def tool_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("toolCalls")
    return [c for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []


def seen_calls(appended: bytes) -> list[SeenCall]:
    """Each call once: the same record is written again and again with the same call ids."""
    found: dict[str, SeenCall] = {}
    for record in records(appended):
        if "$set" in record:
            continue  # a checkpoint repeats what was told before
        for call in tool_calls(record):
            status = _STATUS.get(str(call.get("status")))
            if status is not None:
                seen = SeenCall(str(call.get("name", "")), msgspec.json.encode(call.get("args", {})), status)
                found[str(call.get("id", len(found)))] = seen
    return list(found.values())


def unhooked(appended: bytes) -> bool:
    """A user's record is written after SessionStart and BeforeAgent hooks ended, before the model is asked."""
    return any(r.get("type") == "user" and "$set" not in r for r in records(appended))

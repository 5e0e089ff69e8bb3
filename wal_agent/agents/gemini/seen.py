"""What bytes appended to a session file tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.gemini.session import Message
from wal_agent.agents.session_files import encode_json, records

_STATUS: dict[str, Literal["done", "failed", "cancelled"]] = {
    "success": "done",
    "error": "failed",
    "cancelled": "cancelled",
}


def seen_calls(appended: bytes) -> list[SeenCall]:
    """Each call once: a message is written again with the same call ids. What a checkpoint repeats is not looked at."""
    found: dict[str, SeenCall] = {}
    for record, _ in records(appended):
        for call in Message(record).calls if record is not None else []:
            status = _STATUS.get(str(call.get("status")))
            if status is not None:
                id = str(call.get("id", ""))
                found[id or str(len(found))] = SeenCall(
                    str(call.get("name", "")), encode_json(call.get("args", {})), status, id
                )
    return list(found.values())


def proves_turn(appended: bytes) -> bool:
    """A user's record is written when the SessionStart and BeforeAgent hooks are over, before the model is asked."""
    return any(r is not None and r.get("type") == "user" for r, _ in records(appended))

"""What lines appended to a journal tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.jsonl import Json, encode, records
from wal_agent.agents.opencode.rows import key_of, text_of

ABORTED = "Tool execution aborted"  # OpenCode's words for a call that a person interrupted
_REFUSED = ("The user rejected permission", "The user has specified a rule")


def seen_calls(appended: bytes) -> list[SeenCall]:
    """A row is written again with each change: the last one counts."""
    found: dict[str, SeenCall] = {}
    for record, _ in records(appended):
        if record is None or (key := key_of(record)) is None or key[0] != "part" or record.get("gone"):
            continue
        call = _call(record)
        if call is not None:
            found[call.id] = call
    return list(found.values())


def _call(record: Json) -> SeenCall | None:
    data = record["data"]
    state = data.get("state") or {}
    metadata = data.get("metadata")
    elsewhere = isinstance(metadata, dict) and metadata.get("providerExecuted") is True
    if data.get("type") != "tool" or record.get("by") == "user" or elsewhere:
        return None
    status: Literal["done", "failed", "refused", "cancelled"]
    match state.get("status"):
        case "completed":
            status = "done"
        case "error" if text_of(state.get("error")).startswith(ABORTED):
            status = "cancelled"
        case "error" if text_of(state.get("error")).startswith(_REFUSED):
            status = "refused"
        case "error":
            status = "failed"
        case _:
            return None
    input = state.get("input")
    return SeenCall(
        text_of(data.get("tool")),
        encode(input if isinstance(input, dict) else {}),
        status,
        record["id"],
        text_of(data.get("callID")),
    )


def unhooked(appended: bytes) -> bool:
    """A user's message is written before the model is asked; `turn`: of a session whose id no hook has told."""
    for record, _ in records(appended):
        if record is None:
            continue
        if record.get("type") == "turn":
            return True
        key = key_of(record)
        if key is not None and key[0] == "message" and not record.get("gone") and record["data"].get("role") == "user":
            return True
    return False

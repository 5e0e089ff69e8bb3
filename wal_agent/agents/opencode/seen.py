"""What lines appended to a journal tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

import re
from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.opencode.rows import content_text, row_key
from wal_agent.agents.session_files import Json, encode_json, records

ABORTED = "Tool execution aborted"  # OpenCode's words for a call that a person interrupted
# Its whole words: a tool's own error may begin with some of them.
_REFUSED = re.compile(
    r"The user rejected permission to use this specific tool call\.?(?: with the following feedback: .*)?"
    r"|The user has specified a rule which prevents you from using this specific tool call\..*",
    re.DOTALL,
)


def seen_calls(appended: bytes) -> list[SeenCall]:
    """A row is written again with each change: the last one counts."""
    found: dict[str, SeenCall] = {}
    for record, _ in records(appended):
        if record is None or (key := row_key(record)) is None or key[0] != "part" or record.get("gone"):
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
    if data.get("type") != "tool" or record.get("by") == "user" or elsewhere or _compacted(state):
        return None
    status: Literal["done", "failed", "refused", "cancelled"]
    match state.get("status"):
        case "completed":
            status = "done"
        case "error" if content_text(state.get("error")) == ABORTED:
            status = "cancelled"
        case "error" if _REFUSED.fullmatch(content_text(state.get("error"))):
            status = "refused"
        case "error":
            status = "failed"
        case _:
            return None
    input = state.get("input")
    return SeenCall(
        content_text(data.get("tool")),
        encode_json(input if isinstance(input, dict) else {}),
        status,
        record["id"],
        content_text(data.get("callID")),
    )


def _compacted(state: Json) -> bool:
    """An old call, of any run, whose row is written again only because its output is left out from now on."""
    time = state.get("time")
    return isinstance(time, dict) and bool(time.get("compacted"))


def proves_turn(appended: bytes) -> bool:
    """A user's message is written before the model is asked; `turn`: of a session whose id no hook has told."""
    for record, _ in records(appended):
        if record is None:
            continue
        if record.get("type") == "turn":
            return True
        key = row_key(record)
        if key is not None and key[0] == "message" and not record.get("gone") and record["data"].get("role") == "user":
            return True
    return False

"""What bytes appended to a session file tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

from wal_agent.agents.base import SeenCall
from wal_agent.agents.pi.session import Entry
from wal_agent.agents.session_files import encode_json, records

_NAMED = "wal-agent-tool"  # in a result's details: what hooks/pi.ts called a tool in the place of one of pi's own


def seen_calls(appended: bytes) -> list[SeenCall]:
    """A result names its call by the id that the hooks told; the input stands in the answer, which may be older."""
    asked: dict[str, bytes] = {}
    found: list[SeenCall] = []
    for record, _ in records(appended):
        entry = Entry(record or {})
        for call in entry.calls:
            asked[call["id"]] = encode_json(call.get("arguments", {}))
        if entry.role == "toolResult":
            told = entry.message
            id, tool = str(told.get("toolCallId", "")), str(told.get("toolName", ""))
            input = asked.get(id, b"{}")
            details = told.get("details")
            tool = str(details.get(_NAMED, tool)) if isinstance(details, dict) else tool
            found.append(SeenCall(tool, input, "failed" if told.get("isError") else "done", entry.id, id))
    return found


def proves_turn(appended: bytes) -> bool:
    """The extension hears of the session before its first turn, and of each turn before anything of it is written."""
    return any(Entry(record or {}).role in ("user", "assistant") for record, _ in records(appended))

"""What of Gemini's session files is conversation; their other fields set how it works (conversation.py).

The names are those of Gemini's own program. `directories` are added to the workspace at a resume.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.session_files import Json, as_object, as_objects

_HEAD = fields("sessionId projectHash startTime lastUpdated kind summary")
_CALL = """toolCalls.id toolCalls.name toolCalls.args toolCalls.result toolCalls.status toolCalls.timestamp
    toolCalls.resultDisplay toolCalls.displayName toolCalls.description toolCalls.renderOutputAsMarkdown
    toolCalls.agentId"""
_MESSAGE = fields("id timestamp type content displayContent thoughts tokens model", _CALL)


def travels(name: str, workspace: Path) -> Travels:
    return Records(_record) if name.endswith(".jsonl") else "text"


def _record(record: Json) -> Json | None:
    if isinstance(record.get("$rewindTo"), str):
        return {"$rewindTo": record["$rewindTo"]}
    if isinstance(record.get("id"), str):
        message: Json = keep_fields(record, _MESSAGE)
        return message
    if "$set" not in record:
        head: Json = keep_fields(record, _HEAD)
        return head
    change = as_object(record["$set"])
    kept: Json = keep_fields(change, _HEAD)
    if isinstance(change.get("messages"), list):
        kept["messages"] = [keep_fields(each, _MESSAGE) for each in as_objects(change["messages"])]
    return {"$set": kept} if kept else None

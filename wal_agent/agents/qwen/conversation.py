"""What of Qwen Code's session files is conversation; their other records set how it works (conversation.py).

The names are those of Qwen's own program: `goal_state` lets it work on by itself, `session_model` chooses its model,
`/rewind` writes the files that a `file_history_snapshot` names.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.session_files import Json, as_text

_RECORD = "type subtype uuid parentUuid sessionId timestamp cwd version gitBranch agentId"
_KINDS = {
    "user": fields(_RECORD, "message.role message.parts"),
    "assistant": fields(_RECORD, "message.role message.parts usageMetadata contextWindowSize"),
    "tool_result": fields(
        _RECORD,
        "message.role message.parts toolCallResult.callId toolCallResult.error toolCallResult.errorType",
        "toolCallResult.executionStatus toolCallResult.resultDisplay toolCallResult.status",
    ),
    "system": fields(_RECORD, "systemPayload"),
}
_SYSTEM = fields("at_command chat_compression custom_title mid_turn_user_message notification rewind slash_command")
_AGENT = fields("agentId agentType description subagentName status createdAt startedAt completedAt")


def travels(name: str, workspace: Path) -> Travels:
    if name.startswith("subagents/") and not name.endswith(".jsonl"):
        return Records(lambda about: keep_fields(about, _AGENT)) if name.endswith(".json") else "nothing"
    if not name.endswith(".jsonl"):
        return "text"
    return Records(lambda record: _record(record, workspace), "uuid", "parentUuid")


def _record(record: Json, workspace: Path) -> Json | None:
    kind = as_text(record.get("type"))
    if kind not in _KINDS or (kind == "system" and record.get("subtype") not in _SYSTEM):
        return None
    kept: Json = keep_fields(record, _KINDS[kind])
    return {**kept, "cwd": str(workspace)} if "cwd" in kept else kept

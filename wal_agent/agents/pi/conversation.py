"""What of pi's session file is conversation; its other entries set how it works (conversation.py).

The names are those of pi's own program. `custom` is the state of an extension, a message of the `system` pi's prompt
and its tools, which it states anew. pi goes on with the model that its newest answer names.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.session_files import Json, as_object, as_text

_ENTRY = "type id parentId timestamp"
_KINDS = {
    "session": fields("type version id timestamp cwd"),
    "message": fields(_ENTRY, "message"),
    "compaction": fields(_ENTRY, "summary firstKeptEntryId tokensBefore fromHook"),
    "branch_summary": fields(_ENTRY, "fromId summary fromHook"),
    "context_edit": fields(_ENTRY, "targetId replacement"),
    "custom_message": fields(_ENTRY, "customType content display"),
    "session_info": fields(_ENTRY, "name"),
    "label": fields(_ENTRY, "targetId label"),
}
_MESSAGES = {
    "user": fields("role content timestamp"),
    "assistant": fields(
        "role content api provider model responseId usage stopReason errorMessage timestamp responseModel"
    ),
    "toolResult": fields("role toolCallId toolName content details isError timestamp"),
    "bashExecution": fields(
        "role command output exitCode cancelled truncated fullOutputPath timestamp excludeFromContext"
    ),
}
ELSEWHERE = {"provider": "elsewhere", "model": "unknown"}


def travels(name: str, workspace: Path) -> Travels:
    return Records(lambda record: _entry(record, workspace), "id", "parentId")


def _entry(record: Json, workspace: Path) -> Json | None:
    kind = as_text(record.get("type"))
    if kind not in _KINDS:
        return None
    kept: Json = keep_fields(record, _KINDS[kind])
    if kind == "session":
        return {**kept, "cwd": str(workspace)}
    if kind != "message":
        return kept
    message = as_object(kept.get("message"))
    role = as_text(message.get("role"))
    if role not in _MESSAGES:
        return None
    said = keep_fields(message, _MESSAGES[role])
    return {**kept, "message": {**said, **ELSEWHERE} if role == "assistant" else said}

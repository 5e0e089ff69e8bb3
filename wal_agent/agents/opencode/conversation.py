"""What of OpenCode's journal is conversation; its other columns and fields set how it works (conversation.py).

The names are those of OpenCode's own tables. `permission` of a session allows tools; `tools` and `system` of a message
choose tools and the system prompt; a `subtask` part is run at a resume; `/undo` deletes the files that a `patch` names.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.session_files import Json, as_object, as_objects, as_text, decode_json, encode_json

_SESSION = fields(
    "parent_id slug title version time_created time_updated time_compacting time_archived revert cost",
    "summary_additions summary_deletions summary_files tokens_input tokens_output tokens_reasoning tokens_cache_read",
    "tokens_cache_write project_id directory path",
)
_MESSAGES = {
    "user": fields("role time summary.title summary.body"),
    "assistant": fields(
        "role time parentID mode agent path cost tokens modelID providerID finish summary error structured"
    ),
}
_PARTS = {
    "text": fields("type text synthetic ignored time metadata"),
    "reasoning": fields("type text time metadata"),
    "file": fields("type mime filename url"),
    "tool": fields(
        "type callID tool metadata state.status state.input state.output state.error state.title state.metadata",
        "state.time state.raw state.attachments",
    ),
    "step-start": fields("type"),
    "step-finish": fields("type reason cost tokens"),
    "compaction": fields("type auto overflow tail_start_id"),
    "retry": fields("type attempt error time"),
}
_TODO = fields("type id session row.content row.status row.priority")


def travels(name: str, workspace: Path) -> Travels:
    return Records(lambda record: _row(record, workspace))


def _row(record: Json, workspace: Path) -> Json | None:
    kind = record.get("type")
    if record.get("gone") is True or kind == "turn":
        return {key: record[key] for key in ("type", "id", "gone") if key in record}
    if kind == "todo":
        todo: Json = keep_fields(record, _TODO)
        return todo
    if kind == "session":
        row = keep_fields(as_object(record.get("row")), _SESSION)
        own = {key: str(workspace) for key in ("directory",) if key in row}
        return {"type": kind, "id": record.get("id"), "row": {**row, **own, **_reverted(row)}}
    data = as_object(record.get("data"))
    kept = _message(data, workspace) if kind == "message" else _part(data) if kind == "part" else None
    if kept is None:
        return None
    names = ("type", "id", "session", "message", "created", "by")
    return {**{key: record[key] for key in names if key in record}, "data": kept}


def _reverted(row: Json) -> Json:
    """What a person has undone, without the state of the files to go back to."""
    try:
        undone = as_object(decode_json(as_text(row.get("revert")).encode()))
    except ValueError:
        undone = {}
    kept = {key: undone[key] for key in ("messageID", "partID") if key in undone}
    return {"revert": encode_json(kept).decode() if kept else None} if "revert" in row else {}


def _message(data: Json, workspace: Path) -> Json | None:
    kind = as_text(data.get("role"))
    if kind not in _MESSAGES:
        return None
    kept: Json = keep_fields(data, _MESSAGES[kind])
    return {**kept, "path": {"cwd": str(workspace), "root": str(workspace)}} if "path" in kept else kept


def _part(data: Json) -> Json | None:
    kind = as_text(data.get("type"))
    if kind not in _PARTS or (kind == "file" and not _inline(data)):
        return None
    kept: Json = keep_fields(data, _PARTS[kind])
    if files := as_object(kept.get("state")).get("attachments"):
        kept["state"]["attachments"] = [each for each in as_objects(files) if _inline(each)]
    return kept


def _inline(file: Json) -> bool:
    """Whether the file's content stands in the session: others would be read from this machine."""
    return as_text(file.get("url")).startswith("data:")

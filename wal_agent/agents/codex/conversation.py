"""What of Codex's rollouts is conversation; their other items set how it works (conversation.py).

The names are those of Codex's own protocol. Without `turn_context` and `world_state`, Codex tells the model its
instructions and permissions anew, as this machine's configuration has them.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.session_files import Json, as_object, as_objects, as_text

_META = fields(
    "id session_id timestamp cwd originator cli_version source thread_source forked_from_id history_mode model_provider"
)
_WORDS = "type id status"
_ITEMS = {
    "message": fields(_WORDS, "role content phase"),
    "reasoning": fields(_WORDS, "summary content encrypted_content"),
    "function_call": fields(_WORDS, "name namespace arguments call_id"),
    "function_call_output": fields(_WORDS, "call_id output"),
    "custom_tool_call": fields(_WORDS, "name namespace input call_id"),
    "custom_tool_call_output": fields(_WORDS, "name call_id output"),
    "local_shell_call": fields(_WORDS, "call_id action"),
    "web_search_call": fields(_WORDS, "action"),
    "image_generation_call": fields(_WORDS, "revised_prompt result"),
    "compaction": fields(_WORDS, "encrypted_content"),
    "compaction_summary": fields(_WORDS, "encrypted_content"),
    "context_compaction": fields(_WORDS, "encrypted_content"),
}
_TURN = "type turn_id started_at completed_at duration_ms"
_EVENTS = {
    "user_message": fields("type message kind images text_elements client_id"),
    "agent_message": fields("type message phase"),
    "agent_reasoning": fields("type text"),
    "agent_reasoning_raw_content": fields("type text"),
    "task_started": fields(_TURN, "model_context_window root_turn_id"),
    "turn_started": fields(_TURN, "model_context_window root_turn_id"),
    "task_complete": fields(_TURN, "last_agent_message root_turn_id time_to_first_token_ms error"),
    "turn_complete": fields(_TURN, "last_agent_message root_turn_id time_to_first_token_ms error"),
    "turn_aborted": fields(_TURN, "reason"),
    "token_count": fields("type info"),
    "item_completed": fields("type thread_id turn_id item started_at_ms completed_at_ms"),
    "context_compacted": fields("type"),
    "thread_rolled_back": fields("type num_turns"),
    "error": fields("type message codex_error_info"),
    "exec_command_end": fields(
        "type call_id process_id turn_id command source stdout stderr aggregated_output exit_code duration",
        "formatted_output status",
    ),
    "patch_apply_end": fields("type call_id turn_id stdout stderr success changes status"),
    "mcp_tool_call_end": fields("type call_id invocation duration result"),
    "web_search_end": fields("type call_id query action"),
}

_LINE = ("timestamp", "ordinal", "type", "payload")
_ROLES = ("user", "assistant")  # others give instructions


def travels(name: str, workspace: Path) -> Travels:
    return Records(lambda record: _line(record, workspace))


def _line(record: Json, workspace: Path) -> Json | None:
    payload = as_object(record.get("payload"))
    match record.get("type"):
        case "session_meta":
            kept: Json | None = {**keep_fields(payload, _META), "cwd": str(workspace)}
            if "model_provider" in payload:
                kept = {**(kept or {}), "model_provider": None}
        case "response_item":
            kept = _item(payload)
        case "compacted":
            kept = keep_fields(payload, fields("message replacement_history"))
            if kept is not None and kept.get("replacement_history") is not None:
                items = map(_item, as_objects(kept["replacement_history"]))
                kept["replacement_history"] = [item for item in items if item is not None]
        case "event_msg" if (kind := as_text(payload.get("type"))) in _EVENTS:
            kept = keep_fields(payload, _EVENTS[kind])
        case _:
            kept = None
    if kept is None:
        return None
    return {name: kept if name == "payload" else record[name] for name in record if name in _LINE}


def _item(payload: Json) -> Json | None:
    kind = as_text(payload.get("type"))
    if kind not in _ITEMS or (kind == "message" and payload.get("role") not in _ROLES):
        return None
    kept: Json = keep_fields(payload, _ITEMS[kind])
    return kept

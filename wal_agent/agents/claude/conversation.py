"""What of Claude Code's session files is conversation; its other lines and fields set how it works (conversation.py).

The names are those of Claude's own program. `rendered` would be given to the model as it is, in any role;
`prompt_snapshot` and `instructions` are its system prompt; `/rewind` writes and deletes the files that a
`file-history-snapshot` names; `hook_deferred_tool` runs a call at a resume, `session_cron_carry` at any time. What
CronCreate scheduled runs again in a resumed session, by the `id` of its result.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.claude.session import MAIN
from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.session_files import Json, as_object, as_text

_LINE = """type uuid parentUuid logicalParentUuid isSidechain agentId sessionId timestamp version userType entrypoint
    gitBranch cwd isMeta"""
_MESSAGE = """message.id message.type message.role message.content message.model message.stop_reason
    message.stop_sequence message.stop_details message.usage"""
_KINDS = {
    "user": fields(
        _LINE,
        "message.role message.content toolUseResult sourceToolUseID sourceToolAssistantUUID isCompactSummary",
        "isVisibleInTranscriptOnly summarizeMetadata imagePasteIds origin promptId promptSource toolDenialKind",
        "toolDenialAfterRun turnOrigin turnPosition interruptedMessageId",
    ),
    "assistant": fields(
        _LINE, _MESSAGE, "requestId isApiErrorMessage error apiError errorDetails apiBlockIndex batchToolUses"
    ),
    "system": fields(
        _LINE,
        "subtype content level toolUseID durationMs retryInMs retryAttempt maxRetries error hookCount hookErrors",
        "hasOutput preventedContinuation stopReason microcompactMetadata compactMetadata.trigger",
        "compactMetadata.preTokens compactMetadata.postTokens compactMetadata.durationMs",
        "compactMetadata.messagesSummarized compactMetadata.preservedSegment compactMetadata.preservedMessages",
    ),
    "attachment": fields(_LINE, "attachment"),
    "summary": fields("type leafUuid summary"),
    "custom-title": fields("type sessionId customTitle"),
    "ai-title": fields("type sessionId aiTitle"),
    "last-prompt": fields("type sessionId lastPrompt leafUuid explicit rewound cutUuid"),
    "content-replacement": fields("type sessionId agentId uuid replacements"),
}
_SYSTEM = fields(
    "api_error away_summary compact_boundary informational local_command microcompact_boundary stop_hook_summary",
    "turn_duration",
)
_ATTACHMENTS = fields(
    "already_read_file async_hook_response async_hook_response_batch compact_file_reference date date_change",
    "diagnostics directory edited_image_file edited_text_file file hook_additional_context hook_blocking_error",
    "hook_cancelled hook_error_during_execution hook_non_blocking_error hook_stopped_continuation hook_success",
    "hook_system_message inlined_image_paths max_turns_reached mcp_resource message_pdf_reads opened_file_in_ide",
    "pdf_reference plan_file_reference poll_events queued_command read_truncation_notice selected_lines_in_diff",
    "selected_lines_in_ide structured_output task_reminder task_status teammate_mailbox thinking_drop",
    "thinking_stripped todo_reminder tool_results_cut whole_texts_withdrawn",
)
_AGENT = fields("agentType description toolUseId name")


def travels(name: str, workspace: Path) -> Travels:
    if name == MAIN or (name.startswith("subagents/") and name.endswith(".jsonl")):
        return Records(lambda record: _line(record, workspace), "uuid", "parentUuid")
    if name.startswith("subagents/"):
        return Records(lambda about: keep_fields(about, _AGENT))
    return "nothing" if name.startswith("file-history/") else "text"


def _line(record: Json, workspace: Path) -> Json | None:
    kind = as_text(record.get("type"))
    if kind == "system" and record.get("subtype") not in _SYSTEM:
        return None
    if kind == "attachment" and as_object(record.get("attachment")).get("type") not in _ATTACHMENTS:
        return None
    if kind not in _KINDS:
        return None
    kept: Json = keep_fields(record, _KINDS[kind])
    result = kept.get("toolUseResult")
    if isinstance(result, dict) and "id" in result:
        kept["toolUseResult"] = {name: value for name, value in result.items() if name != "id"}
    return {**kept, "cwd": str(workspace)} if "cwd" in kept else kept

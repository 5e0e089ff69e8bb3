"""What of Copilot's session folder is conversation; the other events and fields set how it works (conversation.py).

The names are those of Copilot's own schema of events. `system.message` is the system prompt, `skill.invoked` allows
tools, `session.schedule_created` works at a set time, an attachment names a file that is read at a resume.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.copilot.session import MAIN
from wal_agent.agents.session_files import Json, as_object, as_text

_CALL = "toolCallId parentToolCallId turnId"
_COMPACTION = "conversationTokens compactionAttemptId trigger"
_EVENTS = {
    "session.start": fields("sessionId version producer copilotVersion startTime context.cwd"),
    "session.resume": fields("resumeTime eventCount context.cwd sessionWasActive"),
    "session.shutdown": fields(
        "shutdownType sessionStartTime errorReason codeChanges totalApiDurationMs modelMetrics"
    ),  # without them Copilot takes the file for damaged
    "user.message": fields("content transformedContent interactionId messageId turnId delivery"),
    "assistant.message": fields(
        "parentToolCallId interactionId turnId messageId content toolRequests reasoningText reasoningOpaque",
        "reasoningBlocks reasoningWireField encryptedContent phase outputTokens apiCallId originatingMessageId",
        "chunkCount chunkIndex citations model",
    ),
    "assistant.reasoning": fields("reasoningId content"),
    "assistant.turn_start": fields("turnId interactionId parentToolCallId"),
    "assistant.turn_end": fields("turnId parentToolCallId"),
    "tool.execution_start": fields(
        _CALL, "toolName arguments mcpServerName mcpToolName toolTitle toolDescription displayVerbatim model"
    ),
    "tool.execution_complete": fields(
        _CALL, "interactionId success result error isUserRequested model toolDescription"
    ),
    "tool.user_requested": fields("toolCallId toolName arguments"),
    "abort": fields("reason"),
    "session.compaction_start": fields(_COMPACTION, "currentTokens"),
    "session.compaction_complete": fields(
        _COMPACTION,
        "success summaryContent checkpointNumber error outcome preCompactionTokens postCompactionTokens",
        "preCompactionMessagesLength messagesRemoved tokensRemoved",
    ),
    "session.truncation": fields(
        "messagesRemovedDuringTruncation performedBy postTruncationMessagesLength postTruncationTokensInMessages",
        "preTruncationMessagesLength preTruncationTokensInMessages tokenLimit tokensRemovedDuringTruncation",
    ),
    "session.context_cleared": fields("messagesCleared"),
    "session.error": fields("errorType errorCode message statusCode"),
    "session.info": fields("infoType message"),
    "session.warning": fields("warningType message"),
    "session.task_complete": fields("summary success reason"),
    "subagent.started": fields("toolCallId agentName agentDisplayName agentDescription"),
    "subagent.completed": fields("toolCallId agentName agentDisplayName"),
    "subagent.failed": fields("toolCallId agentName agentDisplayName error"),
    "system.notification": fields("content kind"),
}
_EVENT = fields("type data id timestamp parentId agentId ephemeral")
_FOLDERS = ("session.start", "session.resume")


def travels(name: str, workspace: Path) -> Travels:
    if name == MAIN:
        return Records(lambda record: _event(record, workspace), "id", "parentId")
    return "nothing" if name == "workspace.yaml" else "text"


def _event(record: Json, workspace: Path) -> Json | None:
    kind = as_text(record.get("type"))
    if kind not in _EVENTS:
        return None
    data = keep_fields(as_object(record.get("data")), _EVENTS[kind])
    if kind in _FOLDERS and "context" in data:
        data["context"] = {"cwd": str(workspace)}
    return {**keep_fields(record, _EVENT), "data": data}

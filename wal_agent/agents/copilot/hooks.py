"""What Copilot's hooks say, and what they must print.

Copilot gives hooks no call ids: of equal parallel calls it is known how many ended, not which. What a subagent does
arrives under an id of its own that names its parent's; its calls are in the parent's session file too.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from wal_agent import decoders
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Decision,
    Deny,
    HookEvent,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.hook_line import ALLOW, refuse_answer
from wal_agent.agents.session_files import InnerId, SessionId, well_formed

# The smallest set that tells phases and calls. `permissionRequest` also fires where nobody is asked, so the question to
# a person is told by `notification`. No `sessionEnd`: by then the terminal is the user's again (I6).
EVENTS = (
    "sessionStart",
    "userPromptSubmitted",
    "preToolUse",
    "postToolUse",
    "postToolUseFailure",
    "agentStop",
    "notification",
)
SHELLS = frozenset(
    f"{verb}{shell}" for shell in ("bash", "powershell", "local_shell") for verb in ("", "read_", "write_", "stop_")
)


class _Hook(msgspec.Struct):
    session: SessionId = msgspec.field(name="sessionId")
    agent: InnerId = msgspec.field(name="agentId", default="")
    parent: InnerId = msgspec.field(name="parentAgentId", default="")


class _Start(_Hook):
    source: str = ""


class _Prompt(_Hook):
    prompt: str = ""


class _Tool(_Hook, kw_only=True):
    tool: str = msgspec.field(name="toolName")
    args: msgspec.Raw = msgspec.field(name="toolArgs")


class _Result(msgspec.Struct):
    kind: str = msgspec.field(name="resultType")
    text: str = msgspec.field(name="textResultForLlm", default="")


class _Ended(_Tool, kw_only=True):
    result: _Result = msgspec.field(name="toolResult")


class _Failed(_Tool):
    error: msgspec.Raw = msgspec.field(default=msgspec.Raw(b'""'))


class _Notice(_Hook):
    message: str = ""
    kind: str = msgspec.field(name="notification_type", default="")


_DECODERS = decoders.of_events(
    {
        "sessionStart": _Start,
        "userPromptSubmitted": _Prompt,
        "preToolUse": _Tool,
        "postToolUse": _Ended,
        "postToolUseFailure": _Failed,
        "agentStop": _Hook,
        "notification": _Notice,
    }
)
_NOTIFICATION = "<system_notification>"  # a turn that a background command's end began, not a person
# The last line of a command's result; a command that runs on, or a result that was cut, has another one or none.
_CLEAN = re.compile(r"<shellId: [^<>\n]* completed with exit code 0>\s*\Z")


def parse(event: str, payload: bytes) -> HookEvent:
    """ValueError when the payload is not what this event carries: the caller then denies."""
    if event not in _DECODERS:
        return OtherEvent(name=event)
    try:
        said: Any = _DECODERS[event].decode(well_formed(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{event} hook: {e}") from e
    session = said.parent or said.session
    match event:
        case "preToolUse":
            return ToolStarting(session, said.tool, call_arguments(bytes(said.args)))
        case "postToolUse":
            failed = said.result.kind != "success"
            clean = not failed and (said.tool not in SHELLS or _CLEAN.search(said.result.text) is not None)
            result = msgspec.json.encode({"text": said.result.text, "type": said.result.kind})
            return ToolEnded(session, said.tool, call_arguments(bytes(said.args)), result, failed, clean=clean)
        case "postToolUseFailure":
            result = b'{"error":' + bytes(said.error) + b"}"
            return ToolEnded(session, said.tool, call_arguments(bytes(said.args)), result, failed=True, clean=False)
        case "notification" if said.kind == "permission_prompt":
            return AwaitingApproval(session, said.message)
        case "notification":
            return OtherEvent(name=event)
        case _ if said.agent:
            return OtherEvent(name=event)  # a subagent's own turn
        case "sessionStart":
            return SessionStarted(session, said.source)
        case "userPromptSubmitted":
            return TurnStarted(session, "" if said.prompt.startswith(_NOTIFICATION) else said.prompt)
        case _:
            return TurnCompleted(session)


def call_arguments(raw: bytes) -> bytes:
    """A call's input as a JSON object; some models give some tools text instead, or nothing."""
    if raw == b"null":
        return b"{}"
    return raw if raw[:1] == b"{" else b'{"input":' + raw + b"}"


def render(event: str, decision: Decision) -> bytes:
    """What the client hands to the hook's shell line."""
    return ALLOW if isinstance(decision, Allow) or event != "preToolUse" else refuse_answer(deny_output(decision))


def deny_output(decision: Deny) -> str:
    """Copilot's deny, one line; it knows no way to end the turn too."""
    return json.dumps({"permissionDecision": "deny", "permissionDecisionReason": decision.reason})

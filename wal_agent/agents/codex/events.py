"""What Codex's hooks say, and what they must print.

Every call has an id: the model's own on the plain path, `exec-<uuid>` for a call that a script of code mode makes.
Subagents' hooks come under the root's session id and name the agent.
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
    Compacting,
    Decision,
    Deny,
    HookEvent,
    ModelRequest,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.codex.exitcode import read_exit_code
from wal_agent.agents.hook_line import ALLOW, refuse_answer
from wal_agent.agents.session_files import InnerId, SessionId, well_formed

# The smallest set that tells phases and calls. No SessionEnd: Codex waits for it, and Stop has said what counts.
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreModelRequest",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "Stop",
    "PreCompact",
    "PostCompact",
)
SHELL = "Bash"  # the hooks' name of exec_command and its kin


class _Hook(msgspec.Struct):
    session_id: SessionId
    agent_id: InnerId = ""
    transcript_path: str | None = None


class _Start(_Hook):
    source: str = ""


class _Prompt(_Hook):
    prompt: str = ""


class _Asked(_Hook):
    tool_name: str = ""


class _Tool(_Hook, kw_only=True):
    tool_name: str
    tool_input: msgspec.Raw
    tool_use_id: str
    cwd: str = ""  # the call's own: its `workdir` is told nowhere else


class _Ended(_Tool, kw_only=True):
    tool_response: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


_DECODERS = decoders.of_events(
    {
        "SessionStart": _Start,
        "UserPromptSubmit": _Prompt,
        "PreModelRequest": _Hook,
        "PreToolUse": _Tool,
        "PermissionRequest": _Asked,
        "PostToolUse": _Ended,
        "Stop": _Hook,
        "PreCompact": _Hook,
        "PostCompact": _Hook,
    }
)
_WRONG = re.compile(rb'"(?:Exit code: (?!0\\n)|[^"]{0,80}(?:failed|error)\b)')


def parse(event: str, payload: bytes) -> HookEvent:
    """ValueError when the payload is not what this event carries: the caller then denies."""
    if event not in _DECODERS:
        return OtherEvent(name=event)
    try:
        said: Any = _DECODERS[event].decode(well_formed(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{event} hook: {e}") from e
    session = said.session_id
    match event:
        case "PreToolUse":
            _check(said)
            input = bytes(said.tool_input)
            return ToolStarting(session, said.tool_name, input, said.tool_use_id, said.agent_id, said.cwd)
        case "PostToolUse":
            _check(said)
            return _ended(said)
        case "PermissionRequest":
            return AwaitingApproval(session, said.tool_name)
        case _ if said.agent_id:  # a subagent's turn is no turn of the session
            return OtherEvent(name=event)
        case "SessionStart":  # after a compaction it is no start
            return OtherEvent(event) if said.source == "compact" else SessionStarted(session, said.source)
        case "PreCompact" | "PostCompact":
            return Compacting(session, done=event == "PostCompact")
        case "UserPromptSubmit":
            return TurnStarted(session, said.prompt)
        case "PreModelRequest":
            return ModelRequest(session)
        case _:
            return TurnCompleted(session)


def _check(said: _Tool) -> None:
    if bytes(said.tool_input)[:1] != b"{":
        raise ValueError("tool_input is not an object")
    if not said.tool_use_id:
        raise ValueError("a call without an id")


def _ended(said: _Ended) -> ToolEnded:
    """Codex fires this only for tools that came to an end of their own. Of a command it gives the output alone; its
    exit code stands in the session file by then."""
    response = bytes(said.tool_response)
    if said.tool_name == SHELL:
        code = read_exit_code(said.transcript_path, said.tool_use_id)
        clean = code == 0
        result = response if code is None else b'{"exit_code":%d,"output":%b}' % (code, response)
    else:
        clean = said.tool_name != "apply_patch" or _WRONG.match(response) is None
        result = response
    input = bytes(said.tool_input)
    return ToolEnded(said.session_id, said.tool_name, input, result, False, said.tool_use_id, clean)


def render(event: str, decision: Decision) -> bytes:
    """What the client hands to the hook's shell line."""
    return ALLOW if isinstance(decision, Allow) or event != "PreToolUse" else refuse_answer(deny_output(decision))


def deny_output(decision: Deny) -> str:
    """Codex's deny. It has none that ends the turn: `continue: false` beside it lets the tool run (facts, A3)."""
    words = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": decision.reason,
    }
    return json.dumps({"hookSpecificOutput": words})

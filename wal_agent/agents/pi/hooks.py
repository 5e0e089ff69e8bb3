"""What hooks/pi.ts says, and what it is answered. The events have pi's own names; the payloads are ours.

`tool_result` comes only for tools that ran. A command that ended with another code than 0 is an error to pi.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from wal_agent import decoders
from wal_agent.agents.base import (
    Allow,
    Compacting,
    Decision,
    HookEvent,
    ModelRequest,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.hook_line import ALLOW, refuse_answer
from wal_agent.agents.session_files import SessionId, require_object, well_formed

_EXTENSIONS = " (extension)"  # hooks/pi.ts: behind the name of one of pi's own tools, of another in its place
CUT_SHORT = ("", "error", "aborted")  # why an answer of the model stopped that ends no turn
# What pi's shell tool writes last where a command went wrong; one that an extension put in its place may not call it an
# error. In JSON, so between its escapes.
_WRONG = re.compile(rb'(?:"|\\n)Command (?:exited with code -?\d+|timed out after [\d.]+ seconds|aborted)"')


class _Hook(msgspec.Struct):
    session: SessionId


class _Start(_Hook):
    reason: str = ""


class _Prompt(_Hook):
    prompt: str


class _Tool(_Hook):
    tool: str
    call_id: str
    input: msgspec.Raw


class _Ended(_Tool):
    content: msgspec.Raw
    failed: bool


class _End(_Hook):
    stop: str = ""


_DECODERS = decoders.of_events(
    {
        "session_start": _Start,
        "before_agent_start": _Prompt,
        "tool_call": _Tool,
        "tool_result": _Ended,
        "turn_end": _Hook,
        "agent_end": _End,
        "session_before_compact": _Hook,
        "session_compact": _Hook,
    }
)


def parse(event: str, payload: bytes) -> HookEvent:
    """ValueError when the payload is not what this event carries: the caller then denies."""
    if event not in _DECODERS:
        return OtherEvent(name=event)
    try:
        said: Any = _DECODERS[event].decode(well_formed(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{event} hook: {e}") from e
    session = said.session
    match event:
        case "session_start":
            return SessionStarted(session, said.reason)
        case "before_agent_start":
            return TurnStarted(session, said.prompt)
        case "tool_call":
            return ToolStarting(session, said.tool, require_object(said.input), said.call_id)
        case "tool_result":
            content = bytes(said.content)
            result = b'{"content":' + content + b"}"
            clean = not said.failed and _WRONG.search(content) is None
            return ToolEnded(session, said.tool, require_object(said.input), result, said.failed, said.call_id, clean)
        case "turn_end":
            return ModelRequest(session)
        case "session_before_compact" | "session_compact":
            return Compacting(session, done=event == "session_compact")
        case _:
            return OtherEvent(event) if said.stop in CUT_SHORT else TurnCompleted(session)


def plain_tool_name(tool: str) -> str:
    """A tool's name as the session file has it."""
    return tool.removesuffix(_EXTENSIONS)


def render(event: str, decision: Decision) -> bytes:
    if isinstance(decision, Allow) or event != "tool_call":
        return ALLOW
    return refuse_answer(json.dumps({"reason": decision.reason, "stop": decision.stop}))

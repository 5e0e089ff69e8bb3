"""What the plugin (hooks/opencode.js) says, and the JSON that it is answered."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from wal_agent import decoders
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
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
from wal_agent.agents.session_files import InnerId, SessionId, require_object

SHELL = "bash"


class _Said(msgspec.Struct):
    session: SessionId


class _Started(_Said):
    source: str = ""


class _Turn(_Said):
    prompt: str = ""


class _Approval(_Said):
    what: str = ""


class _Compact(_Said):
    done: bool = False


class _Tool(_Said):
    tool: str
    call: str
    input: msgspec.Raw
    inner: InnerId = ""


class _Result(msgspec.Struct):
    metadata: dict[str, Any] = {}


class _Ended(_Tool, kw_only=True):
    result: msgspec.Raw
    wrong: bool = False


_RESULT = decoders.of_json(_Result)
_DECODERS = decoders.of_events(
    {
        "session": _Started,
        "turn": _Turn,
        "request": _Said,
        "before": _Tool,
        "after": _Ended,
        "approval": _Approval,
        "compacting": _Compact,
        "completed": _Said,
    }
)


def parse(event: str, payload: bytes) -> HookEvent:
    """ValueError when the payload is not what this event carries: the caller then denies."""
    if event not in _DECODERS:
        return OtherEvent(event)
    try:
        said: Any = _DECODERS[event].decode(payload)
        match event:
            case "session":
                return SessionStarted(said.session, said.source)
            case "turn":
                return TurnStarted(said.session, said.prompt)
            case "request":
                return ModelRequest(said.session)
            case "before":
                return ToolStarting(said.session, said.tool, require_object(said.input), said.call, said.inner)
            case "after":
                result = _RESULT.decode(said.result)
                clean = not said.wrong and (said.tool != SHELL or _exit(result) == 0)
                input = require_object(said.input)
                return ToolEnded(said.session, said.tool, input, bytes(said.result), said.wrong, said.call, clean)
            case "approval":
                return AwaitingApproval(said.session, said.what)
            case "compacting":
                return Compacting(said.session, said.done)
            case _:
                return TurnCompleted(said.session)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{event} hook: {e}") from e


def _exit(result: _Result) -> object:
    code = result.metadata.get("exit")
    return None if isinstance(code, bool) else code


def render(event: str, decision: Decision) -> bytes:
    if isinstance(decision, Allow) or event != "before":
        return b'{"decision":"allow"}'
    return json.dumps({"decision": "deny", "reason": decision.reason, "stop": decision.stop}).encode()

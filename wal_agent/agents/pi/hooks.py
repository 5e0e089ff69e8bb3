"""pi's extension (hooks/pi.ts): its messages, the answers, and its place in one run.

The events have pi's own names; the payloads are wal-agent's. `tool_result` comes only for tools that ran. A command
that ended with another code than 0 is an error to pi.

The extension is in the run's own folder, named on the command line. No file of the user's is touched (I7), and pi
refuses to start without an extension that its command line names.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import (
    Allow,
    Compacting,
    Decision,
    Env,
    HookEvent,
    HookSetup,
    Injected,
    ModelRequest,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.hook_line import ALLOW, GONE, refuse_answer
from wal_agent.agents.session_files import SessionId, require_object, well_formed
from wal_agent.errors import ConfigError
from wal_agent.resources import shipped

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


_DECODERS = msgspec_compat.of_events(
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


MARKER = "WAL_AGENT_PI_EXTENSION"
ELSEWHERE = (
    "wal-agent did not run this: the session belongs to another folder than the one that wal-agent saves. Nothing was "
    "changed. Do not try other ways; stop here and say that wal-agent is to be started in that folder."
)
_HOLE = "__WAL_AGENT_SETUP__"


def inject(setup: HookSetup, env: Env) -> Injected:
    place = setup.run_dir / "pi.ts"
    try:
        (setup.run_dir / "wire.js").write_bytes(shipped("hooks/wire.js").read_bytes())
        place.write_text(extension_source(setup), "utf-8")
    except OSError as e:
        raise ConfigError(f"pi's hooks could not be placed in {setup.run_dir}: {e.strerror or e}.") from e
    return Injected(env={MARKER: str(place)})


def extension_source(setup: HookSetup) -> str:
    words = {
        "socket": str(setup.run_dir / "hook.sock"),
        "run": setup.run,
        "skip": setup.skip,
        "protocol": setup.protocol,
        "gone": GONE,
        "elsewhere": ELSEWHERE,
    }
    return shipped("hooks/pi.ts").read_text("utf-8").replace(_HOLE, json.dumps(words), 1)

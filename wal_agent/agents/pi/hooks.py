"""pi's extension (hooks/pi.ts): its messages, the answers, and its place in one run.

The events have pi's own names; the payloads are wal-agent's. `tool_result` comes only for tools that ran. A command
that ended with another code than 0 is an error to pi.

The extension is in the run's own folder, named on the command line. No file of the user's is touched (I7), and pi
refuses to start without an extension that its command line names. It needs no trust: pi loads only a project's own
extensions, settings and MCP servers where a person trusts the folder, and asks at a terminal before its hooks work.
"""

from __future__ import annotations

import json
import re

import msgspec

from wal_agent.agents import base
from wal_agent.agents.base import Deny, Env, HookEvent, HookSetup, Injected
from wal_agent.agents.hook_line import GONE, on, parser, refuse_answer, renderer
from wal_agent.agents.session_files import SessionId, require_object
from wal_agent.errors import ConfigError
from wal_agent.paths import shipped

_EXTENSIONS = " (extension)"  # hooks/pi.ts: suffix of a tool that replaces one of pi's own
CUT_SHORT = ("", "error", "aborted")  # stop reasons of an answer that ends no turn
_UNANSWERED = "pi's model gave no answer"
# What pi's shell tool writes last where a command went wrong; one that an extension put in its place may not call it an
# error. In JSON, so between its escapes.
_WRONG = re.compile(rb'(?:"|\\n)Command (?:exited with code -?\d+|timed out after [\d.]+ seconds|aborted)"')

_LATE = re.compile(rb'(?:"|\\n)Command timed out after [\d.]+ seconds"\}\]\Z')

# What pi itself writes around a summary.
_FRAME = re.compile(
    r"No prior history\.|\*\*Turn Context \(split turn\):\*\*|---|<(read|modified)-files>.*?</\1-files>", re.DOTALL
)

MARKER = "WAL_AGENT_PI_EXTENSION"
ELSEWHERE = (
    "wal-agent did not run this: the session belongs to another folder than the one that wal-agent saves. Nothing was "
    "changed. Do not try other ways; stop here and say that wal-agent is to be started in that folder."
)
_HOLE = "__WAL_AGENT_SETUP__"  # in hooks/pi.ts


class _Hook(msgspec.Struct):
    session: SessionId


class _Start(_Hook):
    reason: str = ""


class _Prompt(_Hook):
    prompt: str = ""  # an extension began the turn, by a message of its own


class _Tool(_Hook):
    tool: str
    call_id: str
    input: msgspec.Raw


class _Ended(_Tool):
    content: msgspec.Raw
    failed: bool
    aborted: bool = False  # pi was told to stop what it does


class _End(_Hook):
    stop: str = ""


class _Compact(_Hook):
    tokens: int = 0


class _Summary(_Hook):
    id: str
    text: str


def _ended(p: _Ended) -> base.ToolEnded:
    content = bytes(p.content)
    result, input = b'{"content":' + content + b"}", require_object(p.input)
    clean, late = not p.failed and _WRONG.search(content) is None, _LATE.search(content)
    cut = "it took longer than its time limit" if late else "it was cancelled" if p.failed and p.aborted else ""
    return base.ToolEnded(p.session, p.tool, input, result, p.failed, p.call_id, clean, cut)


def compacted(key: str, text: str, tokens: int = 0) -> base.Compacted:
    """Return a compaction whose summary, as pi keeps it, is `text`."""
    return base.Compacted(key, _FRAME.sub("", text).strip(), text, tokens)


def _request_over(p: _End) -> HookEvent:
    return base.TurnStopped(p.session) if p.stop == "aborted" else base.ModelRequest(p.session)


def _settled(p: _End) -> HookEvent:
    if p.stop == "error":  # and pi has tried again as often as it does
        return base.TurnFailed(p.session, "other", _UNANSWERED)
    return base.OtherEvent("agent_before_settle") if p.stop in CUT_SHORT else base.TurnCompleted(p.session)


EVENTS = {
    "session_start": on(_Start, lambda p: base.SessionStarted(p.session, p.reason)),
    "before_agent_start": on(_Prompt, lambda p: base.TurnStarted(p.session, p.prompt)),
    "tool_call": on(_Tool, lambda p: base.ToolStarting(p.session, p.tool, require_object(p.input), p.call_id)),
    "tool_result": on(_Ended, _ended),
    "turn_end": on(_End, _request_over),
    "agent_before_settle": on(_End, _settled),
    "session_before_compact": on(_Compact, lambda p: base.Compacting(p.session, done=False, tokens=p.tokens)),
    "summary": on(_Summary, lambda p: base.ContextRequested(p.session, compacted(p.id, p.text))),
    "session_compact": on(_Hook, lambda p: base.Compacting(p.session, done=True)),
}
parse = parser(EVENTS)


def _refuse(decision: Deny) -> str:
    return json.dumps({"reason": decision.reason, "stop": decision.stop})


def _speak(event: str, words: str) -> bytes:
    return refuse_answer(json.dumps({"words": words}))


render = renderer(
    {"tool_call": _refuse, "session_before_compact": _refuse},
    {"tool_result": _speak, "agent_before_settle": _speak, "session_before_compact": _speak, "summary": _speak},
)


def plain_tool_name(tool: str) -> str:
    """Return a tool's name as the session file has it."""
    return tool.removesuffix(_EXTENSIONS)


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

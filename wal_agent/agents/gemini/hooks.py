"""Gemini's hooks: the payloads, the answers, and the extension that brings them into one run.

Gemini gives a tool call no id: the same call twice at once cannot be told apart. Subagents' inner calls arrive under
the parent's session id, between the start and the end of its `invoke_agent`.

The hooks of a run are an extension in the user's `~/.gemini/extensions` (agents/extension.py): only an extension's
hooks also fire in a folder that is not trusted.

The extension lies in the user's own folder and every Gemini loads it, so the first line of a hook's shell command asks
whether this Gemini is this run's, and exits at once if not (I7). The marker's name begins with GEMINI_CLI_ because
Gemini passes only such variables on where it strips the environment (GITHUB_SHA, SURFACE=Github). The pid is the second
check.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents import extension, installed_hooks
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Decision,
    Deny,
    Env,
    HookEvent,
    HookSetup,
    HooksToInstall,
    HookTable,
    Injected,
    ModelRequest,
    OtherEvent,
    SessionEnded,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.extension import owner_guard
from wal_agent.agents.hook_line import ALLOW, GONE, HOOK_SECONDS, bash_line, refuse_answer
from wal_agent.agents.session_files import SessionId, require_object, well_formed

# The smallest set that tells phases and calls. PreCompress fires before each model request, with a payload that does
# not grow; BeforeModel and AfterModel carry the whole conversation each time (I9). No SessionEnd: by then the terminal
# is the user's again, and Gemini writes what it does for that hook into it (I6).
EVENTS = (
    "SessionStart",
    "BeforeAgent",
    "BeforeTool",
    "AfterTool",
    "PreCompress",
    "AfterAgent",
    "Notification",
)


_REFUSABLE = ("BeforeTool", "BeforeAgent")


class _Hook(msgspec.Struct):
    session_id: SessionId


class _Start(_Hook):
    source: str = ""


class _Prompt(_Hook):
    prompt: str = ""


class _Tool(_Hook):
    tool_name: str
    tool_input: msgspec.Raw


class _Response(msgspec.Struct):
    llm: msgspec.Raw = msgspec.field(name="llmContent", default=msgspec.Raw(b'""'))
    error: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))


class _Ended(_Tool):
    tool_response: _Response


class _Notice(_Hook):
    message: str = ""


class _End(_Hook):
    reason: str = ""


# Lines of a shell call's result, which Gemini writes only where it went wrong; here in JSON, so between its escapes.
_WRONG = re.compile(rb'(?:"|\\n)(?:Exit Code|Signal|Error): ')

_DECODERS = msgspec_compat.of_events(
    {
        "SessionStart": _Start,
        "BeforeAgent": _Prompt,
        "BeforeTool": _Tool,
        "AfterTool": _Ended,
        "PreCompress": _Hook,
        "AfterAgent": _Hook,
        "Notification": _Notice,
        "SessionEnd": _End,
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
    session = said.session_id
    match event:
        case "SessionStart":
            return SessionStarted(session, said.source)
        case "BeforeAgent":
            return TurnStarted(session, said.prompt)
        case "BeforeTool":
            return ToolStarting(session, said.tool_name, require_object(said.tool_input))
        case "AfterTool":
            failed = bytes(said.tool_response.error) != b"null"
            response = said.tool_response
            clean = not failed and _WRONG.search(bytes(response.llm)) is None
            return ToolEnded(
                session, said.tool_name, require_object(said.tool_input), _result(response), failed, clean=clean
            )
        case "PreCompress":
            return ModelRequest(session)
        case "AfterAgent":
            return TurnCompleted(session)
        case "Notification":
            return AwaitingApproval(session, said.message)
        case _:
            return SessionEnded(session, said.reason)


def _result(response: _Response) -> bytes:
    """What the model got, without the display copy: for an edit that holds the file twice more."""
    parts = [b'{"llmContent":', bytes(response.llm)]
    if bytes(response.error) != b"null":
        parts += [b',"error":', bytes(response.error)]
    return b"".join([*parts, b"}"])


def render(event: str, decision: Decision) -> bytes:
    """What the client hands to the hook's shell line."""
    return ALLOW if isinstance(decision, Allow) or event not in _REFUSABLE else refuse_answer(deny_output(decision))


def deny_output(decision: Deny) -> str:
    """Gemini's deny. One line, no raw NUL: JSON escapes both."""
    words: dict[str, object] = {"decision": "deny", "reason": decision.reason}
    if decision.stop:
        words |= {"continue": False, "stopReason": decision.reason}
    return json.dumps(words)


MARKER = "GEMINI_CLI_WAL_AGENT_RUN"
HOOK_TIMEOUT_MS = HOOK_SECONDS * 1000
OF_TOOLS = {"BeforeTool", "AfterTool"}
FIRM = {*OF_TOOLS, "BeforeAgent"}  # may wait, for the bucket, or for a resumed session; the others are answered at once


def hook_line(setup: HookSetup, event: str) -> str:
    """The command for one event. Only a tool that has not run yet is refused; other broken hooks are silent (I6)."""
    deny = deny_output(Deny(GONE)) if event == "BeforeTool" else None
    return owner_guard(setup, MARKER) + bash_line(setup, "gemini", event, event in FIRM, deny)


def gemini_home(env: Env) -> Path:
    """Gemini's state folder, as it finds it itself."""
    return Path(env.get("GEMINI_CLI_HOME") or env.get("HOME") or Path.home()) / ".gemini"


def _install_file(place: Path) -> dict[str, str]:
    """Without it, any Gemini whose settings have security.allowedExtensions would fail to start."""
    return {".gemini-extension-install.json": json.dumps({"source": str(place), "type": "local"})}


EXTENSION = extension.ExtensionKind("Gemini", "gemini-extension.json", MARKER, _install_file)


def inject(setup: HookSetup, env: Env) -> Injected:
    return EXTENSION.inject(setup, gemini_home(env), hook_table(setup))


def hook_table(setup: HookSetup) -> HookTable:
    return extension.hook_table(setup, EVENTS, OF_TOOLS, lambda event: hook_line(setup, event), HOOK_TIMEOUT_MS)


def sweep(env: Env) -> None:
    extension.sweep(gemini_home(env))


_HAS_OURS = '[ -d "${GEMINI_CLI_HOME:-$HOME}/.gemini/extensions/wal-agent-$WAL_AGENT_RUN" ]'


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, True, _HAS_OURS, named=True)
    return HooksToInstall("gemini", "Gemini", gemini_home(env) / "settings.json", hooks)

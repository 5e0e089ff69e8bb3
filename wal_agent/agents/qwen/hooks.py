"""Qwen Code's hooks: the payloads, the answers, and the extension that brings them into one run.

A call has an id that its before- and after-hook share, and that the session file does not know. Subagents' calls come
under the parent's session. After a turn of nothing but words a hidden run of the model keeps Qwen's memory; its calls
come under the session too, and are no part of its conversation.

The shell line of a hook runs as `bash -c LINE`. Exit code 2 with words on stderr blocks a tool, and so does a deny in
JSON; nothing else does: a hook that is missing, late, killed or prints nothing lets it run.

The hooks of a run are an extension in the user's `~/.qwen/extensions` (agents/extension.py), not a system settings file
(QWEN_CODE_SYSTEM_SETTINGS_PATH): its hooks are silently lost as soon as the user's and the project's settings have
hooks of their own, and variables in it are filled in from the environment. In hooks that are installed in Qwen's own
settings, Qwen fills in variables of the environment when it reads them, to the same end as the shell would.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents import extension, installed_hooks
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Compacting,
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
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.extension import owner_guard
from wal_agent.agents.hook_line import ALLOW, GONE, HOOK_SECONDS, refuse_answer, sh_line
from wal_agent.agents.qwen.paths import folder_variables, qwen_home
from wal_agent.agents.session_files import SessionId, require_object, well_formed

# The smallest set that tells phases and calls. SessionStart fires only on a terminal; UserPromptSubmit before every
# request to the model, with an empty prompt behind a batch of tools.
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "Stop",
    "Notification",
    "PreCompact",
    "PostCompact",
)
FIRM = {"PreToolUse", "PostToolUse", "PostToolUseFailure"}  # may wait for the bucket; the others are answered at once
MEMORY = "memory"

_SHELL = "run_shell_command"
# The last lines of a shell call's result. Output that was cut off has lost them: then nobody knows.
_WELL = re.compile(r"\nError: \(none\)\nExit Code: 0\nSignal: (?:0|\(none\))\nProcess Group PGID: [^\n]*\Z")


class _Hook(msgspec.Struct):
    session_id: SessionId


class _Start(_Hook):
    source: str = ""


class _Prompt(_Hook):
    prompt: str = ""


class _Tool(_Hook):
    tool_name: str
    tool_input: msgspec.Raw
    tool_use_id: str = ""
    transcript_path: str = ""


class _Response(msgspec.Struct):
    llm: msgspec.Raw = msgspec.field(name="llmContent", default=msgspec.Raw(b'""'))


class _Ended(_Tool):
    tool_response: _Response = msgspec.field(default_factory=_Response)


class _Failed(_Tool):
    error: str = ""


class _Notice(_Hook):
    message: str = ""
    notification_type: str = ""


_TEXT = msgspec_compat.of_json(str)
_DECODERS = msgspec_compat.of_events(
    {
        "SessionStart": _Start,
        "UserPromptSubmit": _Prompt,
        "PreToolUse": _Tool,
        "PostToolUse": _Ended,
        "PostToolUseFailure": _Failed,
        "Stop": _Hook,
        "Notification": _Notice,
        "PreCompact": _Hook,
        "PostCompact": _Hook,
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
        case "SessionStart":  # after a compaction it is no start
            return OtherEvent(event) if said.source == "compact" else SessionStarted(session, said.source)
        case "UserPromptSubmit":
            return TurnStarted(session, said.prompt) if said.prompt else ModelRequest(session)
        case "PreToolUse":
            return ToolStarting(
                session, said.tool_name, require_object(said.tool_input), said.tool_use_id, _inner(said)
            )
        case "PostToolUse":
            llm = bytes(said.tool_response.llm)
            clean = said.tool_name != _SHELL or _succeeded(llm)
            result = b'{"llmContent":' + llm + b"}"
            return ToolEnded(
                session, said.tool_name, require_object(said.tool_input), result, False, said.tool_use_id, clean
            )
        case "PostToolUseFailure":
            result = msgspec.json.encode({"error": said.error})
            return ToolEnded(
                session, said.tool_name, require_object(said.tool_input), result, True, said.tool_use_id, False
            )
        case "Notification":
            asks = said.notification_type == "permission_prompt"
            return AwaitingApproval(session, said.message) if asks else OtherEvent(event)
        case "PreCompact" | "PostCompact":
            return Compacting(session, done=event == "PostCompact")
        case _:
            return TurnCompleted(session)


def _inner(said: _Tool) -> str:
    """Calls on Qwen's own memory folder `projects/<x>/memory`: made by the hidden run, or as good as."""
    projects = PurePosixPath(said.transcript_path).parent.parent.parent
    try:
        given = msgspec.json.decode(said.tool_input)
        paths = [given[key] for key in ("file_path", "path") if isinstance(given.get(key), str)]
        parts = [PurePosixPath(os.path.normpath(path)).relative_to(projects).parts for path in paths]
    except (msgspec.DecodeError, ValueError):
        return ""
    return MEMORY if projects.name == "projects" and any(p[1:2] == ("memory",) for p in parts) else ""


def _succeeded(llm: bytes) -> bool:
    try:
        text = _TEXT.decode(llm)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return _WELL.search(text) is not None


def render(event: str, decision: Decision) -> bytes:
    """What the client hands to the hook's shell line."""
    return ALLOW if isinstance(decision, Allow) or event != "PreToolUse" else refuse_answer(deny_output(decision))


def deny_output(decision: Deny) -> str:
    """A deny, in one line, no raw NUL. Qwen Code has no way for a hook to end the turn with it."""
    return json.dumps({"decision": "deny", "reason": decision.reason})


MARKER = "QWEN_WAL_AGENT_RUN"
HOOK_TIMEOUT_MS = HOOK_SECONDS * 1000


def hook_line(setup: HookSetup, event: str) -> str:
    """The command for one event. Only a tool that has not run yet is refused; other broken hooks are silent (I6)."""
    deny = deny_output(Deny(GONE)) if event == "PreToolUse" else None
    return owner_guard(setup, MARKER) + sh_line(setup, "qwen", event, event in FIRM, deny)


EXTENSION = extension.ExtensionKind("Qwen Code", "qwen-extension.json", MARKER)


def inject(setup: HookSetup, env: Env) -> Injected:
    # What is set already, no `.env` file and no settings change: neither the folders nor that hooks run.
    more = {**folder_variables(env), "QWEN_CODE_SIMPLE": "0"}
    made = EXTENSION.inject(setup, qwen_home(env), hook_table(setup))
    return replace(made, env=made.env | more)


def hook_table(setup: HookSetup) -> HookTable:
    table = extension.hook_table(setup, EVENTS, FIRM, lambda event: hook_line(setup, event), HOOK_TIMEOUT_MS)
    for group in table["Notification"]:
        group["matcher"] = "permission_prompt"
    return table


def sweep(env: Env) -> None:
    extension.sweep(qwen_home(env))


# A launcher may name the home with a `~`, which Qwen itself resolves. A relative name is Qwen's here too: hooks start
# where it does.
_HAS_OURS = (
    '{ wal_agent_home=${QWEN_HOME:-$HOME/.qwen}; case $wal_agent_home in "~"|"~/"*) '
    'wal_agent_home=$HOME${wal_agent_home#"~"};; esac; '
    '[ -d "$wal_agent_home/extensions/wal-agent-$WAL_AGENT_RUN" ]; }'
)


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, True, _HAS_OURS, named=True)
    return HooksToInstall("qwen", "Qwen Code", qwen_home(env) / "settings.json", hooks)

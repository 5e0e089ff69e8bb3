"""Qwen Code's hooks: the payloads, the answers, and the extension that brings them into one run.

A call has an id that its before- and after-hook share, and that the session file does not know. Subagents' calls come
under the parent's session. After a turn of nothing but words a hidden run of the model keeps Qwen's memory; its calls
come under the session too, and are no part of its conversation.

The shell line of a hook runs as `bash -c LINE`. Exit code 2 with words on stderr blocks a tool, and so does a deny in
JSON; nothing else does: a hook that is missing, late, killed or prints nothing lets it run.

The hooks of a run are an extension in the user's `~/.qwen/extensions` (agents/hook_line.py), not a system settings file
(QWEN_CODE_SYSTEM_SETTINGS_PATH): its hooks are silently lost as soon as the user's and the project's settings have
hooks of their own, and variables in it are filled in from the environment. In hooks that are installed in Qwen's own
settings, Qwen fills in variables of the environment when it reads them, to the same end as the shell would.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from wal_agent import msgspec_compat
from wal_agent.agents import base, installed_hooks
from wal_agent.agents.base import Deny, Env, HookEvent, HookSetup, HooksToInstall, HookTable, Injected
from wal_agent.agents.hook_line import (
    GONE,
    HOOK_SECONDS,
    ExtensionKind,
    extension_hooks,
    on,
    owner_guard,
    parser,
    renderer,
    sh_line,
    speaking_answer,
    sweep_extensions,
)
from wal_agent.agents.qwen.session import folder_variables, qwen_home
from wal_agent.agents.session_files import SessionId, require_object

FIRM = {"PreToolUse", "PostToolUse", "PostToolUseFailure"}  # may wait for the bucket; the others are answered at once
MEMORY = "memory"

_SHELL = "run_shell_command"
# The last lines of a shell call's result. Output that was cut off has lost them: then nobody knows.
_WELL = re.compile(r"\nError: \(none\)\nExit Code: 0\nSignal: (?:0|\(none\))\nProcess Group PGID: [^\n]*\Z")

# How the result begins of a command that did not come to its end.
_LATE = re.compile(r"(?:Command|Tool execution) timed out after ")
_CUT = re.compile(rb'"Command (?:timed out after|was cancelled by user before it could complete)')
_RUNS_ON = re.compile(rb'"(?:Background shell started\.|Foreground command \\".*\\" promoted to background as )')

_TEXT = msgspec_compat.of_json(str)

# Behind a compaction Qwen Code 0.24 asks at SessionStart, and adds what PreCompact says to the summary's instructions.
SPEAKING = ("PostToolUse", "Stop", "SessionStart", "PreCompact")

MARKER = "QWEN_WAL_AGENT_RUN"
HOOK_TIMEOUT_MS = HOOK_SECONDS * 1000
EXTENSION = ExtensionKind("Qwen Code", "qwen-extension.json", MARKER)

# A launcher may name the home with a `~`, which Qwen itself resolves. A relative name means the same folder here, since
# hooks start where Qwen does.
_RUNS_OWN = (
    '{ wal_agent_home=${QWEN_HOME:-$HOME/.qwen}; case $wal_agent_home in "~"|"~/"*) '
    'wal_agent_home=$HOME${wal_agent_home#"~"};; esac; '
    '[ -d "$wal_agent_home/extensions/wal-agent-$WAL_AGENT_RUN" ]; }'
)


class _Hook(msgspec.Struct):
    session_id: SessionId


class _Start(_Hook):
    source: str = ""


class _Compact(_Hook):
    trigger: str = ""


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
    is_interrupt: bool = False
    is_timeout: bool = False


class _Notice(_Hook):
    message: str = ""
    notification_type: str = ""


def _prompt(p: _Prompt) -> HookEvent:
    return base.TurnStarted(p.session_id, p.prompt) if p.prompt else base.ModelRequest(p.session_id)


def _start(p: _Start) -> HookEvent:
    """After a compaction it is no start."""
    if p.source == "compact":
        return base.ContextRequested(p.session_id)
    return base.SessionStarted(p.session_id, p.source)


def _starting(p: _Tool) -> base.ToolStarting:
    return base.ToolStarting(p.session_id, p.tool_name, require_object(p.tool_input), p.tool_use_id, _inner(p))


def _ended(p: _Ended) -> base.ToolEnded:
    llm = bytes(p.tool_response.llm)
    shell = p.tool_name == _SHELL
    clean, runs_on = not shell or _succeeded(llm), shell and _RUNS_ON.match(llm) is not None
    cut = "it was stopped before it had ended" if shell and _CUT.match(llm) else ""
    result, input = b'{"llmContent":' + llm + b"}", require_object(p.tool_input)
    return base.ToolEnded(
        p.session_id, p.tool_name, input, result, False, p.tool_use_id, clean, cut=cut, runs_on=runs_on
    )


def _failed(p: _Failed) -> base.ToolEnded:
    result, input = msgspec.json.encode({"error": p.error}), require_object(p.tool_input)
    late = p.is_timeout or _LATE.match(p.error) is not None
    cut = "it took longer than Qwen Code waits for it" if late else "it was cancelled" if p.is_interrupt else ""
    return base.ToolEnded(p.session_id, p.tool_name, input, result, True, p.tool_use_id, False, cut=cut)


def _notified(p: _Notice) -> HookEvent:
    asks = p.notification_type == "permission_prompt"
    return base.AwaitingApproval(p.session_id, p.message) if asks else base.OtherEvent("Notification")


# The smallest set that shows phases and calls. SessionStart fires only on a terminal; UserPromptSubmit before every
# request to the model, with an empty prompt behind a batch of tools.
_EVENTS = {
    "SessionStart": on(_Start, _start),
    "UserPromptSubmit": on(_Prompt, _prompt),
    "PreToolUse": on(_Tool, _starting),
    "PostToolUse": on(_Ended, _ended),
    "PostToolUseFailure": on(_Failed, _failed),
    "Stop": on(_Hook, lambda p: base.TurnCompleted(p.session_id)),
    "Notification": on(_Notice, _notified),
    "PreCompact": on(_Compact, lambda p: base.Compacting(p.session_id, done=False, trigger=p.trigger)),
    "PostCompact": on(_Hook, lambda p: base.Compacting(p.session_id, done=True)),
}
EVENTS = tuple(_EVENTS)
parse = parser(_EVENTS)


def _inner(said: _Tool) -> str:
    """Return MEMORY for a call on Qwen's own folder `projects/<x>/memory`: the hidden run made it, or as good as."""
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


def deny_output(decision: Deny) -> str:
    """Return a deny: one line without a raw NUL. Qwen Code has no way for a hook to end the turn with it."""
    return json.dumps({"decision": "deny", "reason": decision.reason})


render = renderer({"PreToolUse": deny_output}, dict.fromkeys(SPEAKING, speaking_answer))


def hook_line(setup: HookSetup, event: str) -> str:
    """Return the command of one event. Only a tool that has not run yet is refused; other broken hooks print nothing
    (I6)."""
    deny = deny_output(Deny(GONE)) if event == "PreToolUse" else None
    return owner_guard(setup, MARKER) + sh_line(setup, "qwen", event, event in FIRM, deny)


def inject(setup: HookSetup, env: Env) -> Injected:
    # No `.env` file and no settings change a variable that is set: neither the folders nor that hooks run.
    more = {**folder_variables(env), "QWEN_CODE_SIMPLE": "0"}
    made = EXTENSION.inject(setup, qwen_home(env), hook_table(setup))
    return replace(made, env=made.env | more)


def hook_table(setup: HookSetup) -> HookTable:
    table = extension_hooks(setup, EVENTS, FIRM, lambda event: hook_line(setup, event), HOOK_TIMEOUT_MS)
    for group in table["Notification"]:
        group["matcher"] = "permission_prompt"
    return table


def sweep(env: Env, runtime: Path) -> None:
    sweep_extensions(qwen_home(env))


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, True, _RUNS_OWN, named=True)
    return HooksToInstall("qwen", "Qwen Code", qwen_home(env) / "settings.json", hooks)

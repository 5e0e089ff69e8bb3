"""Claude Code's hooks: the payloads, the answers, and the settings that bring them into one run.

Each call has an id of the model's, the same before and after it. A subagent's calls come under the parent's session id,
with an `agent_id`.

The hooks of a run are in a settings file in the run's own folder, given with `--settings`. Claude merges it with the
user's, the project's and the local settings, so no file of the user's is touched. A second `--settings` would replace
it, so the user's own is merged into one file with it (I6); one entry that Claude does not understand voids the whole
file silently, so the user's is checked before (cli.check_settings).

Hooks that are installed in Claude's own settings (agents/installed_hooks.py) carry no name: Claude may drop a whole
file for a key that it does not know.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents import base, installed_hooks
from wal_agent.agents.base import Deny, Env, HookEvent, HookSetup, HooksToInstall, HookTable, Injected
from wal_agent.agents.hook_line import (
    GONE,
    HOOK_SECONDS,
    MCP_NAME,
    on,
    parser,
    permission_deny,
    refuse_answer,
    renderer,
    sh_line,
    skip_pattern,
    speaking_answer,
)
from wal_agent.agents.program import retry_after_seconds
from wal_agent.agents.session_files import InnerId, SessionId, require_object
from wal_agent.errors import ConfigError
from wal_agent.paths import user_home

TOOLS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest")
# The smallest set that shows phases and calls. No PostToolBatch: it repeats every result of its batch, and the session
# file has them a moment later. No SessionEnd: by then the terminal is the user's again.
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    *TOOLS,
    "Notification",
    "Stop",
    "StopFailure",
    "PreCompact",
    "PostCompact",
)
ASKS = ("agent_needs_input", "permission_prompt")  # Notifications: no PermissionRequest reports what auto mode asks

# Copies for the display: the input has the same, or the file.
_COPIES = {"originalFile", "structuredPatch", "oldString", "newString", "content"}
_WRITERS = {"Write", "Edit", "MultiEdit", "NotebookEdit"}

NOTIFICATION = "<task-notification>"
_RUNNERS = ("Bash", "PowerShell", "Monitor")
INTERRUPTED = "it was interrupted; it may have begun"
TIMED_OUT = "it was stopped at its time limit"
TIME_LIMIT = re.compile(r"^Command timed out after \d", re.MULTILINE)
_FIELDS = msgspec_compat.of_json(dict[str, msgspec.Raw])
SPEAKING = ("SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "Stop")

SETTINGS = "WAL_AGENT_CLAUDE_SETTINGS"  # for `command`: the path of this run's settings; the protocol is beside them
SWITCHES = ("CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SKIP_PROMPT_HISTORY")
# Settings that a file written while Claude runs must not change: Claude reads them again, and these take precedence
# over the user's, the project's and the local ones. At the start none of those has them on, or nothing is run (cli.py).
STAY_ON: dict[str, Any] = {"disableAllHooks": False, "env": dict.fromkeys(SWITCHES, "0")}
FIRM = {"PreToolUse", "PostToolUse", "PostToolUseFailure"}  # may wait for the bucket; the others are answered at once

# Claude itself is started with `--settings` in the run's folder.
_RUNS_OWN = (
    'case "$(ps -ww -o args= -p "$PPID" 2>/dev/null)" in *"${WAL_AGENT_SOCKET%/hook.sock}/"*) true;; *) false;; esac'
)


class _Hook(msgspec.Struct):
    session_id: SessionId


class _Compact(_Hook):
    agent_id: InnerId | None = None
    trigger: str | None = None


class _Start(_Hook):
    source: str | None = None
    agent_id: InnerId | None = None


class _Prompt(_Hook):
    prompt: str | None = None


class _Notice(_Hook):
    message: str = ""
    notification_type: str = ""


class _Tool(_Hook):
    tool_name: str
    tool_input: msgspec.Raw
    tool_use_id: str | None = None
    agent_id: InnerId | None = None
    cwd: str | None = None


class _Done(_Tool):
    tool_response: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))


class _Failed(_Tool):
    error: msgspec.Raw = msgspec.field(default=msgspec.Raw(b'""'))
    is_interrupt: bool | None = None


class _Task(msgspec.Struct):
    status: str | None = None


class _Stop(_Hook):
    background_tasks: list[_Task | None] | None = None


class _Failure(_Hook):
    error: str | None = None
    last_assistant_message: str | None = None


class _End(_Hook):
    reason: str | None = None


def _start(p: _Start) -> HookEvent:
    """After a compaction it may be in a turn, so it is no start."""
    if p.source != "compact":
        return base.SessionStarted(p.session_id, p.source or "")
    return base.OtherEvent("SessionStart") if p.agent_id else base.ContextRequested(p.session_id)


def _starting(p: _Tool) -> base.ToolStarting:
    cwd = p.cwd if p.cwd and p.cwd.startswith("/") else ""  # a `cd` of one command holds for the next
    input, id = require_object(p.tool_input), p.tool_use_id or ""
    return base.ToolStarting(p.session_id, p.tool_name, input, id, p.agent_id or "", cwd)


def _done(p: _Done) -> base.ToolEnded:
    response = bytes(p.tool_response)
    result = _without_copies(response) if p.tool_name in _WRITERS else response
    shell = _shell_result(response) if p.tool_name in _RUNNERS else _Shell()
    return base.ToolEnded(
        p.session_id,
        p.tool_name,
        require_object(p.tool_input),
        result,
        False,
        p.tool_use_id or "",
        clean=shell is not None and shell.succeeded,
        cut=INTERRUPTED if shell is not None and shell.interrupted else "",
        runs_on=bool(task := shell.task if shell is not None else ""),
        task=task,
    )


def _failed(p: _Failed) -> base.ToolEnded:
    error, input = bytes(p.error), require_object(p.tool_input)
    cut = INTERRUPTED if p.is_interrupt else TIMED_OUT if TIME_LIMIT.search(_text(error)) else ""
    result, id = b'{"error":' + error + b"}", p.tool_use_id or ""
    return base.ToolEnded(p.session_id, p.tool_name, input, result, True, id, clean=False, cut=cut)


def _stop(p: _Stop) -> base.TurnCompleted:
    """A command in the background continues, and its end begins a turn by itself."""
    running = any(task and task.status == "running" for task in p.background_tasks or ())
    return base.TurnCompleted(p.session_id, pending=running)


def _text(value: bytes) -> str:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return str(msgspec.json.decode(value))
    return ""


def typed_prompt(prompt: str) -> str:
    """Return a prompt that a person typed; "" for one by which Claude tells that a task in the background has ended."""
    return "" if prompt.startswith(NOTIFICATION) else prompt


def _compact(p: _Compact, event: str) -> HookEvent:
    return (
        base.OtherEvent(event)
        if p.agent_id
        else base.Compacting(p.session_id, done=event == "PostCompact", trigger=p.trigger or "")
    )


def _failure(p: _Failure) -> base.TurnFailed:
    return failed_turn(p.session_id, p.error or "", p.last_assistant_message or "")


def failed_turn(session: str, error: str, text: str) -> base.TurnFailed:
    """Return why a turn failed. `error`: rate_limit, server_error, invalid_request, billing_error,
    authentication_failed, unknown."""
    text = text[:500]
    if error in ("rate_limit", "server_error"):
        return base.TurnFailed(session, "quota", text, retry_after_seconds(text, time.time()))
    if text.lower().startswith("prompt is too long"):
        return base.TurnFailed(session, "context", "the conversation is too long for the model")
    return base.TurnFailed(session, "other", text or error)


def _notified(p: _Notice) -> base.HookEvent:
    asks = p.notification_type in ASKS
    return base.AwaitingApproval(p.session_id, p.message) if asks else base.OtherEvent("Notification")


parse = parser(
    {
        "SessionStart": on(_Start, _start),
        "UserPromptSubmit": on(_Prompt, lambda p: base.TurnStarted(p.session_id, typed_prompt(p.prompt or ""))),
        "PreToolUse": on(_Tool, _starting),
        "PostToolUse": on(_Done, _done),
        "PostToolUseFailure": on(_Failed, _failed),
        "PermissionRequest": on(_Tool, lambda p: base.AwaitingApproval(p.session_id, p.tool_name)),
        "Notification": on(_Notice, _notified),
        "Stop": on(_Stop, _stop),
        "StopFailure": on(_Failure, _failure),
        "PreCompact": on(_Compact, lambda p: _compact(p, "PreCompact")),
        "PostCompact": on(_Compact, lambda p: _compact(p, "PostCompact")),
        "SessionEnd": on(_End, lambda p: base.SessionEnded(p.session_id, p.reason or "")),
    }
)


class _Shell(msgspec.Struct):
    """A command's result. `background`: the id of the task that goes on, also when Claude or the user moved a command
    there while it ran."""

    interrupted: bool = False
    returned: str | None = msgspec.field(name="returnCodeInterpretation", default=None)
    background: str | None = msgspec.field(name="backgroundTaskId", default=None)
    monitor: str | None = msgspec.field(name="taskId", default=None)

    @property
    def task(self) -> str:
        return self.background or self.monitor or ""

    @property
    def succeeded(self) -> bool:
        """Whether the command is known to have ended with 0. Other codes are failures, except a few that Claude treats
        as an answer (`grep`, `diff`)."""
        return not self.interrupted and self.returned is None and not self.task


_SHELL = msgspec_compat.of_json(_Shell)


def _shell_result(response: bytes) -> _Shell | None:
    """Return None for a result that is not understood."""
    try:
        return _SHELL.decode(response)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _without_copies(response: bytes) -> bytes:
    try:
        fields = _FIELDS.decode(response)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return response
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in _COPIES})


def _block(decision: Deny) -> str:
    return json.dumps({"decision": "block", "reason": decision.reason})


def _keep(event: str, words: str) -> bytes:
    """What this hook prints is added to the summary's instructions."""
    return refuse_answer(json.dumps({"keep": words}))


# `stop` has no spelling: with `"continue": false` beside the denial the turn continues all the same, and without the
# denial the tool even runs.
render = renderer(
    {"PreToolUse": permission_deny, "PreCompact": _block},
    {"PreCompact": _keep, **dict.fromkeys(SPEAKING, speaking_answer)},
)


def claude_home(env: Env) -> Path:
    """Return Claude's state folder, by its own rule."""
    own = env.get("CLAUDE_CONFIG_DIR")
    return Path(own) if own else user_home(env) / ".claude"


def inject(setup: HookSetup, env: Env) -> Injected:
    place = setup.run_dir / "claude-settings.json"
    try:
        allowed = {"permissions": {"allow": [f"mcp__{MCP_NAME}"]}} if setup.mcp else {}
        place.write_text(json.dumps({"hooks": hook_table(setup), **STAY_ON, **allowed}, indent=1))
        protocol_file(place).write_text(setup.protocol)
        if setup.mcp:
            mcp_file(place).write_text(json.dumps({"mcpServers": {MCP_NAME: setup.mcp.as_json()}}))
    except OSError as e:
        raise ConfigError(f"Claude Code's hooks could not be placed in {place}: {e.strerror or e}.") from e
    return Injected(env={SETTINGS: str(place)})


def merged_settings_file(settings: Path) -> Path:
    return settings.with_name("claude-settings-merged.json")


def run_settings_files(env: Env) -> list[Path]:
    """Return this run's settings, and one file with the user's where `--settings` names one: Claude reads it again when
    another one changes."""
    ours = Path(env[SETTINGS])
    return [ours, merged_settings_file(ours)]


def protocol_file(settings: Path) -> Path:
    return settings.with_name("claude-protocol.md")


def mcp_file(settings: Path) -> Path:
    """Return the file that names this run's MCP server, where it has one."""
    return settings.with_name("claude-mcp.json")


def hook_table(setup: HookSetup) -> HookTable:
    table: HookTable = {}
    for event in EVENTS:
        deny = permission_deny(Deny(GONE)) if event == "PreToolUse" else None
        line = sh_line(setup, "claude", event, event in FIRM, deny)
        # Seconds. One above 2147483 would be over at once, and the tool run.
        group: dict[str, Any] = {"hooks": [{"type": "command", "command": line, "timeout": HOOK_SECONDS}]}
        if event in TOOLS and setup.skip:
            group["matcher"] = skip_pattern(setup.skip)
        elif event == "Notification":
            group["matcher"] = "|".join(ASKS)
        table[event] = [group]
    return table


def merge_settings(ours: Path, users: dict[str, Any]) -> Path:
    """Write one file with both: the user's, then wal-agent's hooks beside the user's own. Return its path, in the run's
    folder."""
    own = json.loads(ours.read_bytes())
    hooks = {event: list(groups) for event, groups in users.get("hooks", {}).items()}
    for event, groups in own["hooks"].items():
        hooks[event] = [*hooks.get(event, []), *groups]
    place = merged_settings_file(ours)
    both = {**users, **own, "hooks": hooks, "env": {**users.get("env", {}), **own["env"]}}
    if "permissions" in own:
        theirs = users.get("permissions", {})
        allow = [*theirs.get("allow", []), *own["permissions"]["allow"]]
        both["permissions"] = {**theirs, "allow": allow}
    place.write_text(json.dumps(both, indent=1))
    return place


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, False, _RUNS_OWN, named=False)
    return HooksToInstall("claude", "Claude Code", claude_home(env) / "settings.json", hooks)

"""Claude Code's hooks: the payloads, the answers, and the settings that bring them into one run.

Each call has an id of the model's, the same before and after it. A subagent's calls come under the parent's session id,
with an `agent_id`.

The hooks of a run are in a settings file in the run's own folder, given with `--settings`. Claude merges it with the
user's, the project's and the local settings, so no file of the user's is touched. A second `--settings` would replace
it, so the user's own is merged into one file with it (I6); one entry that Claude does not understand voids the whole
file silently, so the user's is checked before (settings_schema.py).

Hooks that are installed in Claude's own settings (agents/installed_hooks.py) carry no name: Claude may drop a whole
file for a key that it does not know.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents import installed_hooks
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Compacting,
    ContextRequested,
    Decision,
    Deny,
    Env,
    HookEvent,
    HookSetup,
    HooksToInstall,
    Injected,
    OtherEvent,
    SessionEnded,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from wal_agent.agents.exit_text import retry_after_seconds
from wal_agent.agents.hook_line import ALLOW, GONE, HOOK_SECONDS, refuse_answer, sh_line
from wal_agent.agents.session_files import InnerId, SessionId, require_object, well_formed
from wal_agent.errors import ConfigError

TOOLS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest")
# The smallest set that tells phases and calls. No PostToolBatch: it repeats every result of its batch, and the session
# file tells the same a moment later. No SessionEnd: by then the terminal is the user's again.
EVENTS = ("SessionStart", "UserPromptSubmit", *TOOLS, "Stop", "StopFailure", "PreCompact", "PostCompact")


class _Hook(msgspec.Struct):
    session_id: SessionId


class _Compact(_Hook):
    agent_id: InnerId | None = None


class _Start(_Hook):
    source: str | None = None
    agent_id: InnerId | None = None


class _Prompt(_Hook):
    prompt: str | None = None


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


class _Task(msgspec.Struct):
    status: str | None = None


class _Stop(_Hook):
    background_tasks: list[_Task | None] | None = None


class _Failure(_Hook):
    error: str | None = None
    last_assistant_message: str | None = None


class _End(_Hook):
    reason: str | None = None


_DECODERS = msgspec_compat.of_events(
    {
        "SessionStart": _Start,
        "UserPromptSubmit": _Prompt,
        "PreToolUse": _Tool,
        "PostToolUse": _Done,
        "PostToolUseFailure": _Failed,
        "PermissionRequest": _Tool,
        "Stop": _Stop,
        "StopFailure": _Failure,
        "PreCompact": _Compact,
        "PostCompact": _Compact,
        "SessionEnd": _End,
    }
)

# Copies for the display: the input has the same, or the file.
_COPIES = {"originalFile", "structuredPatch", "oldString", "newString", "content"}
_WRITERS = {"Write", "Edit", "MultiEdit", "NotebookEdit"}


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
        case "SessionStart" if said.source == "compact":  # it may be in a turn, so it is no start
            return OtherEvent(event) if said.agent_id else ContextRequested(session)
        case "SessionStart":
            return SessionStarted(session, said.source or "")
        case "UserPromptSubmit":
            return TurnStarted(session, said.prompt or "")
        case "PreToolUse":
            inner = said.agent_id or ""
            # a `cd` of one command holds for the next
            where = said.cwd if said.cwd and said.cwd.startswith("/") else ""
            return ToolStarting(
                session, said.tool_name, require_object(said.tool_input), said.tool_use_id or "", inner, where
            )
        case "PostToolUse":
            response = bytes(said.tool_response)
            result = _without_copies(response) if said.tool_name in _WRITERS else response
            clean = said.tool_name != "Bash" or _succeeded(response)
            return ToolEnded(
                session,
                said.tool_name,
                require_object(said.tool_input),
                result,
                False,
                said.tool_use_id or "",
                clean=clean,
            )
        case "PostToolUseFailure":
            result = b'{"error":' + bytes(said.error) + b"}"
            return ToolEnded(
                session,
                said.tool_name,
                require_object(said.tool_input),
                result,
                True,
                said.tool_use_id or "",
                clean=False,
            )
        case "PermissionRequest":
            return AwaitingApproval(session, said.tool_name)
        case "Stop":
            # A command in the background goes on, and its end begins a turn by itself.
            running = any(task and task.status == "running" for task in said.background_tasks or ())
            return TurnCompleted(session, pending=running)
        case "PreCompact" | "PostCompact":
            return OtherEvent(event) if said.agent_id else Compacting(session, done=event == "PostCompact")
        case "StopFailure":
            return _failure(session, said.error or "", (said.last_assistant_message or "")[:500])
        case _:
            return SessionEnded(session, said.reason or "")


def _failure(session: str, error: str, said: str) -> TurnFailed:
    """`error`: rate_limit, server_error, invalid_request, billing_error, authentication_failed, unknown."""
    if error in ("rate_limit", "server_error"):
        return TurnFailed(session, "quota", said, retry_after_seconds(said, time.time()))
    if said.lower().startswith("prompt is too long"):
        return TurnFailed(session, "context", "the conversation is too long for the model")
    return TurnFailed(session, "other", said or error)


class _Shell(msgspec.Struct):
    interrupted: bool = False
    returned: str | None = msgspec.field(name="returnCodeInterpretation", default=None)
    background: str | None = msgspec.field(name="backgroundTaskId", default=None)


_SHELL = msgspec_compat.of_json(_Shell)
_FIELDS = msgspec_compat.of_json(dict[str, msgspec.Raw])


def _succeeded(response: bytes) -> bool:
    """A command that is known to have ended with 0. Other codes are failures, but for a few that Claude takes for an
    answer (`grep`, `diff`); one in the background has not ended."""
    try:
        told = _SHELL.decode(response)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not told.interrupted and told.returned is None and told.background is None


def _without_copies(response: bytes) -> bytes:
    try:
        fields = _FIELDS.decode(response)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return response
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in _COPIES})


def render(event: str, decision: Decision) -> bytes:
    """What the client hands to the hook's shell line."""
    if event == "SessionStart" and isinstance(decision, Allow) and decision.words:
        said = {"hookEventName": event, "additionalContext": decision.words}
        return refuse_answer(json.dumps({"hookSpecificOutput": said}))
    return ALLOW if isinstance(decision, Allow) or event != "PreToolUse" else refuse_answer(deny_output(decision))


def deny_output(decision: Deny) -> str:
    """Claude's deny, one line. `stop` has no spelling: with `"continue": false` beside it the turn goes on all the
    same, and without the denial the tool even runs."""
    denied = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": decision.reason,
    }
    return json.dumps({"hookSpecificOutput": denied})


SETTINGS = "WAL_AGENT_CLAUDE_SETTINGS"  # tells `command` where our settings are, and the standing protocol beside them
SWITCHES = ("CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SKIP_PROMPT_HISTORY")
# What a settings file that is written while Claude runs must not change: it reads them again, and these count more than
# the user's, the project's and the local ones. At the start none of those has them on, or nothing is run (settings.py).
STAY_ON: dict[str, Any] = {"disableAllHooks": False, "env": dict.fromkeys(SWITCHES, "0")}
FIRM = {"PreToolUse", "PostToolUse", "PostToolUseFailure"}  # may wait for the bucket; the others are answered at once


def claude_home(env: Env) -> Path:
    """Claude's state folder, as it finds it itself."""
    own = env.get("CLAUDE_CONFIG_DIR")
    return Path(own) if own else Path(env.get("HOME") or Path.home()) / ".claude"


def inject(setup: HookSetup, env: Env) -> Injected:
    place = setup.run_dir / "claude-settings.json"
    try:
        place.write_text(json.dumps({"hooks": hook_table(setup), **STAY_ON}, indent=1))
        protocol_file(place).write_text(setup.protocol)
    except OSError as e:
        raise ConfigError(f"Claude Code's hooks could not be placed in {place}: {e.strerror or e}.") from e
    return Injected(env={SETTINGS: str(place)})


def merged_settings_file(settings: Path) -> Path:
    return settings.with_name("claude-settings-merged.json")


def run_settings_files(env: Env) -> list[Path]:
    """This run's settings, one file with the user's where `--settings` names one: Claude reads it again when another
    one changes."""
    ours = Path(env[SETTINGS])
    return [ours, merged_settings_file(ours)]


def protocol_file(settings: Path) -> Path:
    return settings.with_name("claude-protocol.md")


def hook_table(setup: HookSetup) -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = {}
    for event in EVENTS:
        deny = deny_output(Deny(GONE)) if event == "PreToolUse" else None
        line = sh_line(setup, "claude", event, event in FIRM, deny)
        # Seconds. One above 2147483 would be over at once, and the tool run.
        group: dict[str, Any] = {"hooks": [{"type": "command", "command": line, "timeout": HOOK_SECONDS}]}
        if event in TOOLS and setup.skip:
            group["matcher"] = f"^(?!(?:{'|'.join(map(re.escape, setup.skip))})$)"
        table[event] = [group]
    return table


def merge_settings(ours: Path, users: dict[str, Any]) -> Path:
    """One file with both: the user's, then our hooks beside the user's own. Gives its path, in the run's folder."""
    own = json.loads(ours.read_bytes())
    hooks = {event: list(groups) for event, groups in users.get("hooks", {}).items()}
    for event, groups in own["hooks"].items():
        hooks[event] = [*hooks.get(event, []), *groups]
    place = merged_settings_file(ours)
    both = {**users, **own, "hooks": hooks, "env": {**users.get("env", {}), **own["env"]}}
    place.write_text(json.dumps(both, indent=1))
    return place


# Claude itself is started with `--settings` in the run's folder.
_HAS_OURS = (
    'case "$(ps -ww -o args= -p "$PPID" 2>/dev/null)" in *"${WAL_AGENT_SOCKET%/hook.sock}/"*) true;; *) false;; esac'
)


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, False, _HAS_OURS, named=False)
    return HooksToInstall("claude", "Claude Code", claude_home(env) / "settings.json", hooks)

"""Copilot's hooks: the payloads, the answers, the plugin that brings them into one run; and Copilot's folders.

Copilot gives hooks no call ids: of equal parallel calls it is known how many ended, not which. What a subagent does
arrives under an id of its own that names its parent's; its calls are in the parent's session file too.

The hooks of a run are a plugin in the run's own folder, given with `--plugin-dir`. It loads beside the user's own
plugins, so no file of the user's is touched. The standing protocol is a folder of instructions, which Copilot reads at
each start and resume.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Decision,
    Deny,
    Env,
    HookEvent,
    HookSetup,
    Injected,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.hook_line import ALLOW, GONE, HOOK_SECONDS, bash_line, refuse_answer
from wal_agent.agents.session_files import InnerId, SessionId, well_formed
from wal_agent.errors import ConfigError
from wal_agent.safefs import flock_state

SESSION = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def copilot_home(env: Env) -> Path:
    own = env.get("COPILOT_HOME")
    return Path(own) if own else Path(env.get("HOME") or Path.home()) / ".copilot"


def platform_builds() -> list[str]:
    """Names of its builds for this machine, best first."""
    machine = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    musl = sys.platform == "linux" and platform.libc_ver()[0] != "glibc"
    return [f"{kind}-{machine}" for kind in (("linuxmusl", "linux") if musl else (sys.platform,))]


def program_cache(env: Env) -> Path:
    """Where its program unpacks itself, 235 MB, at the first start of a version."""
    return program_caches(env)[0]


def program_caches(env: Env) -> list[Path]:
    """Where it looks for versions of itself."""
    home = Path(env.get("HOME") or Path.home())
    shared = Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "copilot"
    named = (env.get(name) for name in ("COPILOT_PKG_CACHE_HOME", "COPILOT_CACHE_HOME"))
    own = home / "Library/Caches/copilot" if sys.platform == "darwin" else shared
    return [*(Path(path) for path in named if path), own, shared, copilot_home(env), home / ".copilot"]


# The smallest set that tells phases and calls. `permissionRequest` also fires where nobody is asked, so the question to
# a person is told by `notification`. No `sessionEnd`: by then the terminal is the user's again (I6).
EVENTS = (
    "sessionStart",
    "userPromptSubmitted",
    "preToolUse",
    "postToolUse",
    "postToolUseFailure",
    "agentStop",
    "notification",
)
SHELLS = frozenset(
    f"{verb}{shell}" for shell in ("bash", "powershell", "local_shell") for verb in ("", "read_", "write_", "stop_")
)


class _Hook(msgspec.Struct):
    session: SessionId = msgspec.field(name="sessionId")
    agent: InnerId = msgspec.field(name="agentId", default="")
    parent: InnerId = msgspec.field(name="parentAgentId", default="")


class _Start(_Hook):
    source: str = ""


class _Prompt(_Hook):
    prompt: str = ""


class _Tool(_Hook, kw_only=True):
    tool: str = msgspec.field(name="toolName")
    args: msgspec.Raw = msgspec.field(name="toolArgs")


class _Result(msgspec.Struct):
    kind: str = msgspec.field(name="resultType")
    text: str = msgspec.field(name="textResultForLlm", default="")


class _Ended(_Tool, kw_only=True):
    result: _Result = msgspec.field(name="toolResult")


class _Failed(_Tool):
    error: msgspec.Raw = msgspec.field(default=msgspec.Raw(b'""'))


class _Notice(_Hook):
    message: str = ""
    kind: str = msgspec.field(name="notification_type", default="")


_DECODERS = msgspec_compat.of_events(
    {
        "sessionStart": _Start,
        "userPromptSubmitted": _Prompt,
        "preToolUse": _Tool,
        "postToolUse": _Ended,
        "postToolUseFailure": _Failed,
        "agentStop": _Hook,
        "notification": _Notice,
    }
)
_NOTIFICATION = "<system_notification>"  # a turn that a background command's end began, not a person
# The last line of a command's result; a command that runs on, or a result that was cut, has another one or none.
_CLEAN = re.compile(r"<shellId: [^<>\n]* completed with exit code 0>\s*\Z")


def parse(event: str, payload: bytes) -> HookEvent:
    """ValueError when the payload is not what this event carries: the caller then denies."""
    if event not in _DECODERS:
        return OtherEvent(name=event)
    try:
        said: Any = _DECODERS[event].decode(well_formed(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{event} hook: {e}") from e
    session = said.parent or said.session
    match event:
        case "preToolUse":
            return ToolStarting(session, said.tool, call_arguments(bytes(said.args)))
        case "postToolUse":
            failed = said.result.kind != "success"
            clean = not failed and (said.tool not in SHELLS or _CLEAN.search(said.result.text) is not None)
            result = msgspec.json.encode({"text": said.result.text, "type": said.result.kind})
            return ToolEnded(session, said.tool, call_arguments(bytes(said.args)), result, failed, clean=clean)
        case "postToolUseFailure":
            result = b'{"error":' + bytes(said.error) + b"}"
            return ToolEnded(session, said.tool, call_arguments(bytes(said.args)), result, failed=True, clean=False)
        case "notification" if said.kind == "permission_prompt":
            return AwaitingApproval(session, said.message)
        case "notification":
            return OtherEvent(name=event)
        case _ if said.agent:
            return OtherEvent(name=event)  # a subagent's own turn
        case "sessionStart":
            return SessionStarted(session, said.source)
        case "userPromptSubmitted":
            return TurnStarted(session, "" if said.prompt.startswith(_NOTIFICATION) else said.prompt)
        case _:
            return TurnCompleted(session)


def call_arguments(raw: bytes) -> bytes:
    """A call's input as a JSON object; some models give some tools text instead, or nothing."""
    if raw == b"null":
        return b"{}"
    return raw if raw[:1] == b"{" else b'{"input":' + raw + b"}"


def render(event: str, decision: Decision) -> bytes:
    """What the client hands to the hook's shell line."""
    return ALLOW if isinstance(decision, Allow) or event != "preToolUse" else refuse_answer(deny_output(decision))


def deny_output(decision: Deny) -> str:
    """Copilot's deny, one line; it knows no way to end the turn too."""
    return json.dumps({"permissionDecision": "deny", "permissionDecisionReason": decision.reason})


PLUGIN = "WAL_AGENT_COPILOT_PLUGIN"  # tells `command` where it is
INSTRUCTIONS = "COPILOT_CUSTOM_INSTRUCTIONS_DIRS"
FIRM = {"preToolUse", "postToolUse", "postToolUseFailure"}  # may wait for the bucket; the others are answered at once


def inject(setup: HookSetup, env: Env) -> Injected:
    place, told = setup.run_dir / "copilot-plugin", setup.run_dir / "copilot-protocol"
    files = {
        place / "plugin.json": json.dumps({"name": "wal-agent", "version": "1.0.0", "hooks": "hooks/hooks.json"}),
        place / "hooks/hooks.json": json.dumps({"version": 1, "hooks": hook_table(setup)}, indent=1),
        told / ".github/instructions/wal-agent.instructions.md": f'---\napplyTo: "**"\n---\n{setup.protocol}',
    }
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as e:
        raise ConfigError(f"Copilot's hooks could not be placed in {place}: {e.strerror or e}.") from e
    added = {PLUGIN: str(place)}
    if setup.protocol and "," not in str(told):  # Copilot's separator
        added[INSTRUCTIONS] = ",".join(filter(None, [env.get(INSTRUCTIONS), str(told)]))
    return Injected(added, (plugin_data(place, env),))


def sweep(env: Env, runtime: Path) -> None:
    """Remove the folders that Copilot made for the plugins of dead runs."""
    for place in runtime.glob("*/copilot-plugin"):
        left = plugin_data(place, env)
        if left.is_dir() and not left.is_symlink() and flock_state(place.parent / "lock") == "free":
            shutil.rmtree(left, ignore_errors=True)


def hook_table(setup: HookSetup) -> dict[str, list[dict[str, Any]]]:
    """No matcher, so hooks fire for the tools in `skip` too: Copilot has no "all but these", and a pattern that it does
    not understand silently matches nothing."""
    return {
        event: [
            {
                "type": "command",
                "bash": bash_line(
                    setup, "copilot", event, event in FIRM, deny_output(Deny(GONE)) if event == "preToolUse" else None
                ),
                "timeoutSec": HOOK_SECONDS,
            }
        ]
        for event in EVENTS
    }


def plugin_data(place: Path, env: Env) -> Path:
    """The empty folder that Copilot makes for the data of a plugin that is given by path."""
    source = json.dumps({"source": "local", "path": str(place)}, separators=(",", ":"), ensure_ascii=False)
    return copilot_home(env) / "plugin-data" / "_direct" / hashlib.sha256(source.encode()).hexdigest()

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

from wal_agent.agents import base
from wal_agent.agents.base import Deny, Env, HookEvent, HookSetup, Injected
from wal_agent.agents.hook_line import (
    GONE,
    HOOK_SECONDS,
    MCP_NAME,
    bash_line,
    on,
    outer,
    parser,
    refuse_answer,
    renderer,
)
from wal_agent.agents.session_files import InnerId, SessionId
from wal_agent.errors import ConfigError
from wal_agent.paths import user_home
from wal_agent.safefs import flock_state

SESSION = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}

SHELLS = frozenset(
    f"{verb}{shell}" for shell in ("bash", "powershell", "local_shell") for verb in ("", "read_", "write_", "stop_")
)

STARTERS = frozenset(("bash", "powershell", "local_shell"))

_NOTIFICATION = "<system_notification>"  # a turn that a background command's end began, not a person
# The last line of a command's result; a command that runs on, or a result that was cut, has another one or none.
_CLEAN = re.compile(r"<shellId: [^<>\n]* completed with exit code 0>\s*\Z")
# That of one that runs on: started there, at the end of the time that Copilot waits, or moved there by the user.
_RUNS_ON = re.compile(
    r"<command (?:started in (?:detached )?background with shellId: (?P<started>[^<>\n]*)"
    r"|with shellId: (?P<moved>\S+) (?:is still running after |moved to background )[^<>\n]*)>\s*\Z"
)

PLUGIN = "WAL_AGENT_COPILOT_PLUGIN"  # for `command`: the path of the plugin
INSTRUCTIONS = "COPILOT_CUSTOM_INSTRUCTIONS_DIRS"
FIRM = {"preToolUse", "postToolUse", "postToolUseFailure"}  # may wait for the bucket; the others are answered at once


def copilot_home(env: Env) -> Path:
    own = env.get("COPILOT_HOME")
    return Path(own) if own else user_home(env) / ".copilot"


def platform_builds() -> list[str]:
    """Return the names of its builds for this machine, best first."""
    machine = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    musl = sys.platform == "linux" and platform.libc_ver()[0] != "glibc"
    return [f"{kind}-{machine}" for kind in (("linuxmusl", "linux") if musl else (sys.platform,))]


def program_cache(env: Env) -> Path:
    """Return where its program unpacks itself, 235 MB, at the first start of a version."""
    return program_caches(env)[0]


def program_caches(env: Env) -> list[Path]:
    """Return where it looks for versions of itself."""
    home = user_home(env)
    shared = Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "copilot"
    named = (env.get(name) for name in ("COPILOT_PKG_CACHE_HOME", "COPILOT_CACHE_HOME"))
    own = home / "Library/Caches/copilot" if sys.platform == "darwin" else shared
    return [*(Path(path) for path in named if path), own, shared, copilot_home(env), home / ".copilot"]


class _Hook(msgspec.Struct):
    session: SessionId = msgspec.field(name="sessionId")
    agent_id: InnerId = msgspec.field(name="agentId", default="")
    parent: InnerId = msgspec.field(name="parentAgentId", default="")


class _Start(_Hook):
    source: str = ""


class _Compact(_Hook):
    trigger: str = ""


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


def running_shell(tool: str, text: str) -> str:
    """Return the id of the shell in which the command of this result runs on; "" for none."""
    found = _RUNS_ON.search(text) if tool in STARTERS else None
    return (found["started"] or found["moved"]) if found else ""


def _ended(p: _Ended) -> base.ToolEnded:
    failed = p.result.kind != "success"
    clean = not failed and (p.tool not in SHELLS or _CLEAN.search(p.result.text) is not None)
    result = msgspec.json.encode({"text": p.result.text, "type": p.result.kind})
    task = running_shell(p.tool, p.result.text)
    input = call_arguments(bytes(p.args))
    return base.ToolEnded(_session(p), p.tool, input, result, failed, clean=clean, runs_on=bool(task), task=task)


def _starting(p: _Tool) -> base.ToolStarting:
    inner = p.session if p.parent else ""
    return base.ToolStarting(_session(p), p.tool, call_arguments(bytes(p.args)), inner=inner, reported=True)


def _failed(p: _Failed) -> base.ToolEnded:
    result = b'{"error":' + bytes(p.error) + b"}"
    return base.ToolEnded(_session(p), p.tool, call_arguments(bytes(p.args)), result, failed=True, clean=False)


def _prompt(p: _Prompt) -> base.TurnStarted:
    return base.TurnStarted(_session(p), "" if p.prompt.startswith(_NOTIFICATION) else p.prompt)


def _notified(p: _Notice) -> HookEvent:
    asks = p.kind == "permission_prompt"
    return base.AwaitingApproval(_session(p), p.message) if asks else base.OtherEvent("notification")


def _session(p: _Hook) -> str:
    return p.parent or p.session


# The smallest set that shows phases and calls. `permissionRequest` also fires where nobody is asked, so `notification`
# reports the question to a user. No `sessionEnd`: by then the terminal is the user's again (I6).
_EVENTS = dict(
    (
        outer("sessionStart", _Start, lambda p: base.SessionStarted(_session(p), p.source)),
        outer("userPromptSubmitted", _Prompt, _prompt),
        ("preToolUse", on(_Tool, _starting)),
        ("postToolUse", on(_Ended, _ended)),
        ("postToolUseFailure", on(_Failed, _failed)),
        outer("agentStop", _Hook, lambda p: base.TurnCompleted(_session(p))),
        outer(
            "preCompact", _Compact, lambda p: base.Compacting(_session(p), done=False, trigger=p.trigger, aside=True)
        ),
        ("notification", on(_Notice, _notified)),
    )
)
EVENTS = tuple(_EVENTS)
parse = parser(_EVENTS)


def call_arguments(raw: bytes) -> bytes:
    """Return a call's input as a JSON object; some models give some tools text instead, or nothing."""
    if raw == b"null":
        return b"{}"
    return raw if raw[:1] == b"{" else b'{"input":' + raw + b"}"


def deny_output(decision: Deny) -> str:
    """Return Copilot's deny, one line; none ends the turn too."""
    return json.dumps({"permissionDecision": "deny", "permissionDecisionReason": decision.reason})


def _add(event: str, words: str) -> bytes:
    return refuse_answer(json.dumps({"additionalContext": words}))


render = renderer({"preToolUse": deny_output}, {"postToolUse": _add, "userPromptSubmitted": _add})


def inject(setup: HookSetup, env: Env) -> Injected:
    place, instructions = setup.run_dir / "copilot-plugin", setup.run_dir / "copilot-protocol"
    manifest: dict[str, Any] = {"name": "wal-agent", "version": "1.0.0", "hooks": "hooks/hooks.json"}
    if setup.mcp:
        manifest["mcpServers"] = {MCP_NAME: setup.mcp.as_json()}
    files = {
        place / "plugin.json": json.dumps(manifest),
        place / "hooks/hooks.json": json.dumps({"version": 1, "hooks": hook_table(setup)}, indent=1),
        instructions / ".github/instructions/wal-agent.instructions.md": f'---\napplyTo: "**"\n---\n{setup.protocol}',
    }
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as e:
        raise ConfigError(f"Copilot's hooks could not be placed in {place}: {e.strerror or e}.") from e
    added = {PLUGIN: str(place)}
    if setup.protocol and "," not in str(instructions):  # Copilot's separator
        added[INSTRUCTIONS] = ",".join(filter(None, [env.get(INSTRUCTIONS), str(instructions)]))
    return Injected(added, (plugin_data(place, env),))


def sweep(env: Env, runtime: Path) -> None:
    """Remove the folders that Copilot made for the plugins of dead runs."""
    for place in runtime.glob("*/copilot-plugin"):
        left = plugin_data(place, env)
        if left.is_dir() and not left.is_symlink() and flock_state(place.parent / "lock") == "free":
            shutil.rmtree(left, ignore_errors=True)


def hook_table(setup: HookSetup) -> dict[str, list[dict[str, Any]]]:
    """Make the table. No matcher, so hooks fire for the tools in `skip` too: Copilot has no "all but these", and a
    pattern that it does not understand silently matches nothing."""
    table: dict[str, list[dict[str, Any]]] = {}
    for event in EVENTS:
        deny = deny_output(Deny(GONE)) if event == "preToolUse" else None
        line = bash_line(setup, "copilot", event, event in FIRM, deny)
        table[event] = [{"type": "command", "bash": line, "timeoutSec": HOOK_SECONDS}]
    return table


def plugin_data(place: Path, env: Env) -> Path:
    """Return the empty folder that Copilot makes for the data of a plugin that is given by path."""
    source = json.dumps({"source": "local", "path": str(place)}, separators=(",", ":"), ensure_ascii=False)
    return copilot_home(env) / "plugin-data" / "_direct" / hashlib.sha256(source.encode()).hexdigest()

"""Codex's hooks: the payloads, the answers, and the session flags that bring them into one run.

Every call has an id: the model's own on the plain path, `exec-<uuid>` for a call that a script of code mode makes.
Subagents' hooks come under the root's session id and name the agent. The after-hook does not carry a command's exit
code; Codex writes it to the session file just before, so it is read there.

The hooks of a run are session flags on the command line, trusted by their hashes. No file of the user's is touched. The
user's own hooks are in other sources and stay active; those that are not trusted stay off. The flags wait in the run's
folder for `command`, since a hook's line is long and every process can read an environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Compacting,
    Decision,
    Deny,
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
from wal_agent.agents.hook_line import ALLOW, GONE, HOOK_SECONDS, refuse_answer, sh_line
from wal_agent.agents.session_files import InnerId, SessionId, decode_json, well_formed
from wal_agent.errors import ConfigError

_TAILS = (1 << 17, 1 << 22)  # bytes from the end: the line is among the last, behind what other calls printed meanwhile


def read_exit_code(path: str | None, call_id: str) -> int | None:
    """None: it cannot be told."""
    if not path:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        about = os.fstat(fd)
        for tail in _TAILS if stat.S_ISREG(about.st_mode) else ():
            found = _exit_code_in(os.pread(fd, tail, max(0, about.st_size - tail)), call_id)
            if found is not None or tail >= about.st_size:
                return found
    except OSError:
        pass
    finally:
        os.close(fd)
    return None


def _exit_code_in(data: bytes, call_id: str) -> int | None:
    wanted = call_id.encode()
    for line in reversed(data.split(b"\n")):
        if wanted not in line or b'"item_completed"' not in line:
            continue
        try:
            item = decode_json(line)["payload"]["item"]
            if item["type"] == "CommandExecution" and item["id"] == call_id:
                return int(item["exit_code"])
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return None


# The smallest set that tells phases and calls. No SessionEnd: Codex waits for it, and Stop has said what counts.
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreModelRequest",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "Stop",
    "PreCompact",
    "PostCompact",
)
SHELL = "Bash"  # the hooks' name of exec_command and its kin


class _Hook(msgspec.Struct):
    session_id: SessionId
    agent_id: InnerId = ""
    transcript_path: str | None = None


class _Start(_Hook):
    source: str = ""


class _Prompt(_Hook):
    prompt: str = ""


class _Asked(_Hook):
    tool_name: str = ""


class _Tool(_Hook, kw_only=True):
    tool_name: str
    tool_input: msgspec.Raw
    tool_use_id: str
    cwd: str = ""  # the call's own: its `workdir` is told nowhere else


class _Ended(_Tool, kw_only=True):
    tool_response: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


_DECODERS = msgspec_compat.of_events(
    {
        "SessionStart": _Start,
        "UserPromptSubmit": _Prompt,
        "PreModelRequest": _Hook,
        "PreToolUse": _Tool,
        "PermissionRequest": _Asked,
        "PostToolUse": _Ended,
        "Stop": _Hook,
        "PreCompact": _Hook,
        "PostCompact": _Hook,
    }
)
_WRONG = re.compile(rb'"(?:Exit code: (?!0\\n)|[^"]{0,80}(?:failed|error)\b)')


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
        case "PreToolUse":
            _check(said)
            input = bytes(said.tool_input)
            return ToolStarting(session, said.tool_name, input, said.tool_use_id, said.agent_id, said.cwd)
        case "PostToolUse":
            _check(said)
            return _ended(said)
        case "PermissionRequest":
            return AwaitingApproval(session, said.tool_name)
        case _ if said.agent_id:  # a subagent's turn is no turn of the session
            return OtherEvent(name=event)
        case "SessionStart":  # after a compaction it is no start
            return OtherEvent(event) if said.source == "compact" else SessionStarted(session, said.source)
        case "PreCompact" | "PostCompact":
            return Compacting(session, done=event == "PostCompact")
        case "UserPromptSubmit":
            return TurnStarted(session, said.prompt)
        case "PreModelRequest":
            return ModelRequest(session)
        case _:
            return TurnCompleted(session)


def _check(said: _Tool) -> None:
    if bytes(said.tool_input)[:1] != b"{":
        raise ValueError("tool_input is not an object")
    if not said.tool_use_id:
        raise ValueError("a call without an id")


def _ended(said: _Ended) -> ToolEnded:
    """Codex fires this only for tools that came to an end of their own. Of a command it gives the output alone; its
    exit code stands in the session file by then."""
    response = bytes(said.tool_response)
    if said.tool_name == SHELL:
        code = read_exit_code(said.transcript_path, said.tool_use_id)
        clean = code == 0
        result = response if code is None else b'{"exit_code":%d,"output":%b}' % (code, response)
    else:
        clean = said.tool_name != "apply_patch" or _WRONG.match(response) is None
        result = response
    input = bytes(said.tool_input)
    return ToolEnded(said.session_id, said.tool_name, input, result, False, said.tool_use_id, clean)


def render(event: str, decision: Decision) -> bytes:
    """What the client hands to the hook's shell line."""
    return ALLOW if isinstance(decision, Allow) or event != "PreToolUse" else refuse_answer(deny_output(decision))


def deny_output(decision: Deny) -> str:
    """Codex's deny. It has none that ends the turn: `continue: false` beside it lets the tool run (facts, A3)."""
    words = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": decision.reason,
    }
    return json.dumps({"hookSpecificOutput": words})


MARKER = "WAL_AGENT_CODEX_RUN"  # the run's folder
FLAGS = "codex-flags.json"
PROTOCOL = "codex-protocol.json"
# `write_stdin` fires no hook. Without a terminal a command's stdin is empty, so nothing can be typed into one.
NO_TTY = "features.unified_exec_tty=false"
SOURCE = "/<session-flags>/config.toml"
_TOOLS = ("PreToolUse", "PostToolUse")
_ALIASES = {"apply_patch": ("Edit", "Write")}  # other names by which a pattern meets a tool


def inject(setup: HookSetup, env: Env) -> Injected:
    texts = [str(setup.run_dir), *setup.client]
    if any(c in "\n\0" or "\ud800" <= c <= "\udfff" for text in texts for c in text):  # the last: undecodable bytes
        raise ConfigError(f"A path of wal-agent's own holds a character that Codex's hooks cannot carry: {texts}.")
    try:
        context = {"hookEventName": "SessionStart", "additionalContext": setup.protocol}
        (setup.run_dir / PROTOCOL).write_text(json.dumps({"hookSpecificOutput": context}))
        (setup.run_dir / FLAGS).write_text(json.dumps(hook_flags(setup)))
    except OSError as e:
        raise ConfigError(f"{setup.run_dir} cannot be written: {e.strerror}.") from e
    return Injected(env={MARKER: str(setup.run_dir)})


def run_flags(env: Env) -> tuple[str, ...]:
    """What `inject` made for this run."""
    try:
        return tuple(json.loads(Path(env[MARKER], FLAGS).read_bytes()))
    except (OSError, ValueError, LookupError) as e:
        raise ConfigError(f"The hooks of this run are gone: {e}.") from e


def hook_flags(setup: HookSetup) -> list[str]:
    """No terminals for commands; `-c hooks.X=[...]` for each event, and one table of the hashes that make them trusted:
    as dotted keys they would be split at the dots in a key and be ignored (facts, A3)."""
    words = ["-c", NO_TTY]
    trusted: dict[str, dict[str, Any]] = {}
    for event in EVENTS:
        matcher = pattern_excluding(setup.skip) if setup.skip and event in _TOOLS else None
        commands = [hook_line(setup, event)]
        if event == "SessionStart" and setup.protocol:
            # Not developer_instructions: those are not sent when a session is resumed.
            commands.append(f"cat {shlex.quote(str(setup.run_dir / PROTOCOL))} 2>/dev/null || true")
        group: dict[str, Any] = {"hooks": [hook_handler(command) for command in commands]}
        if matcher is not None:
            group["matcher"] = matcher
        words += ["-c", f"hooks.{event}=[{toml_value(group)}]"]
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event).lower()
        for n, command in enumerate(commands):
            # Enabled in words: the user's own hooks.state may have switched a hook of ours off, by this very key.
            about = {"enabled": True, "trusted_hash": trust_hash(snake, command, matcher)}
            trusted[f"{SOURCE}:{snake}:0:{n}"] = about
    return [*words, "-c", f"hooks.state={toml_value(trusted)}"]


def hook_line(setup: HookSetup, event: str) -> str:
    firm = event == "PreToolUse"
    return sh_line(setup, "codex", event, firm, deny_output(Deny(GONE)) if firm else None)


def hook_handler(command: str) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": HOOK_SECONDS}


def trust_hash(event: str, command: str, matcher: str | None) -> str:
    """Codex's own hash of a hook that a person has reviewed."""
    about: dict[str, Any] = {"event_name": event, "hooks": [{"async": False, **hook_handler(command)}]}
    if matcher is not None:
        about["matcher"] = matcher
    text = json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def toml_value(value: Any) -> str:
    """An inline value. JSON's strings are TOML's, but for DEL."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{toml_value(k)}={toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def pattern_excluding(names: tuple[str, ...]) -> str:
    """A pattern for every tool but these: Codex's patterns have no look-ahead."""
    return f"^{_others({*names, *(alias for name in names for alias in _ALIASES.get(name, ()))})}$"


def _others(rests: set[str]) -> str:
    firsts = sorted({rest[0] for rest in rests if rest})
    branches = [] if "" in rests else [""]
    branches.append(f"[^{''.join(re.escape(c) for c in firsts)}].*" if firsts else ".+")
    branches += [re.escape(c) + _others({rest[1:] for rest in rests if rest[:1] == c}) for c in firsts]
    return f"(?:{'|'.join(branches)})"

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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wal_agent.agents import base
from wal_agent.agents.base import Deny, Env, HookEvent, HookSetup, Injected, McpServer
from wal_agent.agents.hook_line import (
    GONE,
    HOOK_SECONDS,
    MCP_NAME,
    Entry,
    on,
    outer,
    parser,
    permission_deny,
    renderer,
    sh_line,
    speaking_answer,
)
from wal_agent.agents.session_files import (
    InnerId,
    SessionId,
    as_object,
    as_objects,
    as_text,
    decode_json,
    plain_text,
    records,
)
from wal_agent.errors import ConfigError
from wal_agent.safefs import open_plain, read_end

_TAILS = (1 << 17, 1 << 22)  # bytes from the end: the line is among the last, behind what other calls printed meanwhile

SHELL = "Bash"  # the hooks' name of exec_command and its kin
_WRONG = re.compile(rb'"(?:Exit code: (?!0\\n)|[^"]{0,80}(?:failed|error)\b)')
_PREFIX = "Another language model started to solve this problem and produced a summary"
SPEAKING = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop")

MARKER = "WAL_AGENT_CODEX_RUN"  # the run's folder
FLAGS = "codex-flags.json"
PROTOCOL = "codex-protocol.json"
# `write_stdin` fires no hook. Without a terminal a command's stdin is empty, so nothing can be typed into one.
NO_TTY = "features.unified_exec_tty=false"
SOURCE = "/<session-flags>/config.toml"
_TOOLS = ("PreToolUse", "PostToolUse")
_ALIASES = {"apply_patch": ("Edit", "Write")}  # other names by which a pattern meets a tool


def read_exit_code(path: str | None, call_id: str) -> int | None:
    """Return a command's exit code from the end of its session file; None: unknown."""
    with suppress(OSError, ValueError), open_plain(path or "") as file:
        size = os.fstat(file.fileno()).st_size
        for tail in _TAILS:
            found = _exit_code_in(os.pread(file.fileno(), tail, max(0, size - tail)), call_id)
            if found is not None or tail >= size:
                return found
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


class _Hook(msgspec.Struct):
    session_id: SessionId
    agent_id: InnerId = ""
    transcript_path: str | None = ""


_H = TypeVar("_H", bound=_Hook)


class _Compact(_Hook):
    trigger: str = ""


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
    cwd: str = ""  # the call's own: only this has its `workdir`


class _Ended(_Tool, kw_only=True):
    tool_response: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


def _check(p: _Tool) -> bytes:
    if bytes(p.tool_input)[:1] != b"{":
        raise ValueError("tool_input is not an object")
    if not p.tool_use_id:
        raise ValueError("a call without an id")
    return bytes(p.tool_input)


def _ended(p: _Ended) -> base.ToolEnded:
    """Codex fires this only for tools that ended by themselves. It gives only a command's output; the exit code is in
    the session file by then."""
    input, response = _check(p), bytes(p.tool_response)
    if p.tool_name == SHELL:
        code = read_exit_code(p.transcript_path, p.tool_use_id)
        clean = code == 0
        result = response if code is None else b'{"exit_code":%d,"output":%b}' % (code, response)
    else:
        clean = p.tool_name != "apply_patch" or _WRONG.match(response) is None
        result = response
    return base.ToolEnded(p.session_id, p.tool_name, input, result, False, p.tool_use_id, clean)


def _starting(p: _Tool) -> base.ToolStarting:
    return base.ToolStarting(p.session_id, p.tool_name, _check(p), p.tool_use_id, p.agent_id, p.cwd)


def compactions(appended: bytes) -> list[base.Compacted]:
    """The newest item of a replacement history is the summary, behind a paragraph of Codex's own."""
    found: list[base.Compacted] = []
    if b'"compacted"' not in appended:
        return found
    for record, _ in records(appended):
        if record is None or record.get("type") != "compacted":
            continue
        payload = as_object(record.get("payload"))
        texts = [plain_text(item.get("content")) for item in as_objects(payload.get("replacement_history"))]
        message = as_text(payload.get("message"))
        summary = (message.partition("\n")[2] if message.startswith(_PREFIX) else message).strip()
        key = f"{record.get('ordinal')} {record.get('timestamp')}"
        found.append(base.Compacted(key, summary, "\n".join([*texts, message])))
    return found


def stopped_turn(appended: bytes) -> bool:
    """A `turn_aborted` that no turn follows."""
    if b'"turn_aborted"' not in appended:
        return False
    payloads = [as_object(r.get("payload")) for r, _ in records(appended) if r is not None]
    found = [kind for p in payloads if (kind := p.get("type")) in ("turn_aborted", "task_started", "user_message")]
    return found[-1:] == ["turn_aborted"]


def _started(p: _Start) -> HookEvent:
    """After a compaction it is no start."""
    if p.source == "compact":
        end = read_end(p.transcript_path, _TAILS[1]) if p.transcript_path else b""
        return base.ContextRequested(p.session_id, next(reversed(compactions(end)), None))
    return base.SessionStarted(p.session_id, p.source)


def _kept(event: str, payload: type[_H], build: Callable[[_H], HookEvent]) -> tuple[str, Entry]:
    """Return the entry of an event that means nothing in a thread that Codex keeps no file of, such as the one in which
    codex-acp has a title made behind the first turn: it is not the session."""
    return outer(event, payload, lambda p: base.OtherEvent(event) if p.transcript_path is None else build(p))


# The smallest set that shows phases and calls. No SessionEnd: Codex waits for it, and Stop has reported what counts.
_EVENTS = dict(
    (
        _kept("SessionStart", _Start, _started),
        _kept("UserPromptSubmit", _Prompt, lambda p: base.TurnStarted(p.session_id, p.prompt)),
        _kept("PreModelRequest", _Hook, lambda p: base.ModelRequest(p.session_id)),
        ("PreToolUse", on(_Tool, _starting)),
        ("PermissionRequest", on(_Asked, lambda p: base.AwaitingApproval(p.session_id, p.tool_name))),
        ("PostToolUse", on(_Ended, _ended)),
        _kept("Stop", _Hook, lambda p: base.TurnCompleted(p.session_id)),
        _kept("PreCompact", _Compact, lambda p: base.Compacting(p.session_id, done=False, trigger=p.trigger)),
        _kept("PostCompact", _Hook, lambda p: base.Compacting(p.session_id, done=True)),
    )
)
EVENTS = tuple(_EVENTS)
parse = parser(_EVENTS)
# No denial ends the turn: `continue: false` beside it lets the tool run.
render = renderer({"PreToolUse": permission_deny}, dict.fromkeys(SPEAKING, speaking_answer))


def inject(setup: HookSetup, env: Env) -> Injected:
    texts = [str(setup.run_dir), *setup.client]
    if any(c in "\n\0" or "\ud800" <= c <= "\udfff" for text in texts for c in text):  # the last: undecodable bytes
        raise ConfigError(f"A path of wal-agent's own holds a character that Codex's hooks cannot carry: {texts}.")
    try:
        context = {"hookEventName": "SessionStart", "additionalContext": setup.protocol}
        (setup.run_dir / PROTOCOL).write_text(json.dumps({"hookSpecificOutput": context}))
        (setup.run_dir / FLAGS).write_text(json.dumps([*hook_flags(setup), *mcp_flags(setup.mcp)]))
    except OSError as e:
        raise ConfigError(f"{setup.run_dir} cannot be written: {e.strerror}.") from e
    return Injected(env={MARKER: str(setup.run_dir)})


def run_flags(env: Env) -> tuple[str, ...]:
    """Return the flags that `inject` made for this run."""
    try:
        return tuple(json.loads(Path(env[MARKER], FLAGS).read_bytes()))
    except (OSError, ValueError, LookupError) as e:
        raise ConfigError(f"The hooks of this run are gone: {e}.") from e


def hook_flags(setup: HookSetup) -> list[str]:
    """Return the flags: no terminals for commands; `-c hooks.X=[...]` for each event; and one table of the hashes that
    make them trusted: dotted keys would be split at the dots in a key and be ignored."""
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
            # Enabled explicitly: the user's own hooks.state may have switched the hook off, by the same key.
            about = {"enabled": True, "trusted_hash": trust_hash(snake, command, matcher)}
            trusted[f"{SOURCE}:{snake}:0:{n}"] = about
    return [*words, "-c", f"hooks.state={toml_value(trusted)}"]


def mcp_flags(server: McpServer | None) -> list[str]:
    if server is None:
        return []
    about = server.as_json(env_vars=list(server.variables))
    return ["-c", f"mcp_servers.{MCP_NAME}={toml_value(about)}"]


def hook_line(setup: HookSetup, event: str) -> str:
    firm = event == "PreToolUse"
    return sh_line(setup, "codex", event, firm, permission_deny(Deny(GONE)) if firm else None)


def hook_handler(command: str) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": HOOK_SECONDS}


def trust_hash(event: str, command: str, matcher: str | None) -> str:
    """Return Codex's own hash of a hook that a user has reviewed."""
    about: dict[str, Any] = {"event_name": event, "hooks": [{"async": False, **hook_handler(command)}]}
    if matcher is not None:
        about["matcher"] = matcher
    text = json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def toml_value(value: Any) -> str:
    """Spell an inline value. JSON's strings are TOML's, except for DEL."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{toml_value(k)}={toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def pattern_excluding(names: tuple[str, ...]) -> str:
    """Return a pattern for every tool but these: Codex's patterns have no look-ahead."""
    return f"^{_others({*names, *(alias for name in names for alias in _ALIASES.get(name, ()))})}$"


def _others(rests: set[str]) -> str:
    firsts = sorted({rest[0] for rest in rests if rest})
    branches = [] if "" in rests else [""]
    branches.append(f"[^{''.join(re.escape(c) for c in firsts)}].*" if firsts else ".+")
    branches += [re.escape(c) + _others({rest[1:] for rest in rests if rest[:1] == c}) for c in firsts]
    return f"(?:{'|'.join(branches)})"

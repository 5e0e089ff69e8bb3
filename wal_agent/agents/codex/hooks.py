"""The hooks of one run: session flags on the command line, trusted by their hashes. No file of the user's is touched.

The user's own hooks are in other sources and go on; theirs that are not trusted stay off. What is given to Codex waits
in the run's folder for `command`, since a hook's line is long and an environment is everybody's.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Deny, Env, HookSetup, Injected
from wal_agent.agents.codex.events import EVENTS, deny_output
from wal_agent.agents.hook_line import GONE, HOOK_SECONDS, sh_line
from wal_agent.errors import ConfigError

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

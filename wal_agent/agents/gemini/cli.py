"""Gemini's command line: its options, the checks before a start, the start or resume, and its last error.

The options are those of `gemini --help` (yargs) of the tested version.

`hooks_off_reason` reads Gemini's settings files and arguments before anything is started (I5): would the hooks fire?
What only a running Gemini can know (settings that an administrator sends, `/hooks disable-all`, a `.env` file) is left
to the handshake and to the watch for calls that the log did not see.

A new session gets an id from wal-agent. The recovery prompt is not given on the command line: there Gemini rewrites a
prompt (`@path` is inlined, `/` and `?` are commands), and the prompt quotes shell commands that must arrive exactly.
`resume.inject_prompt` writes it into the restored session instead, as the user's last message; the command line only
asks to act on it.

Node gets the heap that Gemini would give itself, unless its settings switch that off (0.61: getMemoryNodeArgs). Gemini
exits with 1 for every failure of its model.
"""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents import program as node
from wal_agent.agents.base import Cli, Command, Env, ExitCause, NewSession, ResumeSession
from wal_agent.agents.exit_text import TOO_LONG, retry_after_seconds
from wal_agent.agents.extension import PREFIX, extension_name
from wal_agent.agents.gemini.hooks import MARKER, gemini_home
from wal_agent.agents.program import (
    Arg,
    Kind,
    Layer,
    Program,
    Syntax,
    effective_setting,
    is_given,
    last_value,
    read_layer,
    to_words,
)

__all__ = [
    "COMMANDS",
    "NO_SESSION",
    "PROMPT_OPTIONS",
    "SESSION_OPTIONS",
    "Arg",
    "is_given",
    "last_value",
    "parse_args",
    "to_words",
]


_VALUE = """model prompt prompt-interactive approval-mode policy admin-policy allowed-mcp-server-names allowed-tools
    extensions session-file session-id include-directories output-format"""
_MAYBE = "worktree resume delete-session fake-responses fake-responses-non-strict record-responses"
_FLAG = """debug skip-trust sandbox yolo acp experimental-acp list-extensions list-sessions screen-reader raw-output
    accept-raw-output-risk version help"""

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_MAYBE.split(), "maybe"),
    **dict.fromkeys(_FLAG.split(), "flag"),
}
SHORT = {
    "d": "debug",
    "m": "model",
    "p": "prompt",
    "i": "prompt-interactive",
    "w": "worktree",
    "s": "sandbox",
    "y": "yolo",
    "e": "extensions",
    "l": "list-extensions",
    "r": "resume",
    "o": "output-format",
    "v": "version",
    "h": "help",
}
COMMANDS = frozenset(("mcp", "extensions", "extension", "skills", "skill", "hooks", "hook", "gemma"))
NO_SESSION = frozenset(("version", "help", "list-sessions", "delete-session", "list-extensions"))
PROMPT_OPTIONS = frozenset(("prompt", "prompt-interactive", ""))
SESSION_OPTIONS = frozenset(("resume", "session-id", "session-file"))

parse_args = Syntax(KINDS, SHORT, yargs=True).read


_NATIVE = ("sandbox-exec", "windows-native")  # same host, same files: hooks reach us


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = parse_args(args)
    if any(is_given(given, name) for name in ("acp", "experimental-acp")):
        return "Gemini in ACP mode takes its sessions from an editor; wal-agent does not save those. Nothing was run."
    if last_value(given, "worktree") is not None:
        return (
            "--worktree makes Gemini work in another folder than the one that wal-agent saves. Make the worktree "
            "first and start wal-agent in it. Nothing was run."
        )
    layers = settings_layers(workspace, env)
    return _disabled_hooks(layers) or _not_allowed(layers, env) or _sandboxed(given, layers, env)


def _disabled_hooks(layers: list[Layer]) -> str | None:
    found = effective_setting(layers, "hooksConfig", "enabled")
    if found is None or found[1]:
        return None
    where = "in this project " if found[0].shown.startswith(".gemini") else ""
    return (
        f"Gemini's hooks are off {where}({found[0].shown}: hooksConfig.enabled is {json.dumps(found[1])}), "
        "so no tool call could be logged. Nothing was run."
    )


def _not_allowed(layers: list[Layer], env: Env) -> str | None:
    found = effective_setting(layers, "security", "allowedExtensions")
    if found is None or not isinstance(found[1], list) or not found[1]:
        return None
    ours = str(gemini_home(env) / "extensions" / PREFIX)
    for pattern in found[1]:
        try:
            if re.search(str(pattern), ours):
                return None
        except re.error:
            continue
    return (
        f"Gemini would not load wal-agent's hooks ({found[0].shown}: security.allowedExtensions does not allow "
        f"{ours}*), so no tool call could be logged. Nothing was run."
    )


def _sandboxed(given: list[Arg], layers: list[Layer], env: Env) -> str | None:
    if env.get("SANDBOX"):
        return None  # this is the inside
    found = effective_setting(layers, "tools", "sandbox")
    value: Any = is_given(given, "sandbox") if last_value(given, "sandbox") is not None else found and found[1]
    if isinstance(value, dict):
        value = (value.get("command") or True) if value.get("enabled") else False
    value = env.get("GEMINI_SANDBOX", "").lower().strip() or value
    if value in (None, "", "0", "false", False) or value in _NATIVE:
        return None
    if value in ("1", "true", True) and sys.platform == "darwin":
        return None
    return (
        f"Gemini's sandbox ({value if isinstance(value, str) else 'a container'}) keeps its hooks from reaching "
        "wal-agent, so no tool call could be logged. Run wal-agent inside the container instead. Nothing was run."
    )


def settings_layers(workspace: Path, env: Env) -> list[Layer]:
    """Lowest first. The project's file counts although Gemini may not trust the folder yet: it will ask."""
    mac = "/Library/Application Support/GeminiCli/settings.json"
    system = Path(env.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH") or (mac if sys.platform == "darwin" else _ETC))
    defaults = Path(env.get("GEMINI_CLI_SYSTEM_DEFAULTS_PATH") or system.parent / "system-defaults.json")
    home = gemini_home(env)
    layers = [read_layer(str(defaults), defaults) if is_secure(defaults) else None]
    layers.append(read_layer("~/.gemini/settings.json", home / "settings.json"))
    if workspace != home.parent:
        layers.append(read_layer(".gemini/settings.json", workspace / ".gemini" / "settings.json"))
    layers.append(read_layer(str(system), system) if is_secure(system) else None)
    return [each for each in layers if each is not None]


_ETC = "/etc/gemini-cli/settings.json"


def is_secure(path: Path) -> bool:
    """Gemini passes over a system file unless it and every folder above are root's and no one else may write."""
    try:
        real = path.resolve(strict=True)
        stats = [p.stat() for p in (real, *real.parents)]
    except (OSError, RuntimeError):
        return False
    return all(s.st_uid == 0 and not s.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for s in stats)


def gemini_node_command(program: Path, env: Env) -> tuple[str, ...]:
    return () if _no_heap_wanted(env) else node.node_command(program, env)


def _no_heap_wanted(env: Env) -> bool:
    try:
        settings = json.loads((gemini_home(env) / "settings.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    advanced = settings.get("advanced") if isinstance(settings, dict) else None
    return isinstance(advanced, dict) and advanced.get("autoConfigureMemory") is False


PROGRAM = Program("gemini", "@google/gemini-cli")
ACT = "Act on the wal-agent recovery notice above."


def locate(env: Env) -> Cli:
    return PROGRAM.locate(env)


def passthrough(args: Sequence[str]) -> bool:
    """These arguments start no session (a subcommand, --version, --list-sessions): nothing to protect."""
    given = parse_args(args)
    first = next((arg for arg in given if not arg.name), None)
    command = first is not None and first.words[0] != "--" and first.value in COMMANDS
    return command or any(is_given(given, name) for name in NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only Gemini can tell (latest, an index, a file), else None."""
    given = parse_args(args)
    if (chosen := last_value(given, "session-id")) is not None:
        return chosen.strip()
    if last_value(given, "session-file") is not None:
        return ""
    if (resumed := last_value(given, "resume")) is None:
        return None
    resumed = resumed.strip()
    return "" if resumed in ("", "latest") or resumed.isdigit() else resumed


def prompt_from_args(args: Sequence[str]) -> str | None:
    """The prompt among the arguments; the positional words are one."""
    given = parse_args(args)
    words = [arg.value for arg in given if not arg.name]
    for found in (
        last_value(given, "prompt"),
        last_value(given, "prompt-interactive"),
        " ".join(words),
    ):
        if found:
            return found
    return None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """Gemini's own rule; `tty` says that both its stdin and its stdout will be a terminal."""
    given = parse_args(args)
    if last_value(given, "prompt-interactive"):
        return True
    if env.get("GEMINI_CLI_INTEGRATION_TEST") != "true" and (
        env.get("CI") == "true" or env.get("GITHUB_ACTIONS") == "true"
    ):
        return False
    return tty and last_value(given, "prompt") is None


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = parse_args(args)
    ours: list[str] = []
    told = isinstance(session, ResumeSession) and session.prompt != ""
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in SESSION_OPTIONS]
        ours += ["--resume", session.id]
        if told or session.asked:
            given = [arg for arg in given if arg.name not in PROMPT_OPTIONS]
        if told:
            ours += ["--prompt-interactive" if interactive else "--prompt", ACT]
    elif not any(arg.name in SESSION_OPTIONS for arg in given):
        ours += ["--session-id", session.id]
    run = env.get(MARKER)
    if run and any(arg.name == "extensions" for arg in given):
        # A list shuts out what it does not name; "none" and a name is the name.
        ours += ["--extensions", extension_name(run)]
    argv = (*gemini_node_command(cli.path, env), str(cli.path), *ours, *to_words(given))
    # One process instead of two: the first would swallow signals, and the second outlive it. Its other task, starting
    # Gemini again at exit code 199, is then the supervisor's (`again`).
    return Command(argv, {"GEMINI_CLI_NO_RELAUNCH": "true"}, told and not interactive)


_HEAD = b"Error when talking to Gemini API"  # written once, by the end of a headless run
_LONG = re.compile(r"exceeds the maximum number of tokens|context window", re.IGNORECASE)


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    _, head, after = said.rpartition(_HEAD)
    if not head:
        return None
    text = after[:4096].decode("utf-8", "replace")
    error = re.search(r"\b(\w*Error): *(.{0,300})", text)
    kind, why = (error[1], error[2]) if error else ("", "")
    if kind.endswith("QuotaError") or re.search(r"\bstatus: (?:429|5\d\d)\b", text):
        return ExitCause("quota", why, retry_after_seconds(text.partition("\n    at ")[0], now))
    return TOO_LONG if _LONG.search(why) else None

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

from wal_agent.agents.base import ACT, Cli, Command, Env, ExitCause, NewSession, ResumeSession
from wal_agent.agents.gemini.hooks import MARKER
from wal_agent.agents.gemini.session import gemini_home
from wal_agent.agents.hook_line import PREFIX, extension_name, mcp_args
from wal_agent.agents.program import (
    TOO_LONG,
    Arg,
    Layer,
    Program,
    Syntax,
    effective_setting,
    first_prompt,
    is_given,
    last_value,
    node_command,
    read_layers,
    read_object,
    retry_after_seconds,
    starts_no_session,
    to_words,
)

SYNTAX = Syntax.of(
    value="""model prompt prompt-interactive approval-mode policy admin-policy allowed-mcp-server-names allowed-tools
        extensions session-file session-id include-directories output-format""",
    maybe="worktree resume delete-session fake-responses fake-responses-non-strict record-responses",
    flag="""debug skip-trust sandbox yolo acp experimental-acp list-extensions list-sessions screen-reader raw-output
        accept-raw-output-risk version help""",
    short="""d=debug m=model p=prompt i=prompt-interactive w=worktree s=sandbox y=yolo e=extensions l=list-extensions
        r=resume o=output-format v=version h=help""",
    yargs=True,
)
COMMANDS = frozenset(["mcp", "extensions", "extension", "skills", "skill", "hooks", "hook", "gemma"])
NO_SESSION = frozenset(["version", "help", "list-sessions", "delete-session", "list-extensions"])
PROMPT_OPTIONS = frozenset(("prompt", "prompt-interactive", ""))
SESSION_OPTIONS = frozenset(("resume", "session-id", "session-file"))

parse_args = SYNTAX.read


_NATIVE = ("sandbox-exec", "windows-native")  # same host, same files: hooks reach wal-agent
_ETC = "/etc/gemini-cli/settings.json"
_MAC = "/Library/Application Support/GeminiCli/settings.json"

PROGRAM = Program("gemini", "@google/gemini-cli")
_HEAD = b"Error when talking to Gemini API"  # written once, by the end of a headless run
_LONG = re.compile(r"exceeds the maximum number of tokens|context window", re.IGNORECASE)


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = parse_args(args)
    if any(is_given(given, name) for name in ("acp", "experimental-acp")):
        return "Gemini in ACP mode calls no hook before a tool, so no tool call could be logged. Nothing was run."
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
    """Return the layers, lowest first. The project's file counts although Gemini may not trust the folder yet: it will
    ask."""
    system = Path(env.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH") or (_MAC if sys.platform == "darwin" else _ETC))
    defaults = Path(env.get("GEMINI_CLI_SYSTEM_DEFAULTS_PATH") or system.parent / "system-defaults.json")
    home = gemini_home(env)
    places = [("~/.gemini/settings.json", home / "settings.json")]
    if workspace != home.parent:
        places.append((".gemini/settings.json", workspace / ".gemini" / "settings.json"))
    below, above = ([(str(path), path)] if is_secure(path) else [] for path in (defaults, system))
    return read_layers(*below, *places, *above)


def is_secure(path: Path) -> bool:
    """Return whether Gemini reads this system file: it and every folder above are root's and no one else may write."""
    try:
        real = path.resolve(strict=True)
        stats = [p.stat() for p in (real, *real.parents)]
    except (OSError, RuntimeError):
        return False
    return all(s.st_uid == 0 and not s.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for s in stats)


def gemini_node_command(program: Path, env: Env) -> tuple[str, ...]:
    advanced = (read_object(gemini_home(env) / "settings.json") or {}).get("advanced")
    unwanted = isinstance(advanced, dict) and advanced.get("autoConfigureMemory") is False
    return () if unwanted else node_command(program, env)


locate = PROGRAM.locate


def passthrough(args: Sequence[str]) -> bool:
    return starts_no_session(parse_args(args), COMMANDS, NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """Return the chosen session: its id, "" where only Gemini knows it (latest, an index, a file), else None."""
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
    return first_prompt(parse_args(args), "prompt", "prompt-interactive")


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """Apply Gemini's own rule."""
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
    ours = [*mcp_args(env, "--allowed-tools=mcp_wal-agent_*")]
    prompted = isinstance(session, ResumeSession) and session.acts
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in SESSION_OPTIONS]
        ours += ["--resume", session.id]
        if session.drops_prompt:
            given = [arg for arg in given if arg.name not in PROMPT_OPTIONS]
        if prompted:
            ours += ["--prompt-interactive" if interactive else "--prompt", ACT]
    elif not any(arg.name in SESSION_OPTIONS for arg in given):
        ours += ["--session-id", session.id]
    run = env.get(MARKER)
    if run and any(arg.name == "extensions" for arg in given):
        # A list shuts out what it does not name; "none" and a name is the name.
        ours += ["--extensions", extension_name(run)]
    argv = (*gemini_node_command(cli.path, env), str(cli.path), *ours, *to_words(given))
    # One process instead of two: the first would swallow signals, and the second outlive it. Its other task, starting
    # Gemini again at exit code 199, is then the supervisor's (`restart_codes`).
    return Command(argv, {"GEMINI_CLI_NO_RELAUNCH": "true"}, prompted and not interactive)


def exit_cause(stderr: bytes, now: float) -> ExitCause | None:
    _, head, after = stderr.rpartition(_HEAD)
    if not head:
        return None
    text = after[:4096].decode("utf-8", "replace")
    error = re.search(r"\b(\w*Error): *(.{0,300})", text)
    kind, why = (error[1], error[2]) if error else ("", "")
    if kind.endswith("QuotaError") or re.search(r"\bstatus: (?:429|5\d\d)\b", text):
        return ExitCause("quota", why, retry_after_seconds(text.partition("\n    at ")[0], now))
    return TOO_LONG if _LONG.search(why) else None

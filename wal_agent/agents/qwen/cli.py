"""Qwen Code's command line: its options, the checks before a start, the start or resume, and its last error.

The options are those of `qwen --help` (yargs) of the tested version.

`hooks_off_reason` reads Qwen's settings files and arguments before anything is started (I5): would the hooks fire, and
would the session be where wal-agent looks?

A new session gets an id from wal-agent. The recovery prompt is not given on the command line, where `@path` is inlined
and `/` is a command: `resume.inject_prompt` writes it into the restored session, as the user's last message; the
command line only asks to act on it.

Qwen Code exits with 1 for every failure of its model.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from wal_agent.agents.base import ACT, Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.hook_line import extension_name, mcp_args
from wal_agent.agents.program import (
    Arg,
    Broken,
    Layer,
    Program,
    Syntax,
    cause_from_last_error,
    effective_setting,
    first_prompt,
    is_given,
    last_value,
    node_command,
    read_layers,
    starts_no_session,
    takes_stream,
    to_words,
)
from wal_agent.agents.qwen.hooks import MARKER
from wal_agent.agents.qwen.session import RUNTIME, configured_folders, qwen_home, read_dotenv, runtime_folder, user_home
from wal_agent.errors import ConfigError
from wal_agent.safefs import real_path

SYNTAX = Syntax.of(
    value="""telemetry-target telemetry-otlp-endpoint telemetry-otlp-protocol telemetry-outfile proxy model prompt
        prompt-interactive system-prompt append-system-prompt sandbox-image approval-mode channel mcp-config
        openai-logging-dir openai-api-key openai-base-url input-format output-format json-fd json-file json-schema
        input-file resume session-id max-session-turns auth-type""",
    many="""allowed-mcp-server-names allowed-tools extensions include-directories add-dir core-tools exclude-tools
        disabled-slash-commands""",
    flag="""telemetry telemetry-log-prompts debug bare chat-recording sandbox yolo checkpointing acp experimental-acp
        experimental-lsp list-extensions openai-logging screen-reader include-partial-messages continue version help""",
    short="""d=debug m=model p=prompt i=prompt-interactive s=sandbox y=yolo e=extensions l=list-extensions
        o=output-format c=continue r=resume v=version h=help""",
    yargs=True,
)
COMMANDS = frozenset(["mcp", "extensions", "auth", "hooks", "hook", "channel", "review"])
NO_SESSION = frozenset(("version", "help", "list-extensions"))
PROMPT_OPTIONS = frozenset(("prompt", "prompt-interactive", ""))
SESSION_OPTIONS = frozenset(("resume", "session-id", "continue"))

parse_args = SYNTAX.read


_ETC = "/etc/qwen-code/settings.json"
_MAC = "/Library/Application Support/QwenCode/settings.json"
_PROJECT = ".qwen/settings.json"
_USER = "~/.qwen/settings.json"
_TRUE = ("1", "true", "yes", "on")

_BROKEN = "it fires no hooks of an extension (seen on 0.12.0; 0.15.6 is the first that is known to)."
PROGRAM = Program("qwen", "@qwen-code/qwen-code", (Broken(_BROKEN, below="0.15.6"),))
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_LAST = re.compile(rb"\[API Error: (.{1,600}?)\]?\s*$", re.MULTILINE)
_LONG = re.compile(r"context window|context length|maximum number of tokens|input is too long", re.IGNORECASE)
_WAIT = re.compile(r"\A(?:429|5\d\d)\b|rate limit", re.IGNORECASE)


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = parse_args(args)
    if any(is_given(given, name) for name in ("acp", "experimental-acp")):
        return "Qwen Code in ACP mode takes its sessions from an editor: start `wal-agent acp qwen`. Nothing was run."
    try:
        layers = settings_layers(workspace, env)
        return (
            _bare(given, layers, workspace, env)
            or _disabled_hooks(layers)
            or _unrecorded(given, layers)
            or _elsewhere(layers, env)
            or _boxed(given, layers, workspace, env)
            or _discovered(layers)
        )
    except ConfigError as e:  # of paths.py: a folder that is not the same everywhere
        return str(e)


def _bare(given: list[Arg], layers: list[Layer], workspace: Path, env: Env) -> str | None:
    found = variable_values("QWEN_CODE_SIMPLE", layers, workspace, env)
    where = next((f" ({where})" for where, value in found if value.strip().lower() in _TRUE), None)
    if where is None and not is_given(given, "bare"):
        return None
    return f"Qwen Code's bare mode{where or ''} runs no hooks, so no tool call could be logged. Nothing was run."


def _disabled_hooks(layers: list[Layer]) -> str | None:
    """A system settings file could overrule this; but then the user's own hooks would run too."""
    found = effective_setting(layers, "disableAllHooks")
    if found is None or not found[1]:
        return None
    where = "in this project " if found[0].shown == _PROJECT else ""
    return (
        f"Qwen Code's hooks are off {where}({found[0].shown}: disableAllHooks is {json.dumps(found[1])}), so no tool "
        "call could be logged. Nothing was run."
    )


def _unrecorded(given: list[Arg], layers: list[Layer]) -> str | None:
    said = last_value(given, "chat-recording")
    off = any(arg.name == "no-chat-recording" for arg in given)
    found = effective_setting(layers, "general", "chatRecording")
    if off or said == "false":
        where = "--chat-recording"
    elif said is None and found is not None and found[1] is False:
        where = f"{found[0].shown}: general.chatRecording"
    else:
        return None
    return f"Qwen Code would keep no session here ({where} is off), so none could be saved. Nothing was run."


def _elsewhere(layers: list[Layer], env: Env) -> str | None:
    """Refuse a folder for sessions that `runtime_folder` cannot know, since it is another one in each project."""
    runtime_folder(env)  # raises where it is no one folder
    found = effective_setting(layers, "advanced", "runtimeOutputDir")
    if found is None or not found[1] or configured_folders(env).get(RUNTIME):
        return None
    if found[0].shown == _USER:
        return None
    return (
        f"Qwen Code keeps this project's sessions in {found[1]} ({found[0].shown}: advanced.runtimeOutputDir), where "
        "wal-agent does not look. Name an absolute folder in QWEN_RUNTIME_DIR instead. Nothing was run."
    )


def _boxed(given: list[Arg], layers: list[Layer], workspace: Path, env: Env) -> str | None:
    if env.get("SANDBOX"):
        return None  # this is the inside
    found = effective_setting(layers, "tools", "sandbox")
    asked: Any = is_given(given, "sandbox") if last_value(given, "sandbox") is not None else found and found[1]
    if own := env.get("QWEN_SANDBOX", "").lower().strip():
        asked = own
    from_files = [value.lower().strip() for _, value in variable_values("QWEN_SANDBOX", layers, workspace, env)]
    value = next((each for each in [asked, *from_files] if _keeps_hooks_in(each)), None)
    if value is None:
        return None
    return (
        f"Qwen Code's sandbox ({value if isinstance(value, str) else 'a container'}) keeps its hooks from reaching "
        "wal-agent, so no tool call could be logged. Run wal-agent inside the container instead. Nothing was run."
    )


def _keeps_hooks_in(sandbox: Any) -> bool:
    if sandbox in (None, "", "0", "false", False) or sandbox == "sandbox-exec":
        return False
    return not (sandbox in ("1", "true", True) and sys.platform == "darwin")


def _discovered(layers: list[Layer]) -> str | None:
    for keys in (("tools", "discoveryCommand"), ("toolDiscoveryCommand",)):  # the second: settings of old versions
        for each in layers:
            found = effective_setting([each], *keys)
            if found is not None and found[1]:
                return (
                    f"Qwen Code takes tools from a command here ({each.shown}: {'.'.join(keys)}). Such a tool may have "
                    "the name of a built-in one, so the effect of a call would be unknown. Nothing was run."
                )
    return None


def variable_values(name: str, layers: list[Layer], workspace: Path, env: Env) -> list[tuple[str, str]]:
    """Return the values that Qwen may use for this variable, and their sources. The environment comes first; of the
    `.env` files Qwen reads the first, or the user's first where it does not trust the folder; then its settings."""
    if name in env:
        return [(name, env[name])]
    files, own = env_files(workspace, env)
    there = [path for path in files if path.exists()]
    first = [*there[:1], *[path for path in there if path in own][:1]]
    said: list[tuple[str, Any]] = [(str(path), read_dotenv(path).get(name)) for path in first]
    for each in layers:
        found = effective_setting([each], "env", name)
        said.append((each.shown, found and found[1]))
    return [(f"{where}: {name}", value) for where, value in said if isinstance(value, str)]


def env_files(workspace: Path, env: Env) -> tuple[list[Path], list[Path]]:
    """Return the files that Qwen looks for, in its order; and which of them are the user's own."""
    home = user_home(env)
    own = list(dict.fromkeys([qwen_home(env) / ".env", home / ".qwen/.env", home / ".env"]))
    found: list[Path] = []
    for folder in (workspace, *workspace.parents):
        found += own if folder == home else [folder / ".qwen/.env", folder / ".env"]
    return list(dict.fromkeys([*found, *own])), own


def settings_layers(workspace: Path, env: Env) -> list[Layer]:
    """Return all layers, lowest first. The project's file counts although its folder may not be trusted."""
    own = own_layers(env)
    project = [] if workspace == real_path(user_home(env)) else read_layers((_PROJECT, workspace / _PROJECT))
    at = next((n for n, each in enumerate(own) if each.shown == str(_system(env))), len(own))
    return [*own[:at], *project, *own[at:]]


def own_layers(env: Env) -> list[Layer]:
    """Return those that are no project's."""
    system = _system(env)
    defaults = Path(env.get("QWEN_CODE_SYSTEM_DEFAULTS_PATH") or system.parent / "system-defaults.json")
    user = (_USER, qwen_home(env) / "settings.json")
    return read_layers((str(defaults), defaults), user, (str(system), system))


def _system(env: Env) -> Path:
    return Path(env.get("QWEN_CODE_SYSTEM_SETTINGS_PATH") or (_MAC if sys.platform == "darwin" else _ETC))


locate = PROGRAM.locate


def passthrough(args: Sequence[str]) -> bool:
    return starts_no_session(parse_args(args), COMMANDS, NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """Return the chosen session: its id, "" where only Qwen knows it (the last, a title, its list), else None."""
    given = parse_args(args)
    if (chosen := last_value(given, "session-id")) is not None:
        return chosen
    if (resumed := last_value(given, "resume")) is not None:
        return resumed if _ID.fullmatch(resumed) else ""
    return "" if is_given(given, "continue") else None


def prompt_from_args(args: Sequence[str]) -> str | None:
    return first_prompt(parse_args(args), "prompt", "prompt-interactive")


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """Apply Qwen's own rule."""
    given = parse_args(args)
    if last_value(given, "prompt-interactive"):  # an empty one is none: headless, it could end with 42 for ever
        return True
    return takes_stream(given) or (tty and prompt_from_args(args) is None)


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = parse_args(args)
    ours = [*mcp_args(env, "--allowed-tools=mcp__wal-agent")]
    run = env.get(MARKER)
    at = next((n for n, arg in enumerate(given) if arg.name == "extensions"), None)
    if run and at is not None:
        # A list excludes what it does not name; "none" and a name is the name. Right before the user's own option,
        # which takes all words up to the next one.
        name = extension_name(run)
        given.insert(at, Arg("extensions", name, ("--extensions", name)))
    prompted = isinstance(session, ResumeSession) and session.acts
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in SESSION_OPTIONS]
        ours += ["--resume", session.id]
        if session.drops_prompt:
            given = [arg for arg in given if arg.name not in PROMPT_OPTIONS]
        if prompted:
            ours += ["--prompt-interactive" if interactive else "--prompt", ACT]
    elif session.id and not any(arg.name in SESSION_OPTIONS for arg in given):
        ours += ["--session-id", session.id]
    wanted = effective_setting(own_layers(env), "advanced", "autoConfigureMemory")
    heap = node_command(cli.path, env) if wanted is not None and wanted[1] else ()
    # One process instead of two: the first would swallow signals, and the second outlive it. Its other task, starting
    # Qwen again at exit code 42, is then the supervisor's (`restart_codes`).
    argv = (*_program(cli.path, heap), *ours, *to_words(given))
    return Command(argv, {"QWEN_CODE_NO_RELAUNCH": "true"}, prompted and not interactive)


def _program(path: Path, heap: tuple[str, ...]) -> tuple[str, ...]:
    """Since 0.24 the program on npm is a launcher, which waits for Qwen in a second process and passes no signal on."""
    real = real_path(path)
    inner = real.with_name("cli.js")
    if real.name != "cli-entry.js" or not inner.is_file():
        return (*heap, str(path))
    return (*(heap or ("node",)), "--expose-gc", str(inner))


exit_cause = partial(cause_from_last_error, last=_LAST, waits=_WAIT, too_long=_LONG)

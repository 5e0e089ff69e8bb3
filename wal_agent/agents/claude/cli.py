"""Would our hooks fire here, and would the session be saved? Read from Claude Code's settings and arguments, before
anything is started (I5).

`disableAllHooks` is refused wherever it is set. Ours says the contrary, which counts more, for what is written while
Claude runs; at the start that would run a repository's own hooks too, against the user's word. What only a running
Claude can know (settings that an organisation sends, a settings file that does not validate) is left to the handshake
and to the watch for calls that no hook announced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env
from wal_agent.agents.claude import options, settings_schema
from wal_agent.agents.claude.inject import claude_home

SESSION = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MANAGED = Path("/Library/Application Support/ClaudeCode" if sys.platform == "darwin" else "/etc/claude-code")
_LIMIT = 1 << 22
_NOTHING = "so no tool call could be logged. Nothing was run."
_ELSEWHERE = {
    "bg": "runs the session in the background, away from wal-agent",
    "background": "runs the session in the background, away from wal-agent",
    "cloud": "runs the session in the cloud, where wal-agent cannot save it",
    "remote": "runs the session in the cloud, where wal-agent cannot save it",
    "teleport": "takes the session from the cloud into a folder of its own choice",
    "sdk-url": "takes its sessions from another program; wal-agent does not save those",
    "worktree": "makes Claude Code work in another folder than the one that wal-agent saves. Make the worktree first "
    "and start wal-agent in it",
    "no-session-persistence": "keeps the session from being written, so it could not be saved",
}
_SWITCHES = {"CLAUDE_CODE_SIMPLE": "as --bare does", "CLAUDE_CODE_SAFE_MODE": "as --safe-mode does"}


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = options.parse_args(args)
    return (
        _by_argument(args, given)
        or _by_organisation(given)
        or _not_merged(given, workspace)
        or _by_setting(given, workspace, env)
        or _by_variable(given, workspace, env)
    )


def _by_argument(args: Sequence[str], given: list[options.Arg]) -> str | None:
    if (command := options.subcommand(args)) in options.SERVES:
        return f"`claude {command}` begins sessions that wal-agent does not save. Nothing was run."
    until = args.index("--") if "--" in args else len(args)
    for word in ("--bare", "--safe-mode"):  # Claude looks for these anywhere, also where they are another's value
        if word in args[:until]:
            return f"{word} switches Claude Code's hooks off, {_NOTHING}"
    for name, what in _ELSEWHERE.items():
        if options.last_value(given, name) is not None:
            return f"--{name} {what}. Nothing was run."
    return None


def _by_setting(given: list[options.Arg], workspace: Path, env: Env) -> str | None:
    for shown, values in _layers(given, workspace, env):
        if values.get("disableAllHooks") is True:
            return f"Claude Code's hooks are off ({shown}: disableAllHooks is true), {_NOTHING}"
    return None


def _by_variable(given: list[options.Arg], workspace: Path, env: Env) -> str | None:
    places = [("the environment", dict(env))]
    layers = [*_layers(given, workspace, env), *_managed(given)]
    places += [(shown, own) for shown, values in layers if isinstance(own := values.get("env"), dict)]
    for shown, values in places:
        for name, how in _SWITCHES.items():
            if _true(values.get(name)):
                return f"{name} in {shown} switches Claude Code's hooks off, {how}, {_NOTHING}"
        if _true(values.get("CLAUDE_CODE_SKIP_PROMPT_HISTORY")):
            return (
                f"CLAUDE_CODE_SKIP_PROMPT_HISTORY in {shown} keeps the session from being written, so it could not be "
                "saved. Nothing was run."
            )
    return None


def _by_organisation(given: list[options.Arg]) -> str | None:
    found = _organisation(given)
    return found and f"Claude Code's hooks are off by the organisation ({found}), {_NOTHING}"


def _organisation(given: list[options.Arg]) -> str | None:
    """The file and the key by which an organisation's settings switch off what is not its own."""
    for shown, values in _managed(given):
        locked = values.get("strictPluginOnlyCustomization")
        for key, off in (
            ("disableAllHooks", _off(values.get("disableAllHooks"))),
            ("allowManagedHooksOnly", values.get("allowManagedHooksOnly") is True),
            ("strictPluginOnlyCustomization", locked is True or (isinstance(locked, list) and "hooks" in locked)),
        ):
            if off:
                return f"{shown}: {key} is {json.dumps(values[key])}"
    return None


def _off(value: Any) -> bool:
    """As 2.1.330 reads an organisation's `disableAllHooks`; elsewhere, and in 2.1.197, only `true` counts."""
    return value not in (None, False, "false")


def settings_files(args: Sequence[str], workspace: Path, env: Env) -> list[Path]:
    """Of what a running Claude Code reads again, the files that count more than this run's own: the organisation's."""
    return _managed_files()


def switch_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    """What this run's own settings say of hooks (inject.STAY_ON) counts more than the user's and the project's."""
    return _organisation(options.parse_args(args))


def _not_merged(given: list[options.Arg], workspace: Path) -> str | None:
    """The user's own --settings goes into one file with ours, and what is wrong in it would void both."""
    users = options.last_value(given, "settings")
    if users is None:
        return None
    try:
        given_settings(users, workspace)
    except (OSError, ValueError) as error:
        shown = users if len(users) <= 200 else users[:199] + "…"
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return (
            f"--settings {shown} cannot be used: {why}. For one thing that it does not take, Claude Code would drop "
            f"the hooks too, {_NOTHING}"
        )
    return None


def given_settings(value: str, folder: Path) -> dict[str, Any]:
    """What `--settings` says: a file, or JSON where it stands in braces. OSError, ValueError: Claude would not take
    it."""
    text = value.strip()
    if not (text.startswith("{") and text.endswith("}")):
        with (folder / value).open("rb") as f:
            text = f.read(_LIMIT).decode("utf-8-sig")
    try:
        values = json.loads(text, parse_constant=_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    settings_schema.check_settings(values)
    return values


def _constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _layers(given: list[options.Arg], workspace: Path, env: Env) -> Iterator[tuple[str, dict[str, Any]]]:
    project = workspace / ".claude"
    places = [
        ("~/.claude/settings.json", claude_home(env) / "settings.json"),
        (".claude/settings.json", project / "settings.json"),
        (".claude/settings.local.json", project / "settings.local.json"),
    ]
    for shown, path in places:
        if (values := _read(path)) is not None:
            yield shown, values
    if (users := options.last_value(given, "settings")) is not None:
        yield "--settings", given_settings(users, workspace)


def _managed_files() -> list[Path]:
    more = MANAGED / "managed-settings.d"
    try:
        extra = sorted(p for p in more.iterdir() if p.suffix == ".json")
    except OSError:
        extra = []
    return [MANAGED / "managed-settings.json", *extra]


def _managed(given: list[options.Arg]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in _managed_files():
        if (values := _read(path)) is not None:
            yield str(path), values
    for arg in given:
        if arg.name == "managed-settings":
            try:
                values = json.loads(arg.value)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict):
                yield "--managed-settings", values


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as f:
            values = json.loads(f.read(_LIMIT).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None  # absent; or damaged, and Claude passes over it
    return values if isinstance(values, dict) else None


def _true(value: Any) -> bool:
    """As Claude reads a variable."""
    return str(value).lower().strip() in ("1", "true", "yes", "on")

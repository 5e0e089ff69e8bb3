"""Would our hooks fire here, and would the session be where we look? Read from Qwen Code's settings files and
arguments, before anything is started (I5)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env
from wal_agent.agents.layers import Layer, effective_setting, read_layer
from wal_agent.agents.qwen import dotenv, options
from wal_agent.agents.qwen.paths import RUNTIME, configured_folders, qwen_home, runtime_folder, user_home
from wal_agent.errors import ConfigError

_ETC = "/etc/qwen-code/settings.json"
_MAC = "/Library/Application Support/QwenCode/settings.json"
_PROJECT = ".qwen/settings.json"
_USER = "~/.qwen/settings.json"
_TRUE = ("1", "true", "yes", "on")


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = options.parse_args(args)
    if any(options.is_given(given, name) for name in ("acp", "experimental-acp")):
        return (
            "Qwen Code in ACP mode takes its sessions from an editor; wal-agent does not save those. Nothing was run."
        )
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
    except ConfigError as e:  # of `places`: a folder that is not the same everywhere
        return str(e)


def _bare(given: list[options.Arg], layers: list[Layer], workspace: Path, env: Env) -> str | None:
    found = variable_values("QWEN_CODE_SIMPLE", layers, workspace, env)
    where = next((f" ({where})" for where, value in found if value.strip().lower() in _TRUE), None)
    if where is None and not options.is_given(given, "bare"):
        return None
    return f"Qwen Code's bare mode{where or ''} runs no hooks, so no tool call could be logged. Nothing was run."


def _disabled_hooks(layers: list[Layer]) -> str | None:
    """A system settings file of ours could overrule it; but then the user's own hooks would run too."""
    found = effective_setting(layers, "disableAllHooks")
    if found is None or not found[1]:
        return None
    where = "in this project " if found[0].shown == _PROJECT else ""
    return (
        f"Qwen Code's hooks are off {where}({found[0].shown}: disableAllHooks is {json.dumps(found[1])}), so no tool "
        "call could be logged. Nothing was run."
    )


def _unrecorded(given: list[options.Arg], layers: list[Layer]) -> str | None:
    said = options.last_value(given, "chat-recording")
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
    """A folder for sessions that `places.runtime` cannot know: it is another one in each project."""
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


def _boxed(given: list[options.Arg], layers: list[Layer], workspace: Path, env: Env) -> str | None:
    if env.get("SANDBOX"):
        return None  # this is the inside
    found = effective_setting(layers, "tools", "sandbox")
    asked: Any = (
        options.is_given(given, "sandbox") if options.last_value(given, "sandbox") is not None else found and found[1]
    )
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
                    "the name of a built-in one, so nobody could tell what a call of it does. Nothing was run."
                )
    return None


def variable_values(name: str, layers: list[Layer], workspace: Path, env: Env) -> list[tuple[str, str]]:
    """What Qwen may take this variable to be, and from where: what is set stays. Of the `.env` files it reads the
    first, or the first that is the user's own, where it does not trust the folder; then its settings."""
    if name in env:
        return [(name, env[name])]
    files, own = env_files(workspace, env)
    there = [path for path in files if path.exists()]
    first = [*there[:1], *[path for path in there if path in own][:1]]
    said: list[tuple[str, Any]] = [(str(path), dotenv.read_dotenv(path).get(name)) for path in first]
    for each in layers:
        found = effective_setting([each], "env", name)
        said.append((each.shown, found and found[1]))
    return [(f"{where}: {name}", value) for where, value in said if isinstance(value, str)]


def env_files(workspace: Path, env: Env) -> tuple[list[Path], list[Path]]:
    """Those that Qwen looks for, in its order; and which of them are the user's own."""
    home = user_home(env)
    own = list(dict.fromkeys([qwen_home(env) / ".env", home / ".qwen/.env", home / ".env"]))
    found: list[Path] = []
    for folder in (workspace, *workspace.parents):
        found += own if folder == home else [folder / ".qwen/.env", folder / ".env"]
    return list(dict.fromkeys([*found, *own])), own


def settings_layers(workspace: Path, env: Env) -> list[Layer]:
    """Lowest first. The project's file counts although its folder may not be trusted."""
    own = own_layers(env)
    project = read_layer(_PROJECT, workspace / _PROJECT) if workspace != user_home(env).resolve() else None
    at = next((n for n, each in enumerate(own) if each.shown == str(_system(env))), len(own))
    return [*own[:at], *([project] if project else []), *own[at:]]


def own_layers(env: Env) -> list[Layer]:
    """Those that are no project's."""
    system = _system(env)
    defaults = Path(env.get("QWEN_CODE_SYSTEM_DEFAULTS_PATH") or system.parent / "system-defaults.json")
    found = [
        read_layer(str(defaults), defaults),
        read_layer(_USER, qwen_home(env) / "settings.json"),
        read_layer(str(system), system),
    ]
    return [each for each in found if each is not None]


def _system(env: Env) -> Path:
    return Path(env.get("QWEN_CODE_SYSTEM_SETTINGS_PATH") or (_MAC if sys.platform == "darwin" else _ETC))

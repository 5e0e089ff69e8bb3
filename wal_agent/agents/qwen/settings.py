"""Would our hooks fire here, and would the session be where we look? Read from Qwen Code's settings files and
arguments, before anything is started (I5)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env
from wal_agent.agents.layers import Layer, effective, layer
from wal_agent.agents.qwen import options
from wal_agent.agents.qwen.places import qwen_home

_ETC = "/etc/qwen-code/settings.json"
_MAC = "/Library/Application Support/QwenCode/settings.json"
_PROJECT = ".qwen/settings.json"
_TRUE = ("1", "true", "yes", "on")


def hooks_off(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = options.read(args)
    if any(options.on(given, name) for name in ("acp", "experimental-acp")):
        return (
            "Qwen Code in ACP mode takes its sessions from an editor; wal-agent does not save those. Nothing was run."
        )
    if options.on(given, "bare") or env.get("QWEN_CODE_SIMPLE", "").strip().lower() in _TRUE:
        return "Qwen Code's bare mode runs no hooks, so no tool call could be logged. Nothing was run."
    layers = settings_layers(workspace, env)
    return _switched_off(layers) or _unrecorded(given, layers) or _elsewhere(layers, env) or _boxed(given, layers, env)


def _switched_off(layers: list[Layer]) -> str | None:
    """A system settings file of ours could overrule it; but then the user's own hooks would run too."""
    found = effective(layers, "disableAllHooks")
    if found is None or not found[1]:
        return None
    where = "in this project " if found[0].shown == _PROJECT else ""
    return (
        f"Qwen Code's hooks are off {where}({found[0].shown}: disableAllHooks is {json.dumps(found[1])}), so no tool "
        "call could be logged. Nothing was run."
    )


def _unrecorded(given: list[options.Arg], layers: list[Layer]) -> str | None:
    said = options.last(given, "chat-recording")
    off = any(arg.name == "no-chat-recording" for arg in given)
    found = effective(layers, "general", "chatRecording")
    if off or said == "false":
        where = "--chat-recording"
    elif said is None and found is not None and found[1] is False:
        where = f"{found[0].shown}: general.chatRecording"
    else:
        return None
    return f"Qwen Code would keep no session here ({where} is off), so none could be saved. Nothing was run."


def _elsewhere(layers: list[Layer], env: Env) -> str | None:
    """A folder for sessions that `places.runtime` cannot know: it is another one in each project."""
    found = effective(layers, "advanced", "runtimeOutputDir")
    if found is None or not found[1] or env.get("QWEN_RUNTIME_DIR"):
        return None
    if found[0].shown == "~/.qwen/settings.json" and str(found[1]).startswith(("/", "~")):
        return None
    return (
        f"Qwen Code keeps this project's sessions in {found[1]} ({found[0].shown}: advanced.runtimeOutputDir), where "
        "wal-agent does not look. Name an absolute folder in QWEN_RUNTIME_DIR instead. Nothing was run."
    )


def _boxed(given: list[options.Arg], layers: list[Layer], env: Env) -> str | None:
    if env.get("SANDBOX"):
        return None  # this is the inside
    found = effective(layers, "tools", "sandbox")
    value: Any = options.on(given, "sandbox") if options.last(given, "sandbox") is not None else found and found[1]
    value = env.get("QWEN_SANDBOX", "").lower().strip() or value
    if value in (None, "", "0", "false", False) or value == "sandbox-exec":
        return None
    if value in ("1", "true", True) and sys.platform == "darwin":
        return None
    return (
        f"Qwen Code's sandbox ({value if isinstance(value, str) else 'a container'}) keeps its hooks from reaching "
        "wal-agent, so no tool call could be logged. Run wal-agent inside the container instead. Nothing was run."
    )


def settings_layers(workspace: Path, env: Env) -> list[Layer]:
    """Lowest first. The project's file counts although its folder may not be trusted."""
    own = own_layers(env)
    project = layer(_PROJECT, workspace / _PROJECT) if workspace != qwen_home(env).parent else None
    at = next((n for n, each in enumerate(own) if each.shown == str(_system(env))), len(own))
    return [*own[:at], *([project] if project else []), *own[at:]]


def own_layers(env: Env) -> list[Layer]:
    """Those that are no project's."""
    system = _system(env)
    defaults = Path(env.get("QWEN_CODE_SYSTEM_DEFAULTS_PATH") or system.parent / "system-defaults.json")
    found = [
        layer(str(defaults), defaults),
        layer("~/.qwen/settings.json", qwen_home(env) / "settings.json"),
        layer(str(system), system),
    ]
    return [each for each in found if each is not None]


def _system(env: Env) -> Path:
    return Path(env.get("QWEN_CODE_SYSTEM_SETTINGS_PATH") or (_MAC if sys.platform == "darwin" else _ETC))

"""Would our hooks fire here? Read from Gemini's settings files and arguments, before anything is started (I5).

What only a running Gemini can know (settings that an administrator sends, `/hooks disable-all`, a `.env` file) is left
to the handshake and to the watch for calls that the log did not see.
"""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env
from wal_agent.agents.extension import PREFIX
from wal_agent.agents.gemini import options
from wal_agent.agents.gemini.inject import gemini_home
from wal_agent.agents.layers import Layer, effective_setting, read_layer

_NATIVE = ("sandbox-exec", "windows-native")  # same host, same files: hooks reach us


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = options.parse_args(args)
    if any(options.is_given(given, name) for name in ("acp", "experimental-acp")):
        return "Gemini in ACP mode takes its sessions from an editor; wal-agent does not save those. Nothing was run."
    if options.last_value(given, "worktree") is not None:
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


def _sandboxed(given: list[options.Arg], layers: list[Layer], env: Env) -> str | None:
    if env.get("SANDBOX"):
        return None  # this is the inside
    found = effective_setting(layers, "tools", "sandbox")
    value: Any = (
        options.is_given(given, "sandbox") if options.last_value(given, "sandbox") is not None else found and found[1]
    )
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

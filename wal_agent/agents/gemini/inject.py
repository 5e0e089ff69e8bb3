"""The hooks of one run: an extension in the user's `~/.gemini/extensions` (agents/extension.py).

Only an extension's hooks also fire in a folder that is not trusted.
"""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.agents import extension
from wal_agent.agents.base import Env, HookSetup, HookTable, Injected
from wal_agent.agents.gemini.hooks import EVENTS
from wal_agent.agents.gemini.line import HOOK_TIMEOUT_MS, MARKER, OF_TOOLS, hook_line


def gemini_home(env: Env) -> Path:
    """Gemini's state folder, as it finds it itself."""
    return Path(env.get("GEMINI_CLI_HOME") or env.get("HOME") or Path.home()) / ".gemini"


def _install_file(place: Path) -> dict[str, str]:
    """Without it, any Gemini whose settings have security.allowedExtensions would fail to start."""
    return {".gemini-extension-install.json": json.dumps({"source": str(place), "type": "local"})}


EXTENSION = extension.ExtensionKind("Gemini", "gemini-extension.json", MARKER, _install_file)


def inject(setup: HookSetup, env: Env) -> Injected:
    return EXTENSION.inject(setup, gemini_home(env), hook_table(setup))


def hook_table(setup: HookSetup) -> HookTable:
    return extension.hook_table(setup, EVENTS, OF_TOOLS, lambda event: hook_line(setup, event), HOOK_TIMEOUT_MS)


def sweep(env: Env) -> None:
    extension.sweep(gemini_home(env))

"""The heap that Gemini would give itself. Started as one process it skips that (GEMINI_CLI_NO_RELAUNCH), and a long
session would die of V8's default limit; so the same argument is given to node here (I6)."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from wal_agent.agents.base import Env
from wal_agent.agents.gemini.inject import gemini_home

_FLAG = "--max-old-space-size"


def interpreter(program: Path, env: Env) -> tuple[str, ...]:
    """What to put before `program`: node and half of the memory as its heap (0.61: getMemoryNodeArgs). Nothing where it
    is no node script, where the settings or NODE_OPTIONS say otherwise."""
    if _FLAG in env.get("NODE_OPTIONS", "") or not _is_node_script(program) or _switched_off(env):
        return ()
    return ("node", f"{_FLAG}={psutil.virtual_memory().total // 2 // (1 << 20)}")


def _is_node_script(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.readline(200).rstrip() == b"#!/usr/bin/env node"
    except OSError:
        return False


def _switched_off(env: Env) -> bool:
    try:
        settings = json.loads((gemini_home(env) / "settings.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    advanced = settings.get("advanced") if isinstance(settings, dict) else None
    return isinstance(advanced, dict) and advanced.get("autoConfigureMemory") is False

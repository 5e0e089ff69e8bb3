"""Gemini's heap, unless its settings switch that off (0.61: getMemoryNodeArgs)."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.agents import node
from wal_agent.agents.base import Env
from wal_agent.agents.gemini.inject import gemini_home


def gemini_node_command(program: Path, env: Env) -> tuple[str, ...]:
    return () if _no_heap_wanted(env) else node.node_command(program, env)


def _no_heap_wanted(env: Env) -> bool:
    try:
        settings = json.loads((gemini_home(env) / "settings.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    advanced = settings.get("advanced") if isinstance(settings, dict) else None
    return isinstance(advanced, dict) and advanced.get("autoConfigureMemory") is False

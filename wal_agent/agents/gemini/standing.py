"""Hooks in Gemini's own settings (agents/installed.py)."""

from __future__ import annotations

from wal_agent.agents import installed
from wal_agent.agents.base import Env, Standing
from wal_agent.agents.gemini.inject import gemini_home, hook_table

_HAS_OURS = '[ -d "${GEMINI_CLI_HOME:-$HOME}/.gemini/extensions/wal-agent-$WAL_AGENT_RUN" ]'


def standing(env: Env) -> Standing:
    hooks = installed.standing(hook_table, True, _HAS_OURS, named=True)
    return Standing("gemini", "Gemini", gemini_home(env) / "settings.json", hooks)

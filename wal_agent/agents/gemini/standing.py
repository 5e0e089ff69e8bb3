"""Hooks in Gemini's own settings (agents/installed_hooks.py)."""

from __future__ import annotations

from wal_agent.agents import installed_hooks
from wal_agent.agents.base import Env, HooksToInstall
from wal_agent.agents.gemini.inject import gemini_home, hook_table

_HAS_OURS = '[ -d "${GEMINI_CLI_HOME:-$HOME}/.gemini/extensions/wal-agent-$WAL_AGENT_RUN" ]'


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, True, _HAS_OURS, named=True)
    return HooksToInstall("gemini", "Gemini", gemini_home(env) / "settings.json", hooks)

"""Hooks in Claude Code's own settings (agents/installed_hooks.py). They carry no name: Claude may drop a whole file for a key
that it does not know."""

from __future__ import annotations

from wal_agent.agents import installed_hooks
from wal_agent.agents.base import Env, HooksToInstall
from wal_agent.agents.claude.inject import claude_home, hook_table

# Claude itself is started with `--settings` in the run's folder.
_HAS_OURS = (
    'case "$(ps -ww -o args= -p "$PPID" 2>/dev/null)" in *"${WAL_AGENT_SOCKET%/hook.sock}/"*) true;; *) false;; esac'
)


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, False, _HAS_OURS, named=False)
    return HooksToInstall("claude", "Claude Code", claude_home(env) / "settings.json", hooks)

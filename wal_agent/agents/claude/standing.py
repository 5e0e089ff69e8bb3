"""Hooks in Claude Code's own settings (agents/installed.py). They carry no name: Claude may drop a whole file for a key
that it does not know."""

from __future__ import annotations

from wal_agent.agents import installed
from wal_agent.agents.base import Env, Standing
from wal_agent.agents.claude.inject import claude_home, hook_table

# Claude itself is started with `--settings` in the run's folder.
_HAS_OURS = (
    'case "$(ps -ww -o args= -p "$PPID" 2>/dev/null)" in *"${WAL_AGENT_SOCKET%/hook.sock}/"*) true;; *) false;; esac'
)


def standing(env: Env) -> Standing:
    hooks = installed.standing(hook_table, False, _HAS_OURS, named=False)
    return Standing("claude", "Claude Code", claude_home(env) / "settings.json", hooks)

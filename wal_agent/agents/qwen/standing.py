"""Hooks in Qwen Code's own settings (agents/installed_hooks.py).

Qwen fills in variables of the environment in its settings when it reads them, to the same end as the shell would.
"""

from __future__ import annotations

from wal_agent.agents import installed_hooks
from wal_agent.agents.base import Env, HooksToInstall
from wal_agent.agents.qwen.inject import hook_table
from wal_agent.agents.qwen.paths import qwen_home

# A launcher may name the home with a `~`, which Qwen itself resolves. A relative name is Qwen's here too: hooks start
# where it does.
_HAS_OURS = (
    '{ wal_agent_home=${QWEN_HOME:-$HOME/.qwen}; case $wal_agent_home in "~"|"~/"*) '
    'wal_agent_home=$HOME${wal_agent_home#"~"};; esac; '
    '[ -d "$wal_agent_home/extensions/wal-agent-$WAL_AGENT_RUN" ]; }'
)


def hooks_to_install(env: Env) -> HooksToInstall:
    hooks = installed_hooks.hooks_for_settings(hook_table, True, _HAS_OURS, named=True)
    return HooksToInstall("qwen", "Qwen Code", qwen_home(env) / "settings.json", hooks)

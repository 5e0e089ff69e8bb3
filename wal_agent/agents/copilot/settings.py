"""Would our hooks fire here? Read from the arguments and the project's settings, before anything is started (I5).

What only a running Copilot can know (settings that an administrator sends) is left to the handshake.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.copilot import options
from wal_agent.agents.layers import effective_setting, read_layer

# Lowest first. Copilot reads them of the folder that it works in, not of those above, once that is trusted; the user's
# own `disableAllHooks` leaves the hooks of a plugin alone.
_FILES = (
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".github/copilot/settings.json",
    ".github/copilot/settings.local.json",
)
_WHY = {
    "directory": "-C makes Copilot work in another folder than the one that wal-agent saves. Start wal-agent there.",
    "worktree": "--worktree makes Copilot work in another folder than the one that wal-agent saves. Make the worktree "
    "first and start wal-agent in it.",
    "acp": "Copilot in ACP mode takes its sessions from an editor; wal-agent does not save those.",
    "connect": "--connect joins a session on another machine, where wal-agent's hooks do not run.",
}
_SERVED = "Copilot as a server takes its sessions from others; wal-agent does not save those."


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = options.parse_args(args)
    for name in options.ELSEWHERE:
        if options.last_value(given, name) is not None:
            return f"{_WHY.get(name, _SERVED)} Nothing was run."
    found = effective_setting(
        [each for f in _FILES if (each := read_layer(f, workspace / f)) is not None], "disableAllHooks"
    )
    if found is None or found[1] is not True:
        return None
    return (
        f"Copilot's hooks are off in this project ({found[0].shown}: disableAllHooks is true), "
        "so no tool call could be logged. Nothing was run."
    )

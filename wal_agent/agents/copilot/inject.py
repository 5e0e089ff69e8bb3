"""The hooks of one run: a plugin in the run's own folder, given with `--plugin-dir`.

It loads beside the user's own plugins, so no file of the user's is touched. The standing protocol is a folder of
instructions, which Copilot reads at each start and resume.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Deny, Env, HookSetup, Injected
from wal_agent.agents.copilot.home import copilot_home
from wal_agent.agents.copilot.hooks import EVENTS, deny_output
from wal_agent.agents.hook_line import GONE, HOOK_SECONDS, bash_line
from wal_agent.errors import ConfigError
from wal_agent.flock import flock_state

PLUGIN = "WAL_AGENT_COPILOT_PLUGIN"  # tells `command` where it is
INSTRUCTIONS = "COPILOT_CUSTOM_INSTRUCTIONS_DIRS"
FIRM = {"preToolUse", "postToolUse", "postToolUseFailure"}  # may wait for the bucket; the others are answered at once


def inject(setup: HookSetup, env: Env) -> Injected:
    place, told = setup.run_dir / "copilot-plugin", setup.run_dir / "copilot-protocol"
    files = {
        place / "plugin.json": json.dumps({"name": "wal-agent", "version": "1.0.0", "hooks": "hooks/hooks.json"}),
        place / "hooks/hooks.json": json.dumps({"version": 1, "hooks": hook_table(setup)}, indent=1),
        told / ".github/instructions/wal-agent.instructions.md": f'---\napplyTo: "**"\n---\n{setup.protocol}',
    }
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as e:
        raise ConfigError(f"Copilot's hooks could not be placed in {place}: {e.strerror or e}.") from e
    added = {PLUGIN: str(place)}
    if setup.protocol and "," not in str(told):  # Copilot's separator
        added[INSTRUCTIONS] = ",".join(filter(None, [env.get(INSTRUCTIONS), str(told)]))
    return Injected(added, (plugin_data(place, env),))


def sweep(env: Env, runtime: Path) -> None:
    """Remove the folders that Copilot made for the plugins of dead runs."""
    for place in runtime.glob("*/copilot-plugin"):
        left = plugin_data(place, env)
        if left.is_dir() and not left.is_symlink() and flock_state(place.parent / "lock") == "free":
            shutil.rmtree(left, ignore_errors=True)


def hook_table(setup: HookSetup) -> dict[str, list[dict[str, Any]]]:
    """No matcher, so hooks fire for the tools in `skip` too: Copilot has no "all but these", and a pattern that it does
    not understand silently matches nothing."""
    return {
        event: [
            {
                "type": "command",
                "bash": bash_line(
                    setup, "copilot", event, event in FIRM, deny_output(Deny(GONE)) if event == "preToolUse" else None
                ),
                "timeoutSec": HOOK_SECONDS,
            }
        ]
        for event in EVENTS
    }


def plugin_data(place: Path, env: Env) -> Path:
    """The empty folder that Copilot makes for the data of a plugin that is given by path."""
    source = json.dumps({"source": "local", "path": str(place)}, separators=(",", ":"), ensure_ascii=False)
    return copilot_home(env) / "plugin-data" / "_direct" / hashlib.sha256(source.encode()).hexdigest()

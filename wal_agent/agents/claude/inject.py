"""The hooks of one run: a settings file in the run's own folder, given with `--settings`.

Claude merges it with the user's, the project's and the local settings, so no file of the user's is touched. A second
`--settings` would replace ours, so the user's own is merged into one file with it (I6); one entry that Claude does not
understand voids the whole file without a word, so the user's is checked before (shapes.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Deny, Env, HookSetup, Injected
from wal_agent.agents.claude.hooks import EVENTS, TOOLS, deny_output
from wal_agent.agents.hook_line import GONE, HOOK_SECONDS, sh_line
from wal_agent.errors import ConfigError

SETTINGS = "WAL_AGENT_CLAUDE_SETTINGS"  # tells `command` where our settings are, and the standing protocol beside them
SWITCHES = ("CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_SKIP_PROMPT_HISTORY")
# What a settings file that is written while Claude runs must not change: it reads them again, and these count more than
# the user's, the project's and the local ones. At the start none of those has them on, or nothing is run (settings.py).
STAY_ON: dict[str, Any] = {"disableAllHooks": False, "env": dict.fromkeys(SWITCHES, "0")}
FIRM = {"PreToolUse", "PostToolUse", "PostToolUseFailure"}  # may wait for the bucket; the others are answered at once


def claude_home(env: Env) -> Path:
    """Claude's state folder, as it finds it itself."""
    own = env.get("CLAUDE_CONFIG_DIR")
    return Path(own) if own else Path(env.get("HOME") or Path.home()) / ".claude"


def inject(setup: HookSetup, env: Env) -> Injected:
    place = setup.run_dir / "claude-settings.json"
    try:
        place.write_text(json.dumps({"hooks": hook_table(setup), **STAY_ON}, indent=1))
        protocol_file(place).write_text(setup.protocol)
    except OSError as e:
        raise ConfigError(f"Claude Code's hooks could not be placed in {place}: {e.strerror or e}.") from e
    return Injected(env={SETTINGS: str(place)})


def merged_settings_file(settings: Path) -> Path:
    return settings.with_name("claude-settings-merged.json")


def run_settings_files(env: Env) -> list[Path]:
    """This run's settings, one file with the user's where `--settings` names one: Claude reads it again when another
    one changes."""
    ours = Path(env[SETTINGS])
    return [ours, merged_settings_file(ours)]


def protocol_file(settings: Path) -> Path:
    return settings.with_name("claude-protocol.md")


def hook_table(setup: HookSetup) -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = {}
    for event in EVENTS:
        deny = deny_output(Deny(GONE)) if event == "PreToolUse" else None
        line = sh_line(setup, "claude", event, event in FIRM, deny)
        # Seconds. One above 2147483 would be over at once, and the tool run.
        group: dict[str, Any] = {"hooks": [{"type": "command", "command": line, "timeout": HOOK_SECONDS}]}
        if event in TOOLS and setup.skip:
            group["matcher"] = f"^(?!(?:{'|'.join(map(re.escape, setup.skip))})$)"
        table[event] = [group]
    return table


def merge_settings(ours: Path, users: dict[str, Any]) -> Path:
    """One file with both: the user's, then our hooks beside the user's own. Gives its path, in the run's folder."""
    own = json.loads(ours.read_bytes())
    hooks = {event: list(groups) for event, groups in users.get("hooks", {}).items()}
    for event, groups in own["hooks"].items():
        hooks[event] = [*hooks.get(event, []), *groups]
    place = merged_settings_file(ours)
    both = {**users, **own, "hooks": hooks, "env": {**users.get("env", {}), **own["env"]}}
    place.write_text(json.dumps(both, indent=1))
    return place

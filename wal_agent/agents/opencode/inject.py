"""The plugin of one run: three files in its own folder, made known by OPENCODE_CONFIG_CONTENT (no file of the user's).

As soon as there is any plugin, OpenCode waits for npm to install its plugin package into each of its configuration
folders: 75 s without a network, and files in the user's own. So npm is told to stay offline until the plugin runs,
unless the user has plugins or tools of their own, which may need that package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env, HookSetup, Injected
from wal_agent.agents.hook_line import CLIENT_SECONDS, GONE
from wal_agent.agents.opencode import database, hooks, locks, place
from wal_agent.errors import ConfigError
from wal_agent.resources import shipped

CONTENT = "OPENCODE_CONFIG_CONTENT"
OFFLINE = {"npm_config_offline": "true", "npm_config_fetch_retries": "0"}
FOLDER = "opencode"
# Also against a `.env` of the workspace, and OPENCODE_EXPERIMENTAL: code mode follows it where nothing is said.
PLAIN = {"OPENCODE_PURE": "0", "OPENCODE_EXPERIMENTAL_CODE_MODE": "0"}


def inject(setup: HookSetup, env: Env) -> Injected:
    if lacks := database.schema_problem(place.database_path(env)):
        raise ConfigError(
            f"OpenCode's database {place.database_path(env)} is not as wal-agent knows it: it lacks {lacks}. "
            "No session in it could be saved.",
            "If it is an old one, start `opencode` once by itself: that brings it up to date.",
        )
    locks.clear_dead_locks(env)
    folder = setup.run_dir / FOLDER
    offline = {} if hooks.own_plugins(env) else {k: v for k, v in OFFLINE.items() if k not in env}
    told = {
        "socket": str(setup.run_dir / "hook.sock"),
        "run": setup.run,
        "skip": list(setup.skip),
        "seconds": CLIENT_SECONDS[False],
        "firm_seconds": CLIENT_SECONDS[True],
        "clear": sorted(offline),
        "gone": GONE,
        "owner": str(folder / "owner"),
        "users": env.get(CONTENT, ""),
    }
    plugin = shipped("hooks/opencode.js").read_text().replace('"@SETUP@"', _literal(told))
    files = {"wire.js": shipped("hooks/wire.js").read_text(), "wal-agent.js": plugin, "protocol.md": setup.protocol}
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    except OSError as e:
        raise ConfigError(f"OpenCode's plugin could not be placed in {folder}: {e.strerror or e}.") from e
    return Injected(env={CONTENT: config_content(env.get(CONTENT, ""), folder), **PLAIN, **offline})


def config_content(users: str, folder: Path) -> str:
    """The user's own value of the variable with the plugin and the protocol behind what it lists; the plugin is the
    last of all, so it sees each call as the others left it. ConfigError when it is no JSON."""
    try:
        value: Any = hooks.parse_jsonc(users) if users.strip() else {}
    except ValueError as e:
        raise ConfigError(f"{CONTENT} is not what OpenCode could read: {e}.") from e
    if not isinstance(value, dict):
        raise ConfigError(f"{CONTENT} holds no JSON object.")
    ours = {"plugin": (folder / "wal-agent.js").as_uri(), "instructions": str(folder / "protocol.md")}
    for key, one in ours.items():
        listed = value.get(key, [])
        if not isinstance(listed, list):
            raise ConfigError(f"{CONTENT}: {key} is no list.")
        value[key] = [*(item for item in listed if item != one), one]
    return json.dumps(value, ensure_ascii=False)


def _literal(value: object) -> str:
    """A JavaScript string literal of its JSON. Without raw U+2028, which older readers take for a line's end."""
    return re.sub("[\u2028\u2029]", lambda m: f"\\u{ord(m[0]):04x}", json.dumps(json.dumps(value)))

"""Would our plugin run here? Read from arguments, environment and configuration, before anything is started (I5)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env
from wal_agent.agents.opencode import options, place
from wal_agent.plainfile import read_plain

_LIMIT = 1 << 22
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\Z))|//[^\n\r]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
NO_VALUES = ("", "0", "false", "no", "off")  # OpenCode takes many words for yes
_OWN = ("plugin", "plugins", "tool", "tools")


def parse_jsonc(text: str) -> Any:
    """JSON with comments and trailing commas. ValueError."""
    bare = _COMMENT.sub(lambda m: m[1] or " ", text)
    return json.loads(_COMMA.sub(lambda m: m[1] or "", bare))


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    command, given = options.subcommand(args)
    if command in options.SERVERS or options.last_value(given, "attach") is not None:
        shown = f"opencode {command}" if command in options.SERVERS else "--attach"
        return (
            f"{shown} works in sessions that another program begins, or in another folder; wal-agent saves those of "
            "`opencode` and `opencode run` in this one. Nothing was run."
        )
    if any(options.is_given(given, name) for name in ("mini", "interactive")):
        return "OpenCode's --mini and --interactive are not known to wal-agent yet. Nothing was run."
    if options.is_given(given, "pure") or env.get("OPENCODE_PURE", "").lower() not in NO_VALUES:
        where = "--pure" if options.is_given(given, "pure") else "OPENCODE_PURE"
        return f"{where} starts OpenCode without plugins, so no tool call could be logged. Nothing was run."
    if env.get("OPENCODE_EXPERIMENTAL_CODE_MODE", "").lower() not in NO_VALUES:
        return (
            "OPENCODE_EXPERIMENTAL_CODE_MODE lets OpenCode run MCP tools inside one call, of which hooks do not tell. "
            "Nothing was run."
        )
    if env.get("OPENCODE_DB") == ":memory:":
        return "OPENCODE_DB keeps the session in memory only, so it could not be saved. Nothing was run."
    return _elsewhere(command, given, workspace)


def _elsewhere(command: str, given: Sequence[options.Arg], workspace: Path) -> str | None:
    words = [arg.value for arg in given if not arg.name]
    folder = options.last_value(given, "dir") if command == "run" else next(iter(words), None)
    if not folder or os.path.realpath(workspace / folder) == os.path.realpath(workspace):
        return None
    return (
        f"OpenCode is told to work in {folder}, which is another folder than the one that wal-agent saves. Start "
        "wal-agent there. Nothing was run."
    )


def own_plugins(env: Env) -> bool:
    """Has the user plugins or tools, or configuration that cannot be read to tell?"""
    home = Path(env.get("HOME") or Path.home())
    here = Path(env.get("PWD") or Path.cwd())
    roots = [place.config_home(env), *(folder / ".opencode" for folder in (here, *here.parents)), home / ".opencode"]
    if env.get("OPENCODE_CONFIG_DIR"):
        roots.append(Path(env["OPENCODE_CONFIG_DIR"]))
    files = [root / name for root in roots for name in ("config.json", "opencode.json", "opencode.jsonc")]
    files += [folder / name for folder in (here, *here.parents) for name in ("opencode.json", "opencode.jsonc")]
    if env.get("OPENCODE_CONFIG"):
        files.append(Path(env["OPENCODE_CONFIG"]))
    texts = [env.get("OPENCODE_CONFIG_CONTENT", "").encode(), *(read_plain(f, _LIMIT) or b"" for f in files)]
    return any(_lists_plugins(text) for text in texts) or any(_has_code(root / name) for root in roots for name in _OWN)


def _lists_plugins(text: bytes) -> bool:
    if b"plugin" not in text:
        return False
    try:
        value = parse_jsonc(text.decode())
    except (ValueError, RecursionError):
        return True
    return not isinstance(value, dict) or bool(value.get("plugin"))


def _has_code(folder: Path) -> bool:
    try:
        return any(path.suffix in (".js", ".ts", ".mjs", ".mts") for path in folder.iterdir())
    except OSError:
        return False

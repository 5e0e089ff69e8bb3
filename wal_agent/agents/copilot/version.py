"""Which version really runs: Copilot's program hands over to the newest complete one that it finds unpacked, unless it
is told not to. As its loader does it, but without a start; arguments that choose a version are not looked at.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.copilot.home import platform_builds, program_caches

_NUMBER = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([^+]+))?", re.ASCII)
VersionOrder = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]


def running_version(installed: str, env: Env) -> str:
    """The version that a start hands over to; `installed` where it runs itself."""
    given = env.get("COPILOT_CLI_DIST_DIR")
    if given and os.access(Path(given) / "index.js", os.R_OK):
        return _printed_version(Path(given)) or installed
    own = version_order(installed)
    if own is None or env.get("COPILOT_AUTO_UPDATE", "").lower() == "false":
        return installed
    newer: list[tuple[VersionOrder, Path]] = []
    for cache in program_caches(env):
        for build in ("universal", *platform_builds()):
            try:
                folders = list((cache / "pkg" / build).iterdir())
            except OSError:
                continue
            newer += [
                (at, f) for f in folders if (at := version_order(f.name)) is not None and at > own and _complete(f)
            ]
    return _printed_version(max(newer)[1]) or max(newer)[1].name if newer else installed


def version_order(version: str) -> VersionOrder | None:
    """To compare versions by, as npm does; None for what is no version."""
    found = _NUMBER.match(version)
    if found is None:
        return None
    parts = found[4].split(".") if found[4] else []
    early = tuple((False, int(p), "") if re.fullmatch(r"[0-9]{1,99}", p) else (True, 0, p) for p in parts)
    return tuple(map(int, found.groups()[:3])), not parts, early


def _complete(folder: Path) -> bool:
    files = _manifest(folder).get("files")
    needed = ("app.js", "cli-main.js") if isinstance(files, list) and "cli-main.js" in files else ()
    return all(os.access(folder / name, os.R_OK) for name in ("index.js", *needed))


def _printed_version(folder: Path) -> str:
    version = _manifest(folder).get("version")
    return version if isinstance(version, str) else ""


def _manifest(folder: Path) -> dict[str, object]:
    try:
        read = json.loads((folder / "package.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}

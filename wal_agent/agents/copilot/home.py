"""Copilot's folders on this machine, as it finds them itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from wal_agent.agents.base import Env

SESSION = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def copilot_home(env: Env) -> Path:
    own = env.get("COPILOT_HOME")
    return Path(own) if own else Path(env.get("HOME") or Path.home()) / ".copilot"


def program_cache(env: Env) -> Path:
    """Where its program unpacks itself, 235 MB, at the first start of a version."""
    for name in ("COPILOT_PKG_CACHE_HOME", "COPILOT_CACHE_HOME"):
        if env.get(name):
            return Path(env[name])
    home = Path(env.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return home / "Library/Caches/copilot"
    return Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "copilot"

"""Copilot's folders on this machine, as it finds them itself."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from wal_agent.agents.base import Env

SESSION = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def copilot_home(env: Env) -> Path:
    own = env.get("COPILOT_HOME")
    return Path(own) if own else Path(env.get("HOME") or Path.home()) / ".copilot"


def platform_builds() -> list[str]:
    """Names of its builds for this machine, best first."""
    machine = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    musl = sys.platform == "linux" and platform.libc_ver()[0] != "glibc"
    return [f"{kind}-{machine}" for kind in (("linuxmusl", "linux") if musl else (sys.platform,))]


def program_cache(env: Env) -> Path:
    """Where its program unpacks itself, 235 MB, at the first start of a version."""
    return program_caches(env)[0]


def program_caches(env: Env) -> list[Path]:
    """Where it looks for versions of itself."""
    home = Path(env.get("HOME") or Path.home())
    shared = Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "copilot"
    named = (env.get(name) for name in ("COPILOT_PKG_CACHE_HOME", "COPILOT_CACHE_HOME"))
    own = home / "Library/Caches/copilot" if sys.platform == "darwin" else shared
    return [*(Path(path) for path in named if path), own, shared, copilot_home(env), home / ".copilot"]

"""Qwen Code's folders, as it finds them itself: its own, and the one of its sessions."""

from __future__ import annotations

import re
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.layers import effective, layer

_LINE = re.compile(r"^\s*(?:export\s+)?(QWEN_HOME|QWEN_RUNTIME_DIR)\s*=\s*(.*?)\s*$", re.MULTILINE)


def qwen_home(env: Env) -> Path:
    """Settings, extensions, credentials. A `.env` file of the user's may name it too."""
    return _absolute(_named(env).get("QWEN_HOME", ""), env) or _home(env) / ".qwen"


def runtime(env: Env) -> Path:
    """Sessions. A relative folder in the settings means another one in each project: `settings.hooks_off` refuses it,
    as it does one that a project asks for."""
    home = qwen_home(env)
    if named := _named(env).get("QWEN_RUNTIME_DIR"):
        return _absolute(named, env) or home
    user = layer("", home / "settings.json")
    found = effective([user] if user else [], "advanced", "runtimeOutputDir")
    return (isinstance(found[1], str) and _absolute(found[1], env) if found else None) or home


def project(env: Env, workspace: Path) -> Path:
    return runtime(env) / "projects" / re.sub(r"[^a-zA-Z0-9]", "-", str(workspace))


def _home(env: Env) -> Path:
    return Path(env.get("HOME") or Path.home())


def _named(env: Env) -> dict[str, str]:
    """The two variables: from the environment, else from the first file that has them."""
    found = {name: env[name] for name in ("QWEN_HOME", "QWEN_RUNTIME_DIR") if env.get(name)}
    first = _absolute(found.get("QWEN_HOME", ""), env) or _home(env) / ".qwen"
    for path in (first / ".env", *([] if "QWEN_HOME" in found else [first.parent / ".env"])):
        try:
            lines = _LINE.findall(path.read_text(errors="replace"))
        except OSError:
            continue
        for name, value in lines:
            if bare := value.strip("'\""):
                found.setdefault(name, bare)
    return found


def _absolute(text: str, env: Env) -> Path | None:
    if text == "~" or text.startswith("~/"):
        return _home(env) / text[2:]
    return Path(text) if text.startswith("/") else None

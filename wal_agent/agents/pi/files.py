"""Where a session's one file is and where a restored one belongs. Links are not followed.

pi finds a session by the id in the first line of a `.jsonl` of the folder that belongs to the workspace.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from wal_agent.agents.base import Env, SessionFile
from wal_agent.agents.session_files import decode_json
from wal_agent.agents.walk import walk_files

MAIN = "session.jsonl"
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_HEAD = 1 << 16  # bytes of a first line
_LIMIT = 1 << 22


def agent_dir(env: Env) -> Path:
    """pi's folder, as it finds it itself."""
    return (
        expand_path(env["PI_CODING_AGENT_DIR"], env)
        if env.get("PI_CODING_AGENT_DIR")
        else pi_home(env) / ".pi" / "agent"
    )


def pi_home(env: Env) -> Path:
    return Path(env.get("HOME") or Path.home())


def expand_path(path: str, env: Env) -> Path:
    return pi_home(env) / path[2:] if path == "~" or path.startswith("~/") else Path(path)


def folder(env: Env) -> Path:
    return own_folder(env) or agent_dir(env) / "sessions"


def own_folder(env: Env) -> Path | None:
    """The folder that the user chose for all sessions of all workspaces."""
    chosen = env.get("PI_CODING_AGENT_SESSION_DIR") or read_settings(agent_dir(env) / "settings.json").get("sessionDir")
    return expand_path(chosen, env) if isinstance(chosen, str) and chosen else None


def read_settings(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as f:
            value = json.loads(f.read(_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def workspace_sessions(workspace: Path, env: Env) -> Path:
    """The folder of the workspace's sessions."""
    slug = re.sub(r"[/\\:]", "-", re.sub(r"^[/\\]", "", str(workspace)))
    return own_folder(env) or folder(env) / f"--{slug}--"


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    found = {path: size for path in existing_files(session, workspace, env) if (size := _size(path)) is not None}
    return [SessionFile(MAIN, max(found, key=found.__getitem__))] if found else []


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:  # gone since it was listed
        return None


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    if name != MAIN:
        raise ValueError(f"{name!r} is no file of a pi session")
    return workspace_sessions(workspace, env) / f"1970-01-01T00-00-00-000Z_{session}.jsonl"


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    if not _SESSION.fullmatch(session):
        return []
    inside = [p for p in walk_files(workspace_sessions(workspace, env), deep=1) if p.name.endswith(".jsonl")]
    named = [p for p in inside if p.name.endswith(f"_{session}.jsonl")]  # as pi names them: others need not be opened
    return sorted(p for p in named or inside if read_head(p).get("id") == session)


def resumable(session: str, workspace: Path, env: Env) -> bool:
    return bool(existing_files(session, workspace, env))


def read_head(path: Path) -> dict[str, object]:
    """The first line of a regular file; empty when it is no session's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return {}
    with os.fdopen(fd, "rb") as f:
        line = f.readline(_HEAD) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    try:
        value = decode_json(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and value.get("type") == "session" else {}

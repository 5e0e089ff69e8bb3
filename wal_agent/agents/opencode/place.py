"""Where OpenCode keeps its things, as it finds them itself, and where our journals of its sessions are."""

from __future__ import annotations

import os
import re
from pathlib import Path

from wal_agent.agents.base import Env, SessionFile

MAIN = "session.jsonl"
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


def _xdg(env: Env, variable: str, otherwise: str) -> Path:
    base = Path(env.get(variable) or "")
    return base if base.is_absolute() else Path(env.get("HOME") or Path.home()) / otherwise


def config_home(env: Env) -> Path:
    return _xdg(env, "XDG_CONFIG_HOME", ".config") / "opencode"


def state_home(env: Env) -> Path:
    return _xdg(env, "XDG_STATE_HOME", ".local/state") / "opencode"


def database_path(env: Env) -> Path:
    data = _xdg(env, "XDG_DATA_HOME", ".local/share") / "opencode"
    return data / (env.get("OPENCODE_DB") or "opencode.db")


def folder(env: Env) -> Path:
    """Of our journals, not OpenCode's: nothing of its own is ever replaced as a file."""
    return _xdg(env, "XDG_STATE_HOME", ".local/state") / "wal-agent" / "opencode"


def journal_path(session: str, env: Env) -> Path:
    """ValueError for what is no session's id."""
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    return folder(env) / session / MAIN


def is_session(session: str) -> bool:
    return _SESSION.fullmatch(session) is not None


def unnamed_journal() -> str:
    """Where this process notes what it sees of a session whose id it was not told (`--continue`, `--fork`)."""
    return f"_run-{os.getpid()}"


def session_files(session: str, env: Env) -> list[SessionFile]:
    return [SessionFile(MAIN, path) for path in existing_files(session or unnamed_journal(), env)]


def restore_path(name: str, session: str, env: Env) -> Path:
    path = journal_path(session, env)
    if name != MAIN:
        raise ValueError(f"{name!r} is no file of an OpenCode session")
    return path


def existing_files(session: str, env: Env) -> list[Path]:
    if not is_session(session):
        return []
    path = journal_path(session, env)
    return [path] if path.is_file() and not path.is_symlink() and not path.parent.is_symlink() else []

"""Where a session's files are. (being written)"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.base import Env, SessionFile

MAIN = "session.jsonl"


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    return []


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    raise NotImplementedError


def existing(session: str, workspace: Path, env: Env) -> list[Path]:
    return []


def tidy(session: str, workspace: Path, env: Env) -> None:
    return None

"""Where a session's files are and where restored ones belong.

Names in the log: `session.jsonl`, `todos.json`, `subagents/<file>`. Nothing else of `~/.qwen` is ever named, so no
credential can be. Links are not followed.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import islice
from pathlib import Path

from wal_agent.agents.base import Env, SessionFile
from wal_agent.agents.qwen.paths import project_folder, runtime_folder
from wal_agent.agents.session_files import records
from wal_agent.agents.walk import name_parts, walk_files

MAIN = "session.jsonl"
TODOS = "todos.json"
SUBAGENTS = "subagents"
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MOST = 10_000  # files of subagents
_HEAD = 1 << 16


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    if not _SESSION.fullmatch(session) or not _is_file(main := _main(session, workspace, env)):
        return []
    found = [SessionFile(MAIN, main)]
    if _is_file(todos := _todos(session, env)):
        found.append(SessionFile(TODOS, todos))
    base = _subagents(session, workspace, env)
    inside = sorted(islice(walk_files(base), _MOST))
    return found + [SessionFile(f"{SUBAGENTS}/{p.relative_to(base).as_posix()}", p) for p in inside]


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    if name == MAIN:
        return _main(session, workspace, env)
    if name == TODOS:
        return _todos(session, env)
    kind, *parts = name_parts(name)
    if kind != SUBAGENTS or not parts:
        raise ValueError(f"{name!r} is no file of a Qwen Code session")
    return _subagents(session, workspace, env).joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    found = _SESSION.fullmatch(session) and os.path.lexists(main := _main(session, workspace, env))
    return [main] if found else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Qwen Code resumes a file whose first record was made in this folder; one without a record is no session."""
    if not _SESSION.fullmatch(session) or not _is_file(main := _main(session, workspace, env)):
        return False
    for record, _ in records(_head(main)):
        if record is not None:
            return record.get("cwd") == str(workspace)
    return False


def _main(session: str, workspace: Path, env: Env) -> Path:
    return project_folder(env, workspace) / "chats" / f"{session}.jsonl"


def _todos(session: str, env: Env) -> Path:
    return runtime_folder(env) / "todos" / f"{session}.json"


def _subagents(session: str, workspace: Path, env: Env) -> Path:
    return project_folder(env, workspace) / "subagents" / session


def _head(path: Path) -> bytes:
    """The first line that is not blank, and what a read brings with it."""
    data = b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return data
    with os.fdopen(fd, "rb", buffering=0) as f:
        while b"\n" not in data.lstrip() and (piece := f.read(_HEAD)):
            data += piece
    return data


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False

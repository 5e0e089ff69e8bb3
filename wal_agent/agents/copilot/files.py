"""Where a session's files are and where restored ones belong.

Names in the log are paths under the session's folder, `~/.copilot/session-state/<id>`; nothing else of `~/.copilot` is
ever named, so no credential can be. Links are not followed. Left out: locks, `session.db` (a live database) and
`rewind-file-snapshots` (by absolute paths of the lost machine, which `/rewind` would write to).
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from wal_agent.agents.base import Env, SessionFile
from wal_agent.agents.copilot.home import SESSION, copilot_home
from wal_agent.agents.session_files import decode_json
from wal_agent.agents.walk import name_parts, walk_files

MAIN = "events.jsonl"
_SINGLE = ("workspace.yaml", "plan.md")
_FOLDERS = ("checkpoints", "files", "research")
_MAX_FILES = 10_000  # files of one folder
_HEAD = 1 << 20  # bytes of a first line


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    base = _base(session, env)
    if base is None or not _plain(base / MAIN):
        return []
    return [SessionFile(path.relative_to(base).as_posix(), path) for path in [base / MAIN, *_beside(base)]]


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    base = _base(session, env)
    if base is None:
        raise ValueError(f"{session!r} is no session id")
    parts = name_parts(name)
    if name not in (MAIN, *_SINGLE) and (parts[0] not in _FOLDERS or len(parts) < 2):
        raise ValueError(f"{name!r} is no file of a Copilot session")
    return base.joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    base = _base(session, env)
    return [path for path in [base / MAIN, *_beside(base)] if _plain(path)] if base is not None else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Copilot does not load a session whose first line is not its head."""
    base = _base(session, env)
    if base is None or not _plain(base / MAIN):
        return False
    try:
        with (base / MAIN).open("rb") as file:
            head = decode_json(file.readline(_HEAD))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(head, dict) and head.get("type") == "session.start"


def _base(session: str, env: Env) -> Path | None:
    """The session's folder, if this can be a session's id; never one behind a link."""
    if not SESSION.fullmatch(session):
        return None
    base = copilot_home(env) / "session-state" / session
    return None if base.is_symlink() else base


def _beside(base: Path) -> list[Path]:
    found = [base / name for name in _SINGLE if _plain(base / name)]
    for folder in _FOLDERS:
        found += sorted(islice(walk_files(base / folder), _MAX_FILES))
    return found


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()

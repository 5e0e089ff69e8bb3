"""Where a session's files are and where restored ones belong.

Names in the log: `session.jsonl`, `subagents/...`, `tool-results/...`, `tasks/...`, `file-history/...`. Nothing else of
Claude's folder is ever named, so no credential can be. Links are not followed.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from wal_agent.agents.base import Env, SessionFile
from wal_agent.agents.claude.cli import SESSION
from wal_agent.agents.claude.inject import claude_home
from wal_agent.agents.claude.session import has_messages
from wal_agent.agents.walk import name_parts, walk_files

MAIN = "session.jsonl"
OTHERS = ("subagents/any.jsonl",)  # a name in the folder of the session's other files with calls
_BESIDE = ("subagents", "tool-results")  # in a folder of the session's name beside its main file
_OWN = ("tasks", "file-history")  # in a folder of the session's name in theirs
_LONGEST = 200  # characters of a folder's name for a project, before the hash
_MOST = 10_000  # files of one kind


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    found = [SessionFile(MAIN, path) for path in existing_files(session, workspace, env)]
    if not found:
        return []
    for kind in (*_BESIDE, *_OWN):
        base = _base(kind, session, workspace, env)
        if base.parent.is_symlink() and kind in _BESIDE:  # `walk` follows none below
            continue
        files = (p for p in walk_files(base) if p.name != ".lock")
        found += [SessionFile(f"{kind}/{p.relative_to(base).as_posix()}", p) for p in sorted(islice(files, _MOST))]
    return found


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    if name == MAIN:
        return project_folder(workspace, env) / f"{session}.jsonl"
    kind, *parts = name_parts(name)
    if kind not in (*_BESIDE, *_OWN) or not parts:
        raise ValueError(f"{name!r} is no file of a Claude Code session")
    return _base(kind, session, workspace, env).joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    """The session's main file. Claude looks for it under the workspace's name only."""
    if not SESSION.fullmatch(session):
        return []
    path = project_folder(workspace, env) / f"{session}.jsonl"
    return [path] if path.is_file() and not path.is_symlink() else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Claude refuses both to resume a session without a message and to start another of its id."""
    return any(has_messages(path) for path in existing_files(session, workspace, env))


def project_folder(workspace: Path, env: Env) -> Path:
    """The folder of a workspace's sessions."""
    return claude_home(env) / "projects" / project_slug(str(workspace))


def project_slug(path: str) -> str:
    """Claude's own rule, so that a restore meets its lookup: JavaScript's, which counts a character beyond U+FFFF as
    two. Not to be inverted: /a/b and /a-b give the same."""
    units = _units(path)
    name = "".join(chr(u) if u < 128 and chr(u).isalnum() else "-" for u in units)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{_hash(units)}"


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]


def _hash(units: list[int]) -> str:
    value = 0
    for unit in units:
        value = ((value << 5) - value + unit) & 0xFFFFFFFF
    value = abs(value - (1 << 32) if value >= 1 << 31 else value)
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def _base(kind: str, session: str, workspace: Path, env: Env) -> Path:
    if kind in _BESIDE:
        return project_folder(workspace, env) / session / kind
    return claude_home(env) / kind / session

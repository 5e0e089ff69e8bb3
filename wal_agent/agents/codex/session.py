"""Where a session's files are and where restored ones belong.

Names in the log: `rollout.jsonl`, and `threads/<rollout's name>` for threads that belong to it: its subagents, and
those that it was forked from, whose files hold the beginning of it. Nothing else of Codex's folder is ever named: no
credential, and none of its databases, which only repeat the files and hold their absolute paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

import psutil

from wal_agent.agents.base import Env, SessionFile
from wal_agent.agents.codex.home import (
    ROLLOUT,
    codex_home,
    default_path,
    is_session,
    rollout_path,
    rollouts_of,
    rollouts_since,
    thread_time,
)
from wal_agent.agents.codex.hooks import MARKER
from wal_agent.agents.codex.seen import proves_turn
from wal_agent.agents.codex.statedb import indexed_path
from wal_agent.agents.walk import largest_file

MAIN = "rollout.jsonl"
THREADS = "threads"
_HEAD = 4096  # bytes of a file that name its family
_FIRST = 1 << 20  # bytes that hold the beginning of a first turn
_MOST = 1000
_FAMILY = re.compile(rb'"(session_id|forked_from_id)":"([0-9a-f-]{36})"')


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    if not is_session(session):
        return []
    sessions = codex_home(env) / "sessions"
    main = _main(session, sessions) or _unannounced(sessions, env)
    if main is None:
        return []
    return [SessionFile(MAIN, main), *(SessionFile(f"{THREADS}/{p.name}", p) for p in _family(main, sessions))]


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not is_session(session):
        raise ValueError(f"{session!r} is no session id")
    sessions = codex_home(env) / "sessions"
    if name == MAIN:
        return _home_of(session, sessions, env)
    kind, _, rest = name.partition("/")
    place = rollout_path(rest)
    if kind != THREADS or place is None or rest.endswith(f"-{session}.jsonl"):
        raise ValueError(f"{name!r} is no file of a Codex session")
    return sessions / place


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    return rollouts_of(codex_home(env) / "sessions", session) if is_session(session) else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """A file without a turn is none to Codex."""
    main = _main(session, codex_home(env) / "sessions") if is_session(session) else None
    return main is not None and b'"response_item"' in _begin(main, _FIRST)


def _main(session: str, sessions: Path) -> Path | None:
    return largest_file(rollouts_of(sessions, session))


def _home_of(session: str, sessions: Path, env: Env) -> Path:
    """Where the index of this machine looks for it, if that is a place for it; a file elsewhere it would not find."""
    for path in (_main(session, sessions), indexed_path(session, env)):
        if path is not None and path.name.endswith(f"-{session}.jsonl"):
            place = rollout_path(path.name)
            if place is not None and path == sessions / place:
                return path
    return sessions / default_path(session)


def _family(main: Path, sessions: Path) -> list[Path]:
    name = ROLLOUT.fullmatch(main.name)
    if name is None:
        return []
    root = name[4]
    found = (
        {p for p in rollouts_since(sessions, thread_time(root)) if p != main and _about(p).get("session_id") == root}
        if thread_time(root)
        else set()
    )
    for member in [main, *found]:
        found.update(_ancestors(member, sessions))
    return sorted(islice((p for p in sorted(found) if p != main), _MOST))


def _ancestors(path: Path, sessions: Path) -> Iterator[Path]:
    """A fork's file begins where it left the other one."""
    for _ in range(20):
        before = _about(path).get("forked_from_id", "")
        files = rollouts_of(sessions, before) if is_session(before) else []
        if not files:
            return
        path = files[0]
        yield path


def _about(path: Path) -> dict[str, str]:
    try:
        return _named(str(path), path.stat().st_ino)
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=1 << 14)
def _named(path: str, inode: int) -> dict[str, str]:
    """What a file's first line says of its family; it is never written again. ValueError: it is not there yet."""
    head = _begin(Path(path), _HEAD)
    if len(head) < _HEAD and b"\n" not in head:
        raise ValueError("not yet written")
    named: dict[str, str] = {}
    for key, value in _FAMILY.findall(head.partition(b"\n")[0]):
        named.setdefault(key.decode(), value.decode())
    return named


def _unannounced(sessions: Path, env: Env) -> Path | None:
    """The session of a Codex that has begun a turn without a word to us: its hooks are off, and only its open files
    (Linux) tell which session is its own. Before that it is not the session's: an id of ours is in its place."""
    try:
        started = psutil.Process(int((Path(env[MARKER]) / "agent.pid").read_text()))
        family = [started, *started.children(recursive=True)]  # a launcher may stand before Codex
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    for path in [link for process in family for link in _open_files(process.pid)]:
        name = ROLLOUT.fullmatch(path.name)
        if name is None or not path.is_relative_to(sessions.resolve()) or _about(path).get("session_id") != name[4]:
            continue
        if proves_turn(_begin(path, _FIRST)):
            return path
    return None


def _open_files(pid: int) -> list[Path]:
    found: list[Path] = []
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(file.readlink())
    return found


def _begin(path: Path, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as f:
        try:
            return f.read(size)
        except OSError:
            return b""

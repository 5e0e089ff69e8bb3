"""Codex's own folder, and the session files in it: `sessions/YYYY/MM/DD/rollout-<time>-<thread id>.jsonl`.

Files that Codex compressed (`.jsonl.zst`; a feature that is off by default) are not looked for.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.walk import walk_files

ROLLOUT = re.compile(
    r"rollout-(\d{4})-(\d\d)-(\d\d)T\d\d-\d\d-\d\d-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl"
)
_SESSION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DAY = 86400


def codex_home(env: Env) -> Path:
    """Codex's state folder, as it finds it itself."""
    return Path(env.get("CODEX_HOME") or Path(env.get("HOME") or Path.home()) / ".codex")


def is_session(id: str) -> bool:
    return _SESSION.fullmatch(id) is not None


def thread_time(id: str) -> float:
    """When a thread was made, seconds: its id says so (UUID 7). 0 for another kind of id."""
    found = uuid.UUID(id)
    return (found.int >> 80) / 1000 if found.version == 7 else 0.0


def rollout_path(name: str) -> Path | None:
    """Where a rollout's name belongs under `sessions`; None: it is no rollout's."""
    found = ROLLOUT.fullmatch(name)
    return None if found is None else Path(found[1], found[2], found[3], name)


def default_path(id: str) -> Path:
    """Where Codex would have made it, by the clock of this machine."""
    at = time.localtime(thread_time(id)) if thread_time(id) else time.gmtime(0)
    return Path(time.strftime("%Y/%m/%d", at), time.strftime(f"rollout-%Y-%m-%dT%H-%M-%S-{id}.jsonl", at))


def rollouts_of(sessions: Path, id: str) -> list[Path]:
    """The files of one thread. They are looked for where they are made; elsewhere only when none is there."""
    tail = f"-{id}.jsonl"
    around = (
        {time.strftime("%Y/%m/%d", time.localtime(thread_time(id) + n * _DAY)) for n in (-1, 0, 1)}
        if thread_time(id)
        else set()
    )
    days = {*around, str(default_path(id).parent)}
    near = [p for day in sorted(days) if _real(sessions, day) for p in walk_files(sessions / day, deep=1)]
    found = [p for p in near if p.name.endswith(tail) and ROLLOUT.fullmatch(p.name)]
    if found or not thread_time(id):
        return found
    return sorted(p for p in walk_files(sessions, deep=4) if p.name.endswith(tail) and ROLLOUT.fullmatch(p.name))


def rollouts_since(sessions: Path, seconds: float) -> Iterator[Path]:
    """Rollouts of threads that were made then or later."""
    first = time.strftime("%Y/%m/%d", time.localtime(seconds - _DAY))
    for year in _folders(sessions):
        for month in _folders(year):
            for day in _folders(month):
                if f"{year.name}/{month.name}/{day.name}" >= first:
                    for path in walk_files(day, deep=1):
                        name = ROLLOUT.fullmatch(path.name)
                        if name and thread_time(name[4]) >= seconds:
                            yield path


def _folders(base: Path) -> list[Path]:
    try:
        return sorted(p for p in base.iterdir() if p.name.isdigit() and p.is_dir() and not p.is_symlink())
    except OSError:
        return []


def _real(sessions: Path, day: str) -> bool:
    """No link on the way."""
    at = sessions
    for part in day.split("/"):
        at /= part
        if at.is_symlink():
            return False
    return at.is_dir()

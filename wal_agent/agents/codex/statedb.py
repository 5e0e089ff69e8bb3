"""Codex's index of threads: it names each one's file by an absolute path, and a resume goes by it.

Where it names another path than the restored file's, Codex finds no session, or goes on in another file (facts, A1):
a copied home, a file that was moved. The index is Codex's own and the user's: it is only read.
"""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.codex.home import codex_home, rollouts_of
from wal_agent.agents.codex.hooks import MARKER

VARIABLE = "CODEX_SQLITE_HOME"


def indexed_path(id: str, env: Env) -> Path | None:
    """The file that the index of this machine names for a thread."""
    home = _home(env)
    for base in sorted(home.glob("state_*.sqlite"), reverse=True):
        try:
            with closing(sqlite3.connect(f"{base.absolute().as_uri()}?mode=ro", uri=True, timeout=2)) as db:
                row = db.execute("select rollout_path from threads where id = ?", (id,)).fetchone()
        except (sqlite3.Error, ValueError):
            continue
        if row and isinstance(row[0], str):
            return Path(row[0])
    return None


def private_index(id: str, env: Env) -> dict[str, str]:
    """For a resume whose file is not where the index says: an index of this run's own. It is made anew from the file,
    and goes with the run; the user's keeps what it says."""
    known = indexed_path(id, env)
    if known is None or not (run := env.get(MARKER)):
        return {}
    here = rollouts_of(codex_home(env) / "sessions", id)
    if any(_same(known, path) for path in here):
        return {}
    own = Path(run) / "codex-index"
    own.mkdir(mode=0o700, exist_ok=True)
    return {VARIABLE: str(own)}


def _home(env: Env) -> Path:
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    try:
        named = tomllib.loads((codex_home(env) / "config.toml").read_text()).get("sqlite_home")
    except (OSError, ValueError, RecursionError):
        named = None
    return Path(named) if isinstance(named, str) and named else codex_home(env)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False

"""Brings our journal of a session up to what OpenCode's database has. Cheap where nothing changed."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.opencode import database as store
from wal_agent.agents.opencode import place
from wal_agent.agents.opencode.rows import Key, journal_lines, load_rows, row_digest
from wal_agent.agents.session_files import Json
from wal_agent.plainfile import read_plain

Signature = tuple[tuple[int, int, int], ...]
FRESH = 100_000_000  # ns; a file that was written so lately may be written again without a sign of it
SYNCED = "synced"  # beside the journal: its own sign when it was last brought up to the database


@dataclass
class JournalState:
    """What a journal holds, and the signs of both files when that was so. `began`: ms, when this process first looked
    for a session that was not there."""

    database: Signature = ()
    journal: Signature = ()
    rows: dict[Key, tuple[int, bytes]] = field(default_factory=dict)
    began: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


_lock = threading.Lock()  # hooks' threads and the autosave's
_states: dict[tuple[Path, Path], JournalState] = {}


def update_journal(session: str, workspace: Path, env: Env) -> None:
    if session and not place.is_session(session):
        return
    database, path = place.database_path(env), place.journal_path(session or place.unnamed_journal(), env)
    with _lock, suppress(sqlite3.Error, OSError):
        known = _states.setdefault((database, path), JournalState())
        now = file_signature(database, Path(f"{database}-wal"))
        if not any(now) or (known.database == now and known.journal == file_signature(path)):
            return
        if _replaced(path):
            return  # by a restore that has not been adopted yet: the database knows less of it, or something else
        _bring(session, workspace, database, path, known)
        known.database = () if any(time.time_ns() - at[2] < FRESH for at in now if at) else now
        known.journal = file_signature(path)
        mark_synced(path)


def is_synced(session: str, env: Env) -> bool:
    """Is the journal as the database was when it was last read? Else it was put there by a restore."""
    path = place.journal_path(session, env)
    return read_plain(path.parent / SYNCED) == repr(file_signature(path)).encode()


def mark_synced(path: Path) -> None:
    """The database has what the journal has."""
    if any(now := file_signature(path)):
        (path.parent / SYNCED).write_text(repr(now))


def _replaced(path: Path) -> bool:
    """Is it another file than the one that was brought up to the database? Our own lines leave it the same."""
    said = re.match(rb"\(\((\d+), ", read_plain(path.parent / SYNCED) or b"")
    here = file_signature(path)[0]
    return said is not None and bool(here) and int(said[1]) != here[0]


def file_signature(*paths: Path) -> Signature:
    """By which a change of files is seen; empty tuples for those that are not there."""
    found = []
    for path in paths:
        try:
            stat = path.stat()
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            found.append(())  # type: ignore[arg-type]
    return tuple(found)


def _bring(session: str, workspace: Path, database: Path, path: Path, known: JournalState) -> None:
    if known.journal != file_signature(path) or not known.rows:
        known.rows = {key: (-1, row_digest(row)) for key, row in load_rows(read_plain(path) or b"").found.items()}
    with store.read_database(database) as db:
        found = dict(known.rows)  # known is what is in the file: a row that cannot be written is new again
        there = store.row_stamps(db, session)
        if ("session", session) not in there:
            _look_for_a_turn(db, session, workspace, path, known)
            return
        new: list[Json] = []
        for key, updated in there.items():
            before = found.get(key)
            if before is not None and before[0] == updated and updated < _settled():
                continue
            record = store.read_row(db, key)
            if record is None:
                continue
            now = row_digest(record)
            if before is None or before[1] != now:
                new.append(record)
            found[key] = (updated, now)
    for kind, id in [key for key in found if key not in there]:
        del found[kind, id]
        new.append({"type": kind, "id": id, "gone": True})
    _append(path, new)
    known.rows = found


def _settled() -> int:
    """ms; rows that were last changed before this cannot have been changed again in the same millisecond."""
    return time.time_ns() // 1_000_000 - 1000


def _look_for_a_turn(db: sqlite3.Connection, session: str, workspace: Path, path: Path, known: JournalState) -> None:
    """Whose id nobody knows yet: a turn without hooks shows as another new session here."""
    if session.startswith("ses_") or known.rows:
        return
    turns = store.sessions_begun_since if session else store.sessions_prompted_since
    for found in turns(db, str(workspace), known.began)[:1]:
        known.rows["turn", found] = (0, b"")
        _append(path, [{"type": "turn", "id": found}])


def _append(path: Path, new: list[Json]) -> None:
    if not new:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + journal_lines(new)
        if file.write(data) != len(data):
            raise OSError("the disk is full")

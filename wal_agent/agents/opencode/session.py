"""OpenCode's session: its folders, the journal that wal-agent keeps of it, and what appended lines report.

OpenCode keeps sessions in one database. The journal of a session is brought up to what the database has before each
capture; that is cheap where nothing changed.

Locks: OpenCode holds one while it installs its plugin package in the background, and leaves it there when it exits
meanwhile, which is nearly always. It believes in such a lock for 60 s; and with a plugin, as in wal-agent's runs, its
start waits for it. So the locks of dead processes are removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from wal_agent.agents.base import Env, SeenCall, SessionFile
from wal_agent.agents.opencode import database as store
from wal_agent.agents.opencode.database import Key, Rows, journal_lines, load_rows, row_digest, row_key, row_order
from wal_agent.agents.opencode.edition import Edition
from wal_agent.agents.session_files import Json, as_object, as_text, encode_json, is_file, records
from wal_agent.paths import user_home
from wal_agent.safefs import Signature, file_signature, map_file, read_plain

MAIN = "session.jsonl"
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")

YOUNG = 5.0  # seconds in which a new lock may still get the file that names its owner
FRESH = 100_000_000  # ns; a file that was written this recently may be written again with the same signature
SYNCED = "synced"  # beside the journal: its own signature when it was last brought up to the database

ABORTED = "Tool execution aborted"  # OpenCode's message for a call that a user interrupted
# The whole message: a tool's own error may begin with a part of it.
_REFUSED = re.compile(
    r"The user rejected permission to use this specific tool call\.?(?: with the following feedback: .*)?"
    r"|The user has specified a rule which prevents you from using this specific tool call\..*",
    re.DOTALL,
)


def _xdg(env: Env, variable: str, otherwise: str) -> Path:
    base = Path(env.get(variable) or "")
    return base if base.is_absolute() else user_home(env) / otherwise


def config_home(edition: Edition, env: Env) -> Path:
    return _xdg(env, "XDG_CONFIG_HOME", ".config") / edition.name


def state_home(edition: Edition, env: Env) -> Path:
    return _xdg(env, "XDG_STATE_HOME", ".local/state") / edition.name


def database_path(edition: Edition, env: Env) -> Path:
    data = _xdg(env, "XDG_DATA_HOME", ".local/share") / edition.name
    return data / (env.get(edition.variable("DB")) or f"{edition.name}.db")


def folder(edition: Edition, env: Env) -> Path:
    """Return the folder of the journals, not OpenCode's: no file of its own is ever replaced."""
    return _xdg(env, "XDG_STATE_HOME", ".local/state") / "wal-agent" / edition.name


def journal_path(edition: Edition, session: str, env: Env) -> Path:
    """Return a session's journal. ValueError for what is no session's id."""
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    return folder(edition, env) / session / MAIN


def is_session(session: str) -> bool:
    return _SESSION.fullmatch(session) is not None


def unnamed_journal() -> str:
    """Return the name of this process's journal of a session whose id is not known yet (`--continue`, `--fork`)."""
    return f"_run-{os.getpid()}"


def session_files(edition: Edition, session: str, workspace: Path, env: Env) -> list[SessionFile]:
    return [SessionFile(MAIN, path) for path in existing_files(edition, session or unnamed_journal(), workspace, env)]


def restore_path(edition: Edition, name: str, session: str, workspace: Path, env: Env) -> Path:
    path = journal_path(edition, session, env)
    if name != MAIN:
        raise ValueError(f"{name!r} is no file of a session of {edition.title}'s")
    return path


def existing_files(edition: Edition, session: str, workspace: Path, env: Env) -> list[Path]:
    if not is_session(session):
        return []
    path = journal_path(edition, session, env)
    return [path] if is_file(path) and not path.parent.is_symlink() else []


def clear_dead_locks(edition: Edition, env: Env) -> None:
    """Remove those whose holder is dead. Never fails."""
    with suppress(OSError):
        for lock in list((state_home(edition, env) / "locks").glob("*.lock")):
            if _dead(lock):
                _remove(lock)


def _remove(lock: Path) -> None:
    """Rename it first, so that a new holder's lock is not taken for the dead one's."""
    grave = lock.with_name(f"{lock.name}.{uuid.uuid4().hex}")
    with suppress(OSError):
        lock.rename(grave)
        if _dead(grave):
            shutil.rmtree(grave, ignore_errors=True)
        else:
            grave.rename(lock)


def _dead(lock: Path) -> bool:
    """Return whether no living process of this machine holds it."""
    data = read_plain(lock / "meta.json", 4096)
    if data is None:
        return not (lock / "meta.json").exists() and time.time() - lock.stat().st_mtime > YOUNG
    try:
        meta = json.loads(data)
        host, pid = meta["hostname"], int(meta["pid"])
    except (ValueError, LookupError, TypeError):
        return False
    return host == socket.gethostname() and 0 < pid < 1 << 31 and not psutil.pid_exists(pid)


class JournalState(msgspec.Struct):
    """The content of a journal, and the signatures of both files at that time. `began`: ms, when this process first
    looked for a session that was not there."""

    database: Signature = ()
    journal: Signature = ()
    rows: dict[Key, tuple[int, bytes]] = msgspec.field(default_factory=dict)
    began: int = msgspec.field(default_factory=lambda: time.time_ns() // 1_000_000)


_lock = threading.Lock()  # hooks' threads and the autosave's
_states: dict[tuple[Path, Path], JournalState] = {}


def update_journal(edition: Edition, session: str, workspace: Path, env: Env) -> None:
    if session and not is_session(session):
        return
    database, path = database_path(edition, env), journal_path(edition, session or unnamed_journal(), env)
    with _lock, suppress(sqlite3.Error, OSError):
        known = _states.setdefault((database, path), JournalState())
        now = file_signature(database, Path(f"{database}-wal"))
        if not any(now) or (known.database == now and known.journal == file_signature(path)):
            return
        if _replaced(path):
            return  # by a restore that is not imported yet: the database has less of it, or something else
        _bring(session, workspace, database, path, known)
        known.database = () if any(time.time_ns() - at[2] < FRESH for at in now if at) else now
        known.journal = file_signature(path)
        mark_synced(path)


def is_synced(edition: Edition, session: str, env: Env) -> bool:
    """Return whether the journal is as the database was when it was last read; else a restore put it there."""
    path = journal_path(edition, session, env)
    return read_plain(path.parent / SYNCED) == repr(file_signature(path)).encode()


def mark_synced(path: Path) -> None:
    """Note that the database has what the journal has."""
    if any(now := file_signature(path)):
        (path.parent / SYNCED).write_text(repr(now))


def _replaced(path: Path) -> bool:
    """Return whether it is another file than the one that was brought up to the database. Appended lines keep it."""
    marked = re.match(rb"\(\((\d+), ", read_plain(path.parent / SYNCED) or b"")
    here = file_signature(path)[0]
    return marked is not None and bool(here) and int(marked[1]) != here[0]


def _bring(session: str, workspace: Path, database: Path, path: Path, known: JournalState) -> None:
    if known.journal != file_signature(path) or not known.rows:
        known.rows = {key: (-1, row_digest(row.value)) for key, row in _read(path).found.items()}
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


def _read(path: Path) -> Rows:
    """Read a journal, which only grows, and empty where there is none."""
    return load_rows(map_file(path)) if is_file(path) else Rows()


def _settled() -> int:
    """Return a time in ms: rows that changed last before it cannot have changed again in the same millisecond."""
    return time.time_ns() // 1_000_000 - 1000


def _look_for_a_turn(db: sqlite3.Connection, session: str, workspace: Path, path: Path, known: JournalState) -> None:
    """Look for a turn of a session whose id is not known yet: without hooks it shows as another new session here."""
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


def seen_calls(appended: bytes) -> list[SeenCall]:
    """Return the calls. A row is written again with each change: the last one counts."""
    found: dict[str, SeenCall] = {}
    for record, _ in records(appended):
        if record is None or (key := row_key(record)) is None or key[0] != "part" or record.get("gone"):
            continue
        call = _call(record)
        if call is not None:
            found[call.id] = call
    return list(found.values())


def last_answer(main: bytes) -> str:
    """Return the text of the newest message of the model's that has one: a row of its own, beside the message's."""
    rows = load_rows(main)
    for message in sorted(rows.of("message"), key=row_order, reverse=True):
        if message.role == "assistant":
            parts = sorted((p for p in rows.of("part") if p.message == message.id), key=lambda p: p.id)
            texts = [as_text(p.data.get("text")) for p in parts if p.data.get("type") == "text"]
            if said := [text for text in texts if text.strip()]:
                return "\n\n".join(said)
    return ""


def _call(record: Json) -> SeenCall | None:
    data = record["data"]
    state = data.get("state") or {}
    metadata = data.get("metadata")
    elsewhere = isinstance(metadata, dict) and metadata.get("providerExecuted") is True
    if data.get("type") != "tool" or record.get("by") == "user" or elsewhere or _compacted(state):
        return None
    status: Literal["done", "failed", "refused", "cancelled"]
    match state.get("status"):
        case "completed":
            status = "done"
        case "error" if as_text(state.get("error")) == ABORTED:
            status = "cancelled"
        case "error" if _REFUSED.fullmatch(as_text(state.get("error"))):
            status = "refused"
        case "error":
            status = "failed"
        case _:
            return None
    return SeenCall(
        as_text(data.get("tool")),
        encode_json(as_object(state.get("input"))),
        status,
        record["id"],
        as_text(data.get("callID")),
    )


def _compacted(state: Json) -> bool:
    """Return whether it is an old call, of any run, whose row only changed because its output is left out from now
    on."""
    time = state.get("time")
    return isinstance(time, dict) and bool(time.get("compacted"))


def proves_turn(appended: bytes) -> bool:
    """A user's message is written before the model is called; `turn`: of a session whose id no hook has reported."""
    for record, _ in records(appended):
        if record is None:
            continue
        if record.get("type") == "turn":
            return True
        key = row_key(record)
        if key is not None and key[0] == "message" and not record.get("gone") and record["data"].get("role") == "user":
            return True
    return False

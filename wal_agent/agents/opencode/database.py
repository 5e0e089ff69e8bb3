"""OpenCode's database and the rows of a session in it, as records and as the lines of the journal.

The journal is only appended to; the last line for an id counts, and `gone` says that its row was deleted. It holds the
session, the sessions of its subagents, their messages and parts (calls are parts), and the list of things to do.

The database is read from outside while OpenCode writes it: by SQLite itself, never as files. (Its file is nearly empty,
all is in the write-ahead log beside it; and whoever copies it from inside OpenCode's process drops the locks that keep
it whole.)
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from sys import intern
from typing import Any
from urllib.parse import quote

import msgspec

from wal_agent.agents.session_files import (
    FileLines,
    Json,
    Line,
    LineRecord,
    as_object,
    as_text,
    decode_json,
    encode_json,
    records,
)
from wal_agent.safefs import Buffer, Pieces

Key = tuple[str, str]  # kind, id
COLUMNS = {  # of each table, beside the id; `data` and `row` hold the rest
    "message": ("session", "created", "data"),
    "part": ("session", "message", "created", "data"),
    "todo": ("session", "row"),
    "session": ("row",),
}

BY_USER = "The following tool was executed by the user"  # OpenCode's words in a prompt that was a shell command
_TREE = """WITH RECURSIVE tree(id) AS (SELECT id FROM session WHERE id = ?
    UNION SELECT s.id FROM session s JOIN tree ON s.parent_id = tree.id) """

_NEEDED = {
    "session": "id parent_id project_id directory path time_created time_updated",
    "message": "id session_id time_created time_updated data",
    "part": "id message_id session_id time_created time_updated data",
    "todo": "session_id position content status priority time_updated",
}


class Row(LineRecord):
    """A row of the journal, and what it is looked up by. `session`: of a session its own id. `role`: of a message.
    `call` and `status`: of a part that is a call; None and "" of any other. `by_user`: a person's own shell command."""

    __slots__ = ("by_user", "call", "created", "id", "kind", "message", "role", "session", "status")

    def __init__(self, value: Json, line: Line | None = None) -> None:
        super().__init__(value, line)
        self.kind, self.id = str(value["type"]), str(value["id"])
        self.created = int(value.get("created", 0))
        self.session = intern(value.get("session", self.id))
        self.message = intern(value.get("message", ""))
        data = as_object(value.get("data"))
        self.role = intern(as_text(data.get("role")))
        state = data.get("state") if data.get("type") == "tool" else None
        self.call = as_text(data.get("callID")) if isinstance(state, dict) else None
        self.status = intern(as_text(as_object(state).get("status")))
        self.by_user = value.get("by") == "user"

    @property
    def key(self) -> Key:
        return self.kind, self.id

    @property
    def data(self) -> Json:
        """Of a message or a part."""
        return as_object(self.value["data"])

    @property
    def row(self) -> Json:
        """Of a session or a to-do."""
        return as_object(self.value["row"])


class Rows(msgspec.Struct):
    """What a journal says. `junk`: lines that wal-agent did not write."""

    found: dict[Key, Row] = msgspec.field(default_factory=dict)
    junk: int = 0

    def of(self, kind: str) -> list[Row]:
        return [r for (k, _), r in self.found.items() if k == kind]

    def sessions(self, root: str) -> list[Row]:
        """The root first, then children behind their parents."""
        rows = {r.id: r for r in self.of("session")}
        children: dict[str, list[Row]] = {}
        for row in rows.values():
            if row.id != root and isinstance(parent := row.row.get("parent_id"), str):
                children.setdefault(parent, []).append(row)
        out = [rows[root]] if root in rows else []
        for one in out:
            out += children.pop(one.id, ())
        return out

    def messages(self, session: str) -> list[Row]:
        return sorted((r for r in self.of("message") if r.session == session), key=row_order)

    def parts(self) -> dict[str, list[Row]]:
        """By message, in order."""
        out: dict[str, list[Row]] = {}
        for part in self.of("part"):
            out.setdefault(part.message, []).append(part)
        return {message: sorted(parts, key=lambda p: p.id) for message, parts in out.items()}

    def calls(self) -> list[Row]:
        """The parts that are calls."""
        return sorted((p for p in self.of("part") if p.call is not None), key=row_order)

    def add(self, record: Json) -> Row:
        row = self.found[record["type"], record["id"]] = Row(record)
        return row


def row_order(row: Row) -> tuple[int, str]:
    return row.created, row.id


def row_key(record: Json) -> Key | None:
    """None for a line that is not one of ours, in whole."""
    kind, id = record.get("type"), record.get("id")
    if not isinstance(id, str) or not id or not isinstance(kind, str) or kind not in COLUMNS:
        return None
    return (kind, id) if record.get("gone") is True or _sane(kind, record) else None


def _sane(kind: str, record: Json) -> bool:
    for name in COLUMNS[kind]:
        value = record.get(name)
        if name in ("data", "row"):
            if not isinstance(value, dict):
                return False
        elif name == "created":
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
                return False
        elif not isinstance(value, str):
            return False
    state = record["data"].get("state") if kind == "part" else None
    return state is None or isinstance(state, dict)


def load_rows(data: Buffer) -> Rows:
    rows, size = Rows(), 0
    for record, line in records(data):
        key = row_key(record) if record is not None else None
        if record is None or key is None:
            rows.junk += record is None or record.get("type") != "turn"
        elif record.get("gone") is True:
            rows.found.pop(key, None)
        else:
            rows.found[key] = row = Row(record, line)
            size = row.shelve(size)
    return rows


def row_pieces(rows: Rows) -> Pieces:
    """Each record once, in an order that does not depend on how they were read."""
    todos = sorted(rows.of("todo"), key=lambda r: r.id)
    sessions = sorted(rows.of("session"), key=lambda r: r.id)
    messages = sorted(rows.of("message"), key=row_order)
    parts = sorted(rows.of("part"), key=lambda r: (r.message, r.id))
    return FileLines([*sessions, *messages, *parts, *todos])


def journal_lines(found: Iterable[Json]) -> bytes:
    return b"".join(encode_json(record) + b"\n" for record in found)


def row_digest(record: Json) -> bytes:
    """Of what counts: OpenCode touches a session's time whenever anything happens."""
    row = record.get("row")
    if isinstance(row, dict):
        record = {**record, "row": {k: v for k, v in row.items() if k != "time_updated"}}
    record = {**record, "created": 0}
    try:
        text = msgspec.json.encode(record, order="deterministic")
    except UnicodeEncodeError:  # half a surrogate pair
        text = json.dumps(record, sort_keys=True).encode()
    return hashlib.sha256(text).digest()


@contextmanager
def read_database(path: Path, seconds: float = 0.2) -> Iterator[sqlite3.Connection]:
    """One view of it. sqlite3.Error, also where there is none, or one that OpenCode is just making: until it is in WAL
    mode a reader would be in OpenCode's way, which then ends with "database is locked"."""
    if not _in_wal_mode(path):
        raise sqlite3.OperationalError("the database is being made")
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=seconds)) as db:
        db.isolation_level = None
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        db.execute("BEGIN")
        yield db


def _in_wal_mode(path: Path) -> bool:
    """By its header: "file format read version" 2 (sqlite.org/fileformat2.html, 1.3.4)."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return False
    return len(head) == 20 and head[19] == 2


def schema_problem(path: Path) -> str:
    """What of the tables is not as we know it; "" also where there is no database yet, or a busy one."""
    try:
        with read_database(path) as db:
            for table, names in _NEEDED.items():
                columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
                if missing := sorted(set(names.split()) - columns):
                    return f"{table}: {', '.join(missing)}" if columns else table
    except sqlite3.Error:
        pass
    return ""


def belongs_to_next(path: Path) -> bool:
    """Return whether OpenCode 2 has moved its sessions to tables of its own, which is for good."""
    try:
        with read_database(path) as db:
            return bool(db.execute("PRAGMA table_info(session_v2)").fetchall())
    except sqlite3.Error:
        return False


def session_tree(db: sqlite3.Connection, session: str) -> list[str]:
    """The session and its subagents' sessions; empty where it is not known."""
    return [row[0] for row in db.execute(_TREE + "SELECT id FROM tree", (session,))]


def row_stamps(db: sqlite3.Connection, session: str) -> dict[Key, int]:
    """Every row of a session, with the time of its last change (ms)."""
    out: dict[Key, int] = {}
    for kind, id in (("session", "id"), ("message", "session_id"), ("part", "session_id")):
        asked = _TREE + f"SELECT id, time_updated FROM {kind} WHERE {id} IN (SELECT id FROM tree)"
        out |= {(kind, row[0]): row[1] for row in db.execute(asked, (session,))}
    asked = _TREE + "SELECT session_id, position, time_updated FROM todo WHERE session_id IN (SELECT id FROM tree)"
    return out | {("todo", f"{row[0]}/{row[1]}"): row[2] for row in db.execute(asked, (session,))}


def read_row(db: sqlite3.Connection, key: Key) -> Json | None:
    """One row; None where what is in it is no JSON."""
    kind, id = key
    if kind == "todo":
        session, _, position = id.rpartition("/")
        row = db.execute(
            "SELECT content, status, priority FROM todo WHERE session_id = ? AND position = ?", (session, position)
        ).fetchone()
        names = ("content", "status", "priority")
        return row and {"type": kind, "id": id, "session": session, "row": dict(zip(names, row, strict=True))}
    cursor = db.execute(f"SELECT * FROM {kind} WHERE id = ?", (id,))
    row = cursor.fetchone()
    if row is None:
        return None
    found = dict(zip((d[0] for d in cursor.description), row, strict=True))
    if kind == "session":
        return {"type": kind, "id": id, "row": {k: v for k, v in found.items() if k != "id" and v is not None}}
    try:
        data = decode_json(found["data"].encode())
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    made: Json = {"type": kind, "id": id, "session": found["session_id"], "created": found["time_created"]}
    if kind == "part":
        made["message"] = found["message_id"]
        data = without_progress(data)
        if data.get("type") == "tool" and _by_user(db, found["message_id"]):
            made["by"] = "user"
    return {**made, "data": data}


def without_progress(data: Json) -> Json:
    """A call that runs has its output so far, written again with each piece of it; a resume needs none of it."""
    state = data.get("state")
    if data.get("type") == "tool" and isinstance(state, dict) and state.get("status") in ("pending", "running"):
        return {**data, "state": {k: v for k, v in state.items() if k != "metadata"}}
    return data


def _by_user(db: sqlite3.Connection, message: str) -> bool:
    """A person's own shell command (`!` in the TUI) is written as a call, for which there is no hook."""
    asked = """SELECT 1 FROM message m JOIN part p ON p.message_id = json_extract(m.data, '$.parentID')
        WHERE m.id = ? AND json_extract(p.data, '$.text') = ? AND json_extract(p.data, '$.synthetic')"""
    return db.execute(asked, (message, BY_USER)).fetchone() is not None


def session_row(db: sqlite3.Connection, session: str) -> Mapping[str, Any] | None:
    """The session's own row."""
    cursor = db.execute("SELECT * FROM session WHERE id = ?", (session,))
    row = cursor.fetchone()
    return row and dict(zip((d[0] for d in cursor.description), row, strict=True))


def sessions_begun_since(db: sqlite3.Connection, directory: str, since: int) -> list[str]:
    """Sessions begun in a folder since then (ms), in which somebody has said something."""
    asked = """SELECT id FROM session s WHERE directory = ? AND parent_id IS NULL AND time_created >= ?
        AND EXISTS (SELECT 1 FROM message m WHERE m.session_id = s.id)"""
    return [row[0] for row in db.execute(asked, (directory, since))]


def sessions_prompted_since(db: sqlite3.Connection, directory: str, since: int) -> list[str]:
    """Sessions of a folder, old ones too, in which somebody has said something since then (ms). A fork's copies keep
    the time at which they were said."""
    asked = """SELECT DISTINCT s.id FROM session s JOIN message m ON m.session_id = s.id
        WHERE s.directory = ? AND s.parent_id IS NULL AND m.time_created >= ? AND json_valid(m.data)
        AND json_extract(m.data, '$.role') = 'user' AND json_extract(m.data, '$.time.created') >= ?"""
    return [row[0] for row in db.execute(asked, (directory, since, since))]

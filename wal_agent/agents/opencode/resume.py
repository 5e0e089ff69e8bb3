"""Make a restored OpenCode session that resumes well (RECOVERY.md), and import it into OpenCode's database.

`reconcile` is pure and idempotent. OpenCode keeps the calls that were open when it was lost, and tells the model about
each of them, also about those that had ended or had never begun, "[Tool execution was interrupted]". The log has the
outcomes, so each call gets its real one.

`import_session`: the session itself comes in by `opencode import`, which knows the project that a folder belongs to:
without its own folder in it, a resume hangs when it has answered. But it leaves rows alone that are there already, and
takes no subagents' sessions: those are compared and written in one transaction, so that afterwards the session is what
the journal says, no more and no less. What the database then loses is first written to a file beside the journal: the
journal that the restore replaced need not have all of it. Rows of other sessions are never touched, whatever ids a
journal has.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from wal_agent.agents.base import IMPORT_TIMEOUT, Cli, Env, LoggedCall, Reconciled
from wal_agent.agents.opencode import database as store
from wal_agent.agents.opencode import hooks
from wal_agent.agents.opencode import session as journal
from wal_agent.agents.opencode import session as place
from wal_agent.agents.opencode.database import Key, Row, Rows, load_rows, row_digest, row_order, row_pieces
from wal_agent.agents.opencode.edition import Edition
from wal_agent.agents.session_files import (
    LOST_PROMPT,
    FileLines,
    Json,
    Line,
    as_object,
    as_text,
    call_input,
    decode_json,
    encode_json,
    logged_value,
    noted_result,
    unknown_result,
)
from wal_agent.errors import ConfigError
from wal_agent.safefs import Buffer, Pieces, map_file

BUSY = 5.0  # seconds to wait for another process's transaction
KEPT = 20  # files of rows that were replaced, for each session
REPLACED = "replaced-"
_OWN = frozenset(("project_id", "workspace_id", "directory", "path", "time_updated"))  # of this machine

_ID_COLUMN = {"session": "id", "message": "id", "part": "id", "todo": "session_id || '/' || position"}
OPEN = ("pending", "running")
UNLOGGED = "outcome unknown: the machine was lost before the end of this call was saved."
_ID = re.compile(r"[a-z]+_([0-9a-f]{12})")
_IDS = re.compile(rb"\b(?:msg|prt)_[0-9A-Za-z]+")
_RING = 1 << 48  # an id's number: milliseconds times 4096 and a counter, as far as 48 bits hold them


def resumable(edition: Edition, session: str, workspace: Path, env: Env) -> bool:
    """Return whether it is in the database, or in a journal that `import_session` will bring there."""
    if not place.is_session(session):
        return False
    try:
        with store.read_database(place.database_path(edition, env), BUSY) as db:
            if store.session_tree(db, session):
                return True
    except sqlite3.Error:
        pass
    rows = _journal(edition, session, env)
    return rows is not None and bool(rows.sessions(session))


def _journal(edition: Edition, session: str, env: Env) -> Rows | None:
    try:
        return load_rows(map_file(place.journal_path(edition, session, env)))
    except OSError:
        return None


def stored_folder(edition: Edition, session: str, env: Env) -> Path | None:
    try:
        with store.read_database(place.database_path(edition, env), BUSY) as db:
            row = store.session_row(db, session)
    except sqlite3.Error:
        return None
    return Path(str(row["directory"])) if row else None


def import_session(
    edition: Edition, cli: Cli, session: str, workspace: Path, env: Env, for_client: bool = False
) -> None:
    """Bring a restored journal into the database, where they differ. ConfigError when the agent does not accept it."""
    rows = _journal(edition, session, env) if place.is_session(session) else None
    if rows is None or not rows.sessions(session):
        return
    if for_client:
        complete_prompts(rows, session)
    database = place.database_path(edition, env)
    restored = not journal.is_synced(edition, session, env)
    try:
        there = _there(database, session)
        if there is None or there["directory"] != str(workspace):
            _import(edition, cli, _export(rows, session, workspace), session, workspace, env)
        if restored or there is None:
            _write(database, rows, session, place.journal_path(edition, session, env).parent)
            journal.mark_synced(place.journal_path(edition, session, env))  # so what it gets from now on is not undone
    except (OverflowError, UnicodeError, TypeError, ValueError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as e:
        raise ConfigError(
            f"The saved session holds what is no value of {edition.title}'s: {e}. Nothing was run."
        ) from e
    except (sqlite3.Error, OSError) as e:
        raise ConfigError(
            f"The session could not be brought into {edition.title}'s database {database}: {e}.",
            f"End other programs of {edition.title} that work in it and try again.",
        ) from e


def complete_prompts(rows: Rows, session: str) -> None:
    """Give each message of the user's the agent, the model and the diffs without which OpenCode shows a client none of
    the session. Those of the log do not travel (conversation.py), and `opencode run` would go on with what stands
    there. The model is that of an answer, which a client gets to see and may change."""
    messages = rows.messages(session)
    answers = [_model_of(m) for m in messages if m.role != "user"]
    model = next((a for a in reversed(answers) if all(a.values())), {"providerID": "", "modelID": ""})
    for asked in (m for m in messages if m.role == "user"):
        data = {"agent": "build", "model": model, **asked.data}
        data["summary"] = {"diffs": [], **as_object(data.get("summary"))}
        if data != asked.data:
            rows.add({**asked.value, "data": data})


def _model_of(answer: Row) -> dict[str, str]:
    return {name: as_text(answer.data.get(name)) for name in ("providerID", "modelID")}


def _there(database: Path, session: str) -> dict[str, Any] | None:
    if not database.exists():
        return None
    with store.read_database(database, BUSY) as db:
        try:
            found = store.session_row(db, session)
        except sqlite3.OperationalError as e:
            if "no such table" not in str(e):
                raise
            return None
    return dict(found) if found else None


def _export(rows: Rows, session: str, workspace: Path) -> Json:
    """Return what `opencode export` would give, without messages: wal-agent compares and writes those itself."""
    row = rows.found["session", session].row
    time = {"created": row.get("time_created", 0), "updated": row.get("time_updated", 0)}
    info: Json = {"id": session, "projectID": "global", "directory": str(workspace), "time": time}
    info |= {name: str(row.get(name, "")) for name in ("slug", "title", "version")}
    return {"info": info, "messages": []}


def _import(edition: Edition, cli: Cli, export: Json, session: str, workspace: Path, env: Env) -> None:
    base = place.journal_path(edition, session, env).parent
    try:
        with tempfile.TemporaryDirectory(prefix="import-", dir=base, ignore_cleanup_errors=True) as folder:
            file = Path(folder) / "session.json"
            file.write_bytes(encode_json(export))
            plain = {k: v for k, v in env.items() if k != edition.content}
            done = subprocess.run(
                [cli.path, "import", str(file)],
                env=plain
                | {edition.variable("PURE"): "1", "PWD": str(workspace)}
                | _nothing_to_install(edition, Path(folder)),
                cwd=workspace,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=IMPORT_TIMEOUT,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ConfigError(f"`{edition.name} import` did not work: {e}.") from e
    if done.returncode != 0 or f"Imported session: {session}".encode() not in done.stdout:
        output = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise ConfigError(f"{edition.title} did not take the restored session: `{edition.name} import` said: {output}")


def _nothing_to_install(edition: Edition, folder: Path) -> dict[str, str]:
    """Return variables for settings folders of its own, in which the agent finds what it else gets from npm: an import
    needs none of the user's, and would leave a lock on them that the next start waits for."""
    config = folder / "config" / edition.name
    (config / "node_modules").mkdir(parents=True)
    wants = {"dependencies": {edition.package: "*"}}
    (config / "package.json").write_text(json.dumps(wants))
    (config / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3, "packages": {"": wants}}))
    made = {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    return {**made, **hooks.OFFLINE, edition.variable("DISABLE_PROJECT_CONFIG"): "1"}


def _write(database: Path, rows: Rows, session: str, folder: Path) -> None:
    with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=rw", uri=True, timeout=BUSY)) as db:
        db.isolation_level = None
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        db.execute("BEGIN IMMEDIATE")
        SessionWrite(db, rows, session, folder).go()
        db.execute("COMMIT")


class SessionWrite:
    """One transaction, in which a session becomes that of the journal. Where nothing differs, nothing is written."""

    def __init__(self, db: sqlite3.Connection, rows: Rows, session: str, folder: Path) -> None:
        self._db = db
        self._folder = folder
        self._session = session
        self._rows = rows
        self._sessions = {r.id for r in rows.sessions(session)}
        messages = {r.id for r in rows.of("message") if r.session in self._sessions}
        self._wanted: dict[Key, Row] = {
            key: r
            for key, r in rows.found.items()
            if r.session in self._sessions
            and (key[0] != "part" or r.message in messages)
            and (key[0] != "todo" or _position(r.id, r.session) is not None)
        }

    def go(self) -> None:
        there = store.row_stamps(self._db, self._session)
        gone = [key for key in there if key not in self._wanted]
        other: list[Key] = []
        for key, row in self._wanted.items():
            now = store.read_row(self._db, key) if key in there else None
            if now is None or row_digest(now) != row_digest(row.value):
                other.append(key)
        self._keep([*gone, *(key for key in other if key in there)])
        for kind, id in gone:
            self._delete(kind, id)
        for key in other:
            self._put(key[0], self._wanted[key].value, key in there)

    def _keep(self, keys: list[Key]) -> None:
        """Write the rows as they are here to a file, one a line, and sync it, before they are changed."""
        if not keys:
            return
        earlier = sorted(self._folder.glob(f"{REPLACED}*.jsonl"), key=lambda p: (p.stat().st_mtime_ns, p.name))
        path = self._folder / f"{REPLACED}{uuid.uuid4().hex}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            for kind, id in keys:
                cursor = self._db.execute(f"SELECT * FROM {kind} WHERE {_ID_COLUMN[kind]} = ?", (id,))
                names = [d[0] for d in cursor.description]
                for row in cursor:
                    values = (repr(v) if isinstance(v, bytes) else v for v in row)
                    file.write(encode_json({"table": kind, "row": dict(zip(names, values, strict=True))}) + b"\n")
            file.flush()
            os.fsync(fd)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        for old in earlier[: max(0, len(earlier) + 1 - KEPT)]:
            old.unlink(missing_ok=True)

    def _delete(self, kind: str, id: str) -> None:
        self._db.execute(f"DELETE FROM {kind} WHERE {_ID_COLUMN[kind]} = ?", (id,))

    def _put(self, kind: str, record: Json, known: bool) -> None:
        match kind:
            case "session":
                self._put_session(record, known)
            case "todo":
                row = {name: record["row"].get(name) for name in ("content", "status", "priority")}
                row |= {"session_id": record["session"], "position": _position(record["id"], record["session"])}
                self._replace("todo", row, record, known)
            case _:
                data = encode_json(record["data"]).decode()
                values = {"id": record["id"], "session_id": record["session"], "data": data}
                if kind == "part":
                    values["message_id"] = record["message"]
                self._replace(kind, values, record, known)

    def _replace(self, table: str, values: Json, record: Json, known: bool) -> None:
        """Write a row. Unknown columns stay as they are. A new row whose id another session has is an error."""
        created = record.get("created", 0)
        values = {"time_created": created, "time_updated": created, **values}
        columns = self._columns(table)
        kept = {name: value for name, value in values.items() if name in columns}
        if known:
            kept.pop("time_created", None)
            sets = ", ".join(f"{name} = ?" for name in kept)
            self._db.execute(f"UPDATE {table} SET {sets} WHERE {_ID_COLUMN[table]} = ?", (*kept.values(), record["id"]))
            return
        names, marks = ", ".join(kept), ", ".join("?" * len(kept))
        try:
            self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(kept.values()))
        except sqlite3.IntegrityError as e:
            raise ConfigError(
                f"The saved session's {table} {record['id']!r} has no place in its database: {e}. Nothing was run."
            ) from e

    def _put_session(self, record: Json, known: bool) -> None:
        columns = self._columns("session")
        row = {name: value for name, value in record["row"].items() if name in columns and name not in _OWN}
        if not known:
            asked = "SELECT project_id, directory, path FROM session WHERE id = ?"
            root = self._db.execute(asked, (self._session,)).fetchone()
            own = dict(zip(("project_id", "directory", "path"), root, strict=True))
            row |= own | {"id": record["id"], "time_updated": record["row"].get("time_updated", 0)}
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            self._db.execute(f"INSERT INTO session ({names}) VALUES ({marks})", tuple(row.values()))
            return
        for name in ("parent_id", "revert"):  # where absent they are NULL; others may be a newer version's
            if name in columns and not columns[name]:
                row.setdefault(name, None)
        sets = ", ".join(f"{name} = ?" for name in row)
        self._db.execute(f"UPDATE session SET {sets} WHERE id = ?", (*row.values(), record["id"]))

    def _columns(self, table: str) -> dict[str, bool]:
        """Return the names, and whether each must have a value."""
        return {row[1]: bool(row[3]) for row in self._db.execute(f"PRAGMA table_info({table})")}


def _position(id: str, session: str) -> int | None:
    """Return the position of a to-do in its session's list; None where the id is malformed."""
    named, _, position = id.rpartition("/")
    return int(position) if named == session and re.fullmatch("[0-9]{1,6}", position) else None


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    rows = load_rows(main)
    repairs: list[str] = []
    if rows.junk:
        repairs.append(f"{rows.junk} damaged line(s) of the session's journal were left out.")
    if _mend_sessions(rows, session, workspace):
        repairs.append("The session's own row was damaged and was made anew.")
    if dropped := _drop_orphans(rows):
        repairs.append(f"{dropped} part(s) without their message were left out.")
    put = _resolve(rows, session, calls)
    with_parts = {part.message for part in rows.of("part")}  # those of a message are written behind it
    said = [m for m in rows.messages(session) if m.id in with_parts]
    asked = any(m.role == "user" for m in said)
    if said and said[0].role != "user":
        _begin_with_prompt(rows, session, said[0])
    return Reconciled(row_pieces(rows), put, len(rows.messages(session)), tuple(repairs), None if asked else ())


def _mend_sessions(rows: Rows, session: str, workspace: Path) -> bool:
    broken = ("session", session) not in rows.found
    if broken:
        times = [m.created for m in rows.messages(session)] or [0]
        row: Json = {"slug": "restored", "title": "Restored session", "version": "1", "time_created": times[0]}
        rows.add({"type": "session", "id": session, "row": {**row, "time_updated": times[-1]}})
    for record in rows.of("session"):
        if record.row.get("directory") != str(workspace):
            rows.add({**record.value, "row": {**record.row, "directory": str(workspace)}})
    return broken


def _drop_orphans(rows: Rows) -> int:
    sessions = {r.id for r in rows.of("session")}
    messages = {r.id for r in rows.of("message") if r.session in sessions}
    lost = [k for k, r in rows.found.items() if k[0] == "message" and k[1] not in messages]
    lost += [k for k, r in rows.found.items() if k[0] == "part" and r.message not in messages]
    for key in lost:
        del rows.found[key]
    return len(lost)


def _resolve(rows: Rows, session: str, calls: Sequence[LoggedCall]) -> int:
    """Give each open call its outcome, and add those that are missing; return how many."""
    parts = rows.calls()
    free = [p for p in parts if not p.by_user]
    pairs: dict[int, Row] = {}
    used: set[str] = set()
    # A part may be a call without an id only when it is no other call.
    for part_key, call_key in ((_part_id, _id_of), (_part_input, _call_input)):
        same: dict[object, list[Row]] = {}
        for part in free if any(call_key(call) for call in calls) else ():
            same.setdefault(part_key(part), []).append(part)
        for n, call in enumerate(calls):
            key = None if n in pairs else call_key(call)
            found = same.get(key, []) if key is not None else []
            chosen = next((p for p in found if p.id not in used and not _earlier(p, call)), None)
            if chosen is not None:
                used.add(chosen.id)
                pairs[n] = chosen
    put = 0
    for n, part in pairs.items():
        if part.status in OPEN:
            _set_state(rows, part, outcome_state(calls[n], part.data["state"]))
            put += 1
    missing = [call for n, call in enumerate(calls) if n not in pairs]
    for part in parts:
        part = rows.found[part.key]
        if part.status in OPEN:
            ended = _state(part.data["state"], {}, 0) | {"status": "error", "error": UNLOGGED}
            _set_state(rows, part, ended)
    if missing:
        _put_back(rows, session, missing)
    return put + len(missing)


def _set_state(rows: Rows, part: Row, state: Json) -> None:
    rows.add({**part.value, "data": {**part.data, "state": state}})


def _id_of(call: LoggedCall) -> str:
    return call.call_id or f"call_wal_{call.call}"


def _part_id(part: Row) -> object:
    return part.call


def _part_input(part: Row) -> object:
    data = part.data
    return as_text(data.get("tool")), _digest(data["state"].get("input"))


def _call_input(call: LoggedCall) -> object:
    return None if call.call_id else (call.tool, _digest(call_input(call)))


def _earlier(part: Row, call: LoggedCall) -> bool:
    """Return whether it ended before the call began: a provider may use its ids again."""
    end = as_object(part.data["state"].get("time")).get("end")
    return isinstance(end, int | float) and end + 1 < int(call.started * 1000)


def outcome_state(call: LoggedCall, before: Json) -> Json:
    """Return a part's state by the log."""
    state = _state(before, call_input(call), int(call.started * 1000))
    if call.result is None:
        return state | {"status": "error", "error": unknown_result(call)}
    result = _result(call.result)
    text = noted_result(result["output"], call)
    if call.failed:
        return state | {"status": "error", "error": text}
    metadata = {"output": text, **result["metadata"]} if call.tool == "bash" else result["metadata"]
    return state | {"status": "completed", "output": text, "title": result["title"], "metadata": metadata}


def _state(before: Json, input: Json, started: int) -> Json:
    began = as_object(before.get("time")).get("start")
    start = began if isinstance(began, int) and not isinstance(began, bool) and began >= 0 else started
    return {
        "input": as_object(before.get("input")) or input,
        "time": {"start": start, "end": max(start, started)},
    }


def _result(data: bytes) -> Json:
    """Return output, title and metadata of a result: the plugin's, wal-agent's own JSON string, or truncated bytes."""
    value = logged_value(data)
    if not isinstance(value, dict):
        output = value if isinstance(value, str) else data.decode("utf-8", "replace")
        return {"output": output, "title": "", "metadata": {}}
    return {
        "output": as_text(value.get("output")),
        "title": as_text(value.get("title")),
        "metadata": as_object(value.get("metadata")),
    }


def _put_back(rows: Rows, session: str, missing: Sequence[LoggedCall]) -> None:
    """Add calls as one batch of the last message, where that is the model's and requests tools; else of a new one."""
    messages = rows.messages(session)
    last = messages[-1] if messages else None
    if (
        last is None
        or last.role != "assistant"
        or last.data.get("finish") not in (None, "tool-calls")
        or last.data.get("error")  # OpenCode leaves such a message out of what it sends
    ):
        last = rows.add(_message(session, last, messages, missing[0]))
    before = max((p.id for p in rows.of("part") if p.message == last.id), default=last.id)
    for n, call in enumerate(missing, 1):
        data = {"type": "tool", "tool": call.tool, "callID": _id_of(call), "state": outcome_state(call, {})}
        part = {"type": "part", "id": make_id("prt", before, n, f"{session} {call.call}"), "session": session}
        rows.add({**part, "created": last.created, "message": last.id, "data": data})


def _message(session: str, last: Row | None, messages: Sequence[Row], call: LoggedCall) -> Json:
    """Return a message that holds only its calls, where the model's own was lost."""
    asked: Json = next((m.data for m in reversed(messages) if m.role == "user"), {})
    model = as_object(asked.get("model"))
    created = last.created + 1 if last else int(call.started * 1000)
    agent = as_text(asked.get("agent")) or "build"
    data: Json = {
        "role": "assistant",
        "parentID": last.id if last else "msg_" + "0" * 26,
        "mode": agent,
        "agent": agent,
        "path": {"cwd": "/", "root": "/"},
        "cost": 0,
        "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
        "modelID": as_text(model.get("modelID")) or "unknown",
        "providerID": as_text(model.get("providerID")) or "unknown",
        "time": {"created": created, "completed": created},
        "finish": "tool-calls",
    }
    id = make_id("msg", last.id if last else "", 1, f"{session} {call.call}")
    return {"type": "message", "id": id, "session": session, "created": created, "data": data}


def _begin_with_prompt(rows: Rows, session: str, first: Row) -> None:
    """See LOST_PROMPT. Where only its words were lost, they go into the message that held them."""
    told: Json = {"session": session, "created": first.created}
    asked = next((m for m in rows.messages(session) if m.role == "user" and row_order(m) < row_order(first)), None)
    if asked is None:
        data: Json = {"role": "user", "time": {"created": first.created}, "model": _model_of(first)}
        data["agent"] = as_text(first.data.get("agent"))
        id = make_id("msg", first.id, -1, f"lost prompt {first.id}")
        asked = rows.add({"type": "message", "id": id, **told, "data": data})
    part = {"type": "part", "id": make_id("prt", asked.id, 1, asked.id), **told, "message": asked.id}
    rows.add({**part, "data": {"type": "text", "text": LOST_PROMPT}})


def make_id(kind: str, before: str, step: int, seed: str) -> str:
    """Make an id behind `before`: OpenCode's ids sort by time."""
    found = _ID.match(before)
    number = (int(found[1], 16) if found else 0) + step
    return f"{kind}_{number % (1 << 48):012x}{hashlib.sha256(seed.encode()).hexdigest()[:14]}"


def not_after(main: Buffer, now: float) -> Pieces:
    """Return the journal with the whole conversation moved so far into the past that nothing of it lies after `now`.

    OpenCode orders messages by their times and ids. On a machine whose clock is behind them, a new prompt stands before
    them: OpenCode asks its model again and again, and never comes to it. Calls keep their own times, by which those of
    the log are matched."""
    rows = load_rows(main)
    newest = max(map(_said_at, [*rows.of("message"), *rows.of("part")]), default=0)
    return move_back(rows, int(newest - now * 1000) + 1) if newest > now * 1000 else [main]


def move_back(rows: Rows, by: int) -> Pieces:
    """Return the journal with all messages and parts `by` ms earlier, under ids of that time."""
    ids = {row.id.encode(): _moved_id(row.id, by).encode() for row in [*rows.of("message"), *rows.of("part")]}
    lines: list[Line] = []
    for line in b"".join(row_pieces(rows)).splitlines():
        record = decode_json(line)
        if "created" in record:
            record["created"] = max(0, record["created"] - by)
        if record["type"] == "message":
            times = as_object(record["data"].get("time"))
            record["data"]["time"] = times | {k: v - by for k, v in times.items() if isinstance(v, int | float)}
        lines.append(_IDS.sub(lambda found: ids.get(found[0], found[0]), encode_json(record)))
    return FileLines(lines)


def _said_at(row: Row) -> int:
    """Return when it was written (ms): the later one of its time and that of its id."""
    found = _ID.match(row.id)
    off = (int(found[1], 16) - row.created * 4096) % _RING if found else 0
    return row.created + (off // 4096 if off < _RING // 2 else 0)


def _moved_id(id: str, back: int) -> str:
    found = _ID.match(id)
    if found is None:
        return id
    number = (int(found[1], 16) - back * 4096) % _RING
    return f"{id[: found.start(1)]}{number:012x}{id[found.end(1) :]}"


def _digest(value: Any) -> bytes:
    """Return what is equal for equal inputs, and as short for long ones."""
    try:
        text = msgspec.json.encode(value, order="deterministic")
    except (UnicodeEncodeError, RecursionError, TypeError):
        text = repr(value).encode("utf-8", "backslashreplace")
    return hashlib.sha256(text).digest()

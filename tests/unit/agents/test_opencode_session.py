"""OpenCode's database into a journal, and a journal into the database."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Cli, HookSetup
from wal_agent.agents.opencode import OPENCODE, database, hooks, resume
from wal_agent.agents.opencode import session as locks
from wal_agent.agents.opencode import session as place
from wal_agent.agents.opencode.database import BY_USER, load_rows
from wal_agent.agents.opencode.resume import reconcile
from wal_agent.agents.opencode.session import update_journal
from wal_agent.errors import ConfigError
from wal_agent.operate.fork import refuse_to_take

S = "ses_1"
CLI = Cli(Path("/nowhere/opencode"), "1.18.33")
SCHEMA = """
CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT NOT NULL, workspace_id TEXT, parent_id TEXT,
    slug TEXT NOT NULL, directory TEXT NOT NULL, path TEXT, title TEXT NOT NULL, version TEXT NOT NULL, revert TEXT,
    cost REAL DEFAULT 0 NOT NULL, time_created INTEGER NOT NULL, time_updated INTEGER NOT NULL);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT NOT NULL, time_created INTEGER NOT NULL,
    time_updated INTEGER NOT NULL, data TEXT NOT NULL);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT NOT NULL, session_id TEXT NOT NULL,
    time_created INTEGER NOT NULL, time_updated INTEGER NOT NULL, data TEXT NOT NULL);
CREATE TABLE todo (session_id TEXT NOT NULL, content TEXT NOT NULL, status TEXT NOT NULL, priority TEXT NOT NULL,
    position INTEGER NOT NULL, time_created INTEGER NOT NULL, time_updated INTEGER NOT NULL,
    PRIMARY KEY(session_id, position));
"""


class Base:
    """A machine: OpenCode's database, and our state."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ws = home / "ws"
        self.ws.mkdir(parents=True)
        self.env = {"HOME": str(home)}
        path = place.database_path(OPENCODE, self.env)
        path.parent.mkdir(parents=True)
        self.db = sqlite3.connect(path, isolation_level=None, timeout=0.1)
        self.db.executescript("PRAGMA journal_mode=WAL;" + SCHEMA)
        self.clock = 1000

    def put(self, table: str, **row: Any) -> None:
        self.clock += 1
        row = {"time_created": self.clock, "time_updated": self.clock, **row}
        if isinstance(row.get("data"), dict):
            row["data"] = json.dumps(row["data"])
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.db.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))

    def session(self, id: str = S, **more: Any) -> None:
        row = {"project_id": "global", "slug": "a", "directory": str(self.ws), "title": "t", "version": "1"}
        self.put("session", id=id, **{**row, **more})

    def talk(self) -> None:
        self.session()
        self.put("message", id="msg_1", session_id=S, data={"role": "user"})
        self.put("part", id="prt_1", message_id="msg_1", session_id=S, data={"type": "text", "text": "hi\u2028"})
        self.put("message", id="msg_2", session_id=S, data={"role": "assistant", "parentID": "msg_1"})
        self.call("running", metadata={"output": "so far"})

    def call(self, status: str, **state: Any) -> None:
        data = {"type": "tool", "tool": "bash", "callID": "c", "state": {"status": status, "input": {}, **state}}
        self.put("part", id="prt_2", message_id="msg_2", session_id=S, data=data)

    def journal(self, session: str = S) -> None:
        update_journal(OPENCODE, session, self.ws, self.env)

    @property
    def path(self) -> Path:
        return place.journal_path(OPENCODE, S, self.env)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self.db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    made = Base(tmp_path / "home")
    yield made
    made.db.close()


def test_only_what_changed_is_appended(base: Base) -> None:
    base.journal()
    assert not base.path.exists(), "an unknown session"
    base.talk()
    base.journal()
    first = base.lines()
    assert sorted(line["id"] for line in first) == ["msg_1", "msg_2", "prt_1", "prt_2", S]
    assert "so far" not in base.path.read_text(), "output of a call that runs is written again and again"
    base.journal()
    base.call("running", metadata={"output": "so far, and more"})
    base.journal()
    assert base.lines() == first
    base.call("completed", output="done", metadata={"output": "done"})
    base.put("todo", session_id=S, content="x", status="pending", priority="high", position=0)
    base.journal()
    assert [line["id"] for line in base.lines()[len(first) :]] == ["prt_2", f"{S}/0"]
    base.db.execute("DELETE FROM part WHERE id = 'prt_1'")
    base.journal()
    assert base.lines()[-1] == {"type": "part", "id": "prt_1", "gone": True}
    assert base.path.stat().st_mode & 0o77 == 0 and base.path.parent.stat().st_mode & 0o77 == 0


def test_other_sessions_stay_out_and_subagents_come_in(base: Base) -> None:
    base.talk()
    base.session("ses_2", parent_id=S)
    base.session("ses_3", parent_id="ses_2")
    base.session("ses_other")
    base.put("message", id="msg_9", session_id="ses_other", data={"role": "user"})
    base.journal()
    assert {line["id"] for line in base.lines() if line["type"] == "session"} == {S, "ses_2", "ses_3"}
    assert "msg_9" not in base.path.read_text()


def test_a_torn_journal_is_gone_on_with(base: Base) -> None:
    base.talk()
    base.journal()
    whole = base.path.read_bytes()
    base.path.write_bytes(whole[:-30])
    base.journal()
    found = {key: row.value for key, row in load_rows(base.path.read_bytes()).found.items()}
    assert found == {key: row.value for key, row in load_rows(whole).found.items()}


def test_a_busy_or_broken_database_is_no_error(base: Base) -> None:
    base.talk()
    base.db.execute("BEGIN EXCLUSIVE")
    base.journal()
    base.db.execute("ROLLBACK")
    base.put("message", id="msg_3", session_id=S, data="no json")
    base.journal()
    assert "msg_3" not in base.path.read_text()
    other = {"HOME": str(base.home / "other")}
    update_journal(OPENCODE, S, base.ws, other)
    path = place.database_path(OPENCODE, other)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database" * 100)
    update_journal(OPENCODE, S, base.ws, other)
    assert not place.folder(OPENCODE, other).exists()


def test_a_link_is_not_followed(base: Base, tmp_path: Path) -> None:
    base.talk()
    base.path.parent.mkdir(parents=True)
    base.path.symlink_to(tmp_path / "elsewhere")
    base.journal()
    assert not (tmp_path / "elsewhere").exists()
    assert place.session_files(OPENCODE, S, base.ws, base.env) == []


def test_a_persons_own_command_is_marked(base: Base) -> None:
    base.talk()
    base.put(
        "part", id="prt_1", message_id="msg_1", session_id=S, data={"type": "text", "text": BY_USER, "synthetic": True}
    )
    base.journal()
    assert next(line for line in base.lines() if line["id"] == "prt_2")["by"] == "user"


def test_a_turn_in_a_session_that_no_hook_told_of(base: Base) -> None:
    wish = "0f0f0f0f-0000-4000-8000-000000000000"
    base.clock = 10**12
    base.journal(wish)
    base.clock = 10**14
    base.talk()
    base.journal(wish)
    path = place.journal_path(OPENCODE, wish, base.env)
    assert json.loads(path.read_bytes()) == {"type": "turn", "id": S}


def test_a_turn_in_an_old_session_of_this_folder(base: Base) -> None:
    """`--continue` and `--fork`: no id is known. What a fork copies was said before."""
    now = 10**14
    base.clock = 10**12
    base.talk()
    base.journal("")
    base.clock = now
    base.put("message", id="msg_7", session_id=S, data={"role": "user", "time": {"created": 1000}})
    base.put("message", id="msg_8", session_id=S, data={"role": "assistant", "time": {"created": now}})
    base.journal("")
    assert place.session_files(OPENCODE, "", base.ws, base.env) == []
    base.put("message", id="msg_9", session_id=S, data={"role": "user", "time": {"created": now}})
    base.journal("")
    [file] = place.session_files(OPENCODE, "", base.ws, base.env)
    assert json.loads(file.path.read_bytes()) == {"type": "turn", "id": S}


# ---- back into the database


@pytest.fixture
def imports(base: Base, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """`opencode import`, as measured: the session's folder is written anew, what it has already stays as it is."""
    made: list[dict[str, Any]] = []

    def run(argv: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
        data = json.loads(Path(argv[2]).read_bytes())
        made.append(data)
        assert how["env"]["OPENCODE_PURE"] == "1" and "OPENCODE_CONFIG_CONTENT" not in how["env"]
        row = base.db.execute("SELECT 1 FROM session WHERE id = ?", (data["info"]["id"],)).fetchone()
        if row:
            base.db.execute("UPDATE session SET directory = ?", (str(how["cwd"]),))
        else:
            base.session(data["info"]["id"], directory=str(how["cwd"]))
        for m in data["messages"]:
            info = {k: v for k, v in m["info"].items() if k not in ("id", "sessionID")}
            base.put("message", id=m["info"]["id"], session_id=S, data=info)
        return subprocess.CompletedProcess(argv, 0, f"Imported session: {data['info']['id']}".encode(), b"")

    monkeypatch.setattr(subprocess, "run", run)
    return made


def lost(tmp_path: Path) -> bytes:
    """A journal of another machine."""
    other = Base(tmp_path / "lost")
    other.talk()
    other.session("ses_2", parent_id=S)
    other.put("message", id="msg_5", session_id="ses_2", data={"role": "user"})
    other.put("todo", session_id=S, content="x", status="pending", priority="high", position=0)
    other.journal()
    other.db.close()
    return other.path.read_bytes()


def restore(base: Base, data: bytes) -> None:
    base.path.parent.mkdir(parents=True, exist_ok=True)
    base.path.write_bytes(data)


def test_a_new_machine_gets_all_of_it(base: Base, imports: list[dict[str, Any]], tmp_path: Path) -> None:
    base.session("ses_other")
    base.put("message", id="msg_9", session_id="ses_other", data={"role": "user"})
    others = [row for row in base.rows("session") + base.rows("message") if "other" in str(row)]
    data = reconcile(lost(tmp_path), S, base.ws, []).data
    restore(base, data)
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert [len(made["messages"]) for made in imports] == [0]
    assert {row[0] for row in base.rows("session")} == {S, "ses_2", "ses_other"}
    assert {row[5] for row in base.rows("session")} == {str(base.ws)}
    assert {row[0] for row in base.rows("part")} == {"prt_1", "prt_2"}
    assert json.loads(base.rows("part")[1][5])["state"]["status"] == "error"
    assert len(base.rows("todo")) == 1
    assert [row for row in base.rows("session") + base.rows("message") if "other" in str(row)] == others

    base.journal()
    assert load_rows(base.path.read_bytes()).found.keys() == load_rows(data).found.keys(), (
        "nothing is lost, nothing is new"
    )
    before = [base.rows(table) for table in ("session", "message", "part", "todo")]
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert [base.rows(table) for table in ("session", "message", "part", "todo")] == before
    assert len(imports) == 1


def test_a_client_is_shown_what_does_not_travel(base: Base, imports: list[dict[str, Any]], tmp_path: Path) -> None:
    """OpenCode shows a client no session in which a message of the user's lacks one of these."""
    restore(base, reconcile(lost(tmp_path), S, base.ws, []).data)
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env, True)
    said = [json.loads(row[-1]) for row in base.rows("message") if row[1] == S]
    asked = [data for data in said if data["role"] == "user"]
    assert asked and all(data["agent"] and data["model"] and data["summary"]["diffs"] == [] for data in asked)
    bare: Any = {"type": "message", "session": S, "created": 1}
    own = {"role": "user", "agent": "plan", "model": {"providerID": "a", "modelID": "b"}, "summary": {"diffs": [1]}}
    rows = load_rows(
        b"".join(
            json.dumps({**bare, "id": f"m{n}", "data": d}).encode() + b"\n"
            for n, d in enumerate(({"role": "user"}, {"role": "assistant", "providerID": "p", "modelID": "m"}, own))
        )
    )
    resume.complete_prompts(rows, S)
    first, _, last = (row.data for row in rows.messages(S))
    assert (first["agent"], first["model"]) == ("build", {"providerID": "p", "modelID": "m"})
    assert last == own


def test_this_machine_becomes_what_was_restored(base: Base, imports: list[dict[str, Any]], tmp_path: Path) -> None:
    """Import leaves known rows alone: a call that runs here would run for ever, and what came later would stay."""
    base.talk()
    base.put("message", id="msg_8", session_id=S, data={"role": "user"})
    base.journal()
    restore(base, reconcile(lost(tmp_path), S, base.ws, []).data)
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert json.loads(base.rows("part")[1][5])["state"]["status"] == "error"
    assert "msg_8" not in {row[0] for row in base.rows("message")}
    assert imports == []


def test_a_journal_that_was_read_from_here_changes_nothing(base: Base, imports: list[dict[str, Any]]) -> None:
    base.talk()
    base.journal()
    base.put("message", id="msg_8", session_id=S, data={"role": "user"})  # without us, since
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert "msg_8" in {row[0] for row in base.rows("message")}
    assert imports == []
    elsewhere = base.home / "moved"
    elsewhere.mkdir()
    resume.import_session(OPENCODE, CLI, S, elsewhere, base.env)
    assert [made["messages"] for made in imports] == [[]], "a session of another folder would hang"


def test_what_came_after_a_restore_is_not_undone(base: Base, imports: list[dict[str, Any]], tmp_path: Path) -> None:
    restore(base, reconcile(lost(tmp_path), S, base.ws, []).data)
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    base.put("message", id="msg_8", session_id=S, data={"role": "user"})
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert "msg_8" in {row[0] for row in base.rows("message")}
    base.journal()
    assert base.lines()[-1]["id"] == "msg_8"


def test_a_restore_that_was_not_adopted_is_left_as_it_is(base: Base) -> None:
    """A crash in between: what the database has is older, or of another time line."""
    base.talk()
    base.journal()
    data = base.path.read_bytes()
    other = base.path.with_name("new")
    other.write_bytes(data)
    other.rename(base.path)
    base.put("message", id="msg_8", session_id=S, data={"role": "user"})
    base.journal()
    assert base.path.read_bytes() == data
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    base.put("message", id="msg_9", session_id=S, data={"role": "user"})
    base.journal()
    assert [line["id"] for line in base.lines()[5:]] == ["msg_9"]


def test_a_busy_database_is_told(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base.talk()
    restore(base, reconcile(lost(tmp_path), S, base.ws, []).data)
    monkeypatch.setattr(resume, "BUSY", 0.05)
    base.db.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConfigError, match="could not be brought into"):
        resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    base.db.execute("ROLLBACK")


def test_an_import_that_fails_is_told(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore(base, lost(tmp_path))
    failed = subprocess.CompletedProcess([], 1, b"", b"bad schema")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(ConfigError, match="bad schema"):
        resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert [p.name for p in base.path.parent.iterdir()] == ["session.jsonl"], "no file is left behind"


def test_what_a_restore_replaces_is_kept(base: Base, imports: list[dict[str, Any]], tmp_path: Path) -> None:
    """A crash between a restore and its adoption, and the user went on without us: no journal has that."""
    base.talk()
    base.put("message", id="msg_8", session_id=S, data={"role": "user", "only": "here"})
    base.put("message", id="msg_odd", session_id=S, data="[1, 2]")
    data = reconcile(lost(tmp_path), S, base.ws, []).data
    restore(base, data)
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert "msg_8" not in {row[0] for row in base.rows("message")}
    [file] = base.path.parent.glob("replaced-*.jsonl")
    rows = {r["row"].get("id"): r["row"] for r in map(json.loads, file.read_bytes().splitlines())}
    assert json.loads(rows["msg_8"]["data"])["only"] == "here" and rows["msg_odd"]["data"] == "[1, 2]"
    assert json.loads(rows["prt_2"]["data"])["state"]["status"] == "running", "as it was"
    assert file.stat().st_mode & 0o77 == 0
    for n in range(resume.KEPT + 3):
        base.put("message", id=f"msg_new{n}", session_id=S, data={"role": "user"})
        base.path.unlink()
        restore(base, data)
        resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert len(list(base.path.parent.glob("replaced-*.jsonl"))) == resume.KEPT


@pytest.mark.parametrize("kind", ["message", "part", "session"])
def test_no_row_of_another_session_is_touched(kind: str, base: Base, imports: list[dict[str, Any]]) -> None:
    base.session()
    base.session("ses_other")
    base.put("message", id="msg_v", session_id="ses_other", data={"role": "user"})
    base.put("part", id="prt_v", message_id="msg_v", session_id="ses_other", data={"type": "text", "text": "mine"})
    row = {"slug": "a", "title": "x", "version": "1", "directory": str(base.ws), "time_created": 1}
    evil: dict[str, list[dict[str, Any]]] = {
        "message": [{"type": "message", "id": "msg_v", "session": S, "created": 1, "data": {"role": "user"}}],
        "part": [
            {"type": "message", "id": "msg_n", "session": S, "created": 1, "data": {"role": "user"}},
            {"type": "part", "id": "prt_v", "session": S, "message": "msg_n", "created": 1, "data": {"type": "text"}},
        ],
        "session": [{"type": "session", "id": "ses_other", "row": {**row, "parent_id": S}}],
    }
    before = [base.rows(table) for table in ("session", "message", "part")]
    lines = [{"type": "session", "id": S, "row": row}, *evil[kind]]
    restore(base, reconcile(b"".join(json.dumps(r).encode() + b"\n" for r in lines), S, base.ws, []).data)
    with pytest.raises(ConfigError):
        resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert [base.rows(table) for table in ("session", "message", "part")] == before


def test_odd_things_to_do(base: Base, imports: list[dict[str, Any]]) -> None:
    base.session()
    words = {"content": "x", "status": "p", "priority": "h"}
    ids = (f"{S}/1", f"{S}/x", "nothing", f"{S}/" + "9" * 30, "ses_other/0")
    lines: list[dict[str, Any]] = [{"type": "session", "id": S, "row": {"slug": "a", "title": "t", "version": "1"}}]
    lines += [
        {"type": "todo", "id": i, "session": S, "row": {**words, "session_id": "ses_o", "position": 7}} for i in ids
    ]
    restore(base, reconcile(b"".join(json.dumps(r).encode() + b"\n" for r in lines), S, base.ws, []).data)
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    assert [(row[0], row[4]) for row in base.rows("todo")] == [(S, 1)]


def test_a_value_that_no_database_takes_is_told(base: Base, imports: list[dict[str, Any]]) -> None:
    for odd in ({"cost": 1 << 70}, {"title": {"a": 1}}, {"title": "\ud800"}):
        row = {"slug": "a", "title": "t", "version": "1", "directory": str(base.ws), **odd}
        base.session()
        base.path.unlink(missing_ok=True)
        restore(base, json.dumps({"type": "session", "id": S, "row": row}).encode() + b"\n")
        with pytest.raises(ConfigError):
            resume.import_session(OPENCODE, CLI, S, base.ws, base.env)


def test_columns_of_a_later_version_stay(base: Base, imports: list[dict[str, Any]], tmp_path: Path) -> None:
    base.talk()
    for table in ("session", "part"):
        base.db.execute(f"ALTER TABLE {table} ADD COLUMN later TEXT")
        base.db.execute(f"UPDATE {table} SET later = 'kept'")
    base.db.execute("UPDATE session SET title = 'other'")
    restore(base, reconcile(lost(tmp_path), S, base.ws, []).data)
    resume.import_session(OPENCODE, CLI, S, base.ws, base.env)
    for table in ("session", "part"):
        assert set(base.db.execute(f"SELECT later FROM {table} WHERE id IN ('{S}', 'prt_2')")) == {("kept",)}
    assert json.loads(base.rows("part")[1][5])["state"]["status"] == "error"


def test_a_row_that_could_not_be_written_comes_later(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    base.talk()
    base.journal()
    base.put("message", id="msg_7", session_id=S, data={"role": "user", "half": "\ud83d"})

    def full(path: Path, new: object) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("wal_agent.agents.opencode.session._append", full)
        base.journal()
    base.journal()
    assert base.lines()[-1]["id"] == "msg_7"


def test_unknown_tables_are_told_at_the_start(base: Base) -> None:
    assert database.schema_problem(place.database_path(OPENCODE, base.env)) == ""
    base.db.execute("ALTER TABLE part RENAME COLUMN data TO content")
    assert database.schema_problem(place.database_path(OPENCODE, base.env)) == "part: data"
    setup = HookSetup("r", base.home, (), (), "")
    with pytest.raises(ConfigError, match="part: data") as old:
        hooks.inject(OPENCODE, setup, base.env)
    base.db.execute("CREATE TABLE session_v2 (id text PRIMARY KEY)")
    with pytest.raises(ConfigError, match="part: data") as moved:
        hooks.inject(OPENCODE, setup, base.env)
    assert "opencode" in old.value.hint and "export OPENCODE_DB=" in moved.value.hint


def test_a_fork_does_not_take_a_session_from_another_folder(base: Base, tmp_path: Path) -> None:
    refuse_to_take(AGENTS["opencode"], S, tmp_path, base.env)
    base.session()
    refuse_to_take(AGENTS["opencode"], S, base.ws, base.env)
    with pytest.raises(ConfigError, match="take it over"):
        refuse_to_take(AGENTS["opencode"], S, tmp_path, base.env)
    base.db.execute("UPDATE session SET directory = '/nowhere'")
    refuse_to_take(AGENTS["opencode"], S, tmp_path, base.env)


def test_resumable(base: Base, tmp_path: Path) -> None:
    assert not any(resume.resumable(OPENCODE, session, base.ws, base.env) for session in (S, "../x"))
    restore(base, lost(tmp_path))
    assert resume.resumable(OPENCODE, S, base.ws, base.env)
    base.session("ses_7")
    assert resume.resumable(OPENCODE, "ses_7", base.ws, base.env)


def test_locks_of_the_dead_are_cleared_and_no_others(base: Base) -> None:
    """OpenCode waits for them for a minute."""
    folder = base.home / ".local/state/opencode/locks"
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = socket.gethostname()
    metas = {"dead": (host, dead.pid), "alive": (host, os.getpid()), "far": ("elsewhere", dead.pid), "odd": (host, "x")}
    for name, (where, pid) in metas.items():
        (folder / f"{name}.lock").mkdir(parents=True)
        (folder / f"{name}.lock" / "meta.json").write_text(json.dumps({"hostname": where, "pid": pid}))
    (folder / "new.lock").mkdir()
    os.utime(folder / "new.lock", (time.time() + 3600,) * 2)
    (folder / "old.lock").mkdir()
    os.utime(folder / "old.lock", (1, 1))
    locks.clear_dead_locks(OPENCODE, base.env)
    assert sorted(p.name for p in folder.iterdir()) == ["alive.lock", "far.lock", "new.lock", "odd.lock"]


def test_threads(base: Base) -> None:
    """Hooks and the autosave ask at once."""
    base.talk()
    threads = [threading.Thread(target=base.journal) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(base.lines()) == 5

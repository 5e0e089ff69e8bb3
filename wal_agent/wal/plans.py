"""The plan that an agent states with a tool of its own, as it stands behind each call. Pure; all inputs are foreign,
and what is in no known form changes nothing.

Gemini CLI, Codex, Qwen Code, OpenCode, Kimi and older Claude Codes state the whole plan in one call. Claude Code has a
call for each task and each change of one. Copilot's model keeps rows in the table `todos` of a database, by SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

MAX_PLAN: Final = 256 << 10  # bytes of a plan that is kept: 500 steps of _WORDS
TASK_TOOLS: Final = frozenset(("TaskCreate", "TaskUpdate"))
SQL_AGENT: Final = "copilot"  # of another agent a tool of that name may ask any database
SQL_TOOL: Final = "sql"
PLAN_TOOLS: Final = TASK_TOOLS | {
    "TodoWrite", "write_todos", "update_plan", "todowrite", "TodoList", "todo_write", "update_todo"
}  # fmt: skip
_WORDS: Final = 400  # characters of a step, from which secrets are taken before it is cut for people
_STATES: Final = ("pending", "in_progress", "completed")
_WRONG: Final = (ValueError, RecursionError, AttributeError, KeyError, TypeError)

Rows = list[dict[str, str]]
_TABLES: Final = """
CREATE TABLE todos (id TEXT PRIMARY KEY, title TEXT NOT NULL, description TEXT, status TEXT DEFAULT 'pending',
    created_at TEXT, updated_at TEXT);
CREATE TABLE todo_deps (todo_id TEXT, depends_on TEXT, PRIMARY KEY (todo_id, depends_on));
PRAGMA max_page_count = 1024;
PRAGMA temp_store = 2
"""
_FUNCTIONS: Final = (
    "coalesce", "count", "current_date", "current_time", "current_timestamp", "date", "datetime", "ifnull", "instr",
    "length", "like", "lower", "max", "min", "strftime", "substr", "time", "trim", "unixepoch", "upper"
)  # fmt: skip
_STATEMENTS: Final = 1000  # of one call
_STEPS: Final = 1000  # times a thousand instructions of SQLite's machine


def states_plan(agent: str, tool: str, input: bytes) -> bool:
    """Whether a call of `agent` may be about its plan."""
    return tool in PLAN_TOOLS or ((agent, tool) == (SQL_AGENT, SQL_TOOL) and b"todos" in input)


def plan_behind(agent: str, tool: str, input: bytes, result: bytes, before: tuple[str, bytes] | None) -> bytes | None:
    """The plan behind a call of `agent` that was done, as JSON with `todos` or `plan`; None where it stays as it is.
    `before`: the tool that stated the plan so far, and that plan."""
    plan: bytes | None = None
    if not states_plan(agent, tool, input):
        return None
    with suppress(*_WRONG):
        said = json.loads(input)
        if tool in TASK_TOOLS:
            plan = _listed(_task_list(_rows(before, TASK_TOOLS), tool, said, result))
        elif tool == SQL_TOOL:
            old = _rows(before, {SQL_TOOL})
            new = _sql_list(old, said["query"])
            plan = _listed(new) if new != old else None
        elif isinstance(said, dict) and ("todos" in said or "plan" in said):
            plan = input  # Kimi asks for the list with neither
    return plan if plan is not None and len(plan) <= MAX_PLAN else None


def _rows(before: tuple[str, bytes] | None, tools: frozenset[str] | set[str]) -> Rows:
    """The list so far, where one of `tools` made it."""
    with suppress(*_WRONG):
        if before is not None and before[0] in tools:
            return [dict(row) for row in json.loads(before[1])["todos"] if "id" in row]
    return []


def _listed(rows: Rows) -> bytes:
    return json.dumps({"todos": rows}, ensure_ascii=False).encode("utf-8", "replace")


def _task_list(rows: Rows, tool: str, said: Mapping[str, Any], result: bytes) -> Rows:
    """Claude Code's tasks behind a call. One of _WRONG: it is in no known form."""
    if tool == "TaskCreate":
        row = {"id": str(json.loads(result)["task"]["id"]), "content": said["subject"][:_WORDS]}
        known = any(other["id"] == row["id"] for other in rows)  # ids only rise: this is another session's list
        return [*([] if known else rows), {**row, "status": "pending"}]
    if said.get("status") == "deleted":
        return [row for row in rows if row["id"] != str(said["taskId"])]
    (row,) = (row for row in rows if row["id"] == str(said["taskId"]))
    if isinstance(subject := said.get("subject"), str):
        row["content"] = subject[:_WORDS]
    if (status := said.get("status")) in _STATES:
        row["status"] = str(status)
    return rows


# ---- Copilot's table, in SQL


def _sql_list(rows: Rows, query: str) -> Rows:
    """The table behind a query, which SQLite runs in memory: on rows alone, with few functions and for a bounded time.
    A statement that fails there, or that is about something else, changes nothing."""
    import sqlite3

    with suppress(sqlite3.Error), closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_PLAN)
        db.executescript(_TABLES)
        insert = "INSERT INTO todos (id, title, status) VALUES (?, ?, ?)"
        db.executemany(insert, [(row["id"], row["content"], row["status"]) for row in rows])
        allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE,
                   sqlite3.SQLITE_DELETE)  # fmt: skip

        def authorize(what: int, table: str | None, name: str | None, *rest: object) -> int:
            known = str(name).lower() in _FUNCTIONS if what == sqlite3.SQLITE_FUNCTION else what in allowed
            return sqlite3.SQLITE_OK if known and not str(table).lower().startswith("sqlite_") else sqlite3.SQLITE_DENY

        left = iter(range(_STEPS))
        db.set_progress_handler(lambda: next(left, None) is None, 1000)
        for statement in _statements(query):
            db.set_authorizer(authorize)
            try:
                db.execute(statement).fetchmany(1)
            except sqlite3.IntegrityError:  # it was done, so its table had no such row: another session's
                with suppress(sqlite3.Error):
                    db.execute("DELETE FROM todos")
                    db.execute(statement)
            except (sqlite3.Error, sqlite3.Warning, ValueError):
                continue
        db.set_progress_handler(None, 0)
        return [
            {"id": str(id)[:_WORDS], "content": str(title)[:_WORDS], "status": str(status)[:_WORDS]}
            for id, title, status in db.execute("SELECT id, title, status FROM todos ORDER BY rowid")
        ]
    return rows


def _statements(query: str) -> Iterator[str]:
    """A semicolon in a text ends no statement."""
    import sqlite3

    begun = ""
    for part in f"{query}\n".split(";", _STATEMENTS)[:_STATEMENTS]:  # the end of a last comment is needed
        begun += part + ";"
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""

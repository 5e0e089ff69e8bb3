"""wal/plans.py: the plan of each agent's own tool, behind each of its calls (I9)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.wal.plans import MAX_PLAN, PLAN_TOOLS, plan_behind

Steps = list[tuple[str, str]]


def asked(*queries: str, before: bytes | None = None) -> bytes | None:
    """The list behind these calls of Copilot's `sql`."""
    for query in queries:
        stated = ("sql", before) if before is not None else None
        before = plan_behind("copilot", "sql", json.dumps({"query": query}).encode(), b"", stated) or before
    return before


def steps(plan: bytes | None) -> Steps:
    assert plan is not None
    return [(row["content"], row["status"]) for row in json.loads(plan)["todos"]]


MADE = "INSERT INTO todos (id, title, description) VALUES ('a', 'Copy; the orders', 'x'), ('b', 'Copy the users', 'y');"
DEPENDS = "INSERT INTO todo_deps (todo_id, depends_on) VALUES ('b', 'a')"


def test_copilots_table_is_the_plan() -> None:
    """Its system prompt shows these statements; models add times of their own."""
    assert steps(asked(f"{MADE}\n{DEPENDS};")) == [("Copy; the orders", "pending"), ("Copy the users", "pending")]
    done = "UPDATE todos SET status = 'done', updated_at = datetime('now') WHERE id = 'a' -- that was one"
    more = "INSERT OR IGNORE INTO todos (id, title, status) VALUES ('a', 'no', 'x'), ('c', 'Test', 'in_progress')"
    read = "SELECT * FROM todos WHERE status = 'pending'"
    assert steps(asked(MADE, done, f"CREATE TABLE todos_log (x); {more}", read)) == [
        ("Copy; the orders", "done"),
        ("Copy the users", "pending"),
        ("Test", "in_progress"),
    ]
    assert steps(asked(MADE, "DELETE FROM todos WHERE id = 'a'")) == [("Copy the users", "pending")]
    assert plan_behind("copilot", "sql", json.dumps({"query": read}).encode(), b"", None) is None, "a look states none"
    assert plan_behind("pi", "sql", json.dumps({"query": MADE}).encode(), b"", None) is None, "any database"
    again = asked(MADE, done, MADE)
    assert steps(again)[0][1] == "pending", "what took a row that was there is of another session, with a new table"


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH '{path}' AS other; CREATE TABLE other.todos (x)",
        "VACUUM INTO '{path}'; SELECT * FROM todos",
        "PRAGMA max_page_count = 1000000; CREATE TEMP TABLE todos (x)",
        "DROP TABLE todos",
        "DELETE FROM sqlite_master; UPDATE sqlite_schema SET sql = 'todos'",
        "INSERT INTO todos (id, title) VALUES ('x', randomblob(100000000))",
        "INSERT INTO todos (id, title) VALUES ('x', CAST(x'ff' AS TEXT))",
        "INSERT INTO todos (id) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "UPDATE todos SET title = '" + ";'' todos" * 5000,
        "\udfff todos",
        "todos \x00",
    ],
)
def test_sql_reaches_nothing_but_the_rows_and_ends(query: str, tmp_path: Path) -> None:
    """The log is foreign: its SQL writes no file, and costs a bounded time and memory."""
    before = asked(MADE)
    began = time.process_time()
    after = asked(query.replace("{path}", f"{tmp_path}/made"), before=before)
    assert steps(after) == steps(before) and time.process_time() - began < 30
    assert list(tmp_path.iterdir()) == []


def test_a_cross_join_is_ended() -> None:
    rows = ", ".join(f"('{n}', 't')" for n in range(400))
    many = asked(f"INSERT INTO todos (id, title) VALUES {rows}")
    join = "UPDATE todos SET title = (SELECT count(*) FROM todos a, todos b, todos c, todos d, todos e)"
    done = "UPDATE todos SET status = 'done' WHERE id = '1'"
    assert asked(f"{done}; {join}", before=many) == asked(done, before=many) != many


def test_a_question_for_the_list_leaves_it() -> None:
    """Kimi's TodoList without `todos` answers with the list."""
    assert plan_behind("kimi", "TodoList", b"{}", b"", None) is None
    assert plan_behind("kimi", "TodoList", b'{"todos": []}', b"", None) == b'{"todos": []}'


FIELDS = st.sampled_from(["todos", "plan", "query", "subject", "taskId", "status", "id"])
INPUTS = st.recursive(st.none() | st.text(max_size=9), lambda x: st.lists(x) | st.dictionaries(FIELDS, x))
TOOLS = sorted(PLAN_TOOLS | {"sql"})


@settings(deadline=None, max_examples=examples(200))
@given(
    st.sampled_from(TOOLS),
    st.binary(max_size=60) | INPUTS.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
    st.none() | st.tuples(st.sampled_from(TOOLS), st.binary(max_size=60)),
)
def test_any_call_leaves_a_plan_or_none(
    tool: str, input: bytes, result: bytes, before: tuple[str, bytes] | None
) -> None:
    plan = plan_behind("copilot", tool, input, result, before)
    assert plan is None or (len(plan) <= MAX_PLAN and isinstance(json.loads(plan), dict))

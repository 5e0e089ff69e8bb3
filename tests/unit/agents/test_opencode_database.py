"""agents/opencode/database.py: OpenCode's database, read from outside and never in its way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from wal_agent.agents.opencode.database import read_database, schema_problem


def test_a_database_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    """I6: until it is in WAL mode a reader's lock would end OpenCode's start with "database is locked"."""
    path = tmp_path / "opencode.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE session (id)")
        with pytest.raises(sqlite3.OperationalError, match="being made"), read_database(path):
            pass
        assert schema_problem(path) == ""
        made.execute("PRAGMA journal_mode=WAL")
        with read_database(path) as db:
            assert db.execute("SELECT * FROM session").fetchall() == []

"""`wal-agent ARGS` in this process, for the tests of commands."""

from __future__ import annotations

import json
import os
import re
import sys
from contextvars import copy_context
from pathlib import Path

import pytest

from tests.unit.cli.shelf import Run, check_answer
from wal_agent.cli.main import main

ORIGIN = re.compile(r"^wal-agent: bucket \S+ \(from [^\n]+\)\n", re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`wal-agent ARGS` in this process: exit code, stdout (with --json: as the schemas say), stderr without the line
    that says who named the bucket (tests/security/test_commands.py is about that)."""
    workspace = tmp_path / "shop"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    for name in [n for n in os.environ if n.startswith(("WAL_AGENT_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def go(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["wal-agent", *args])
        with pytest.raises(SystemExit) as ended:
            copy_context().run(main)  # as a process of its own: no job is meant yet
        assert isinstance(ended.value.code, int)
        out, err = capsys.readouterr()
        if "--json" in args:
            for line in out.splitlines():
                check_answer(json.loads(line))
        kept, said = ORIGIN.subn("", err)
        assert said <= 1
        return ended.value.code, out, kept

    return go

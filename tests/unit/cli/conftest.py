"""`wal-agent ARGS` in this process, for the tests of commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.unit.cli.shelf import Run
from wal_agent.cli.main import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`wal-agent ARGS` in this process: exit code, stdout, stderr."""
    workspace = tmp_path / "shop"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    for name in [n for n in os.environ if n.startswith(("WAL_AGENT_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def go(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["wal-agent", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return go

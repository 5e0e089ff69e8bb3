"""`wal-agent ARGS` in this process, in a project that a stranger wrote; nothing of its output is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from wal_agent.cli.main import main


@dataclass
class Clone:
    """A person's machine with somebody else's project on it; the person stands in it."""

    folder: Path
    home: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    @property
    def file(self) -> Path:
        return self.folder / "wal-agent.toml"

    def says(self, text: str) -> None:
        self.file.write_text(text + "\n")

    def prompt(self, name: str, text: str) -> None:
        path = self.folder / ".wal-agent/prompts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def person(self, text: str) -> Path:
        """The person's own file says so."""
        path = self.home / ".config/wal-agent/wal-agent.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        return path

    def run(self, *args: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        self.monkeypatch.setattr(sys, "argv", ["wal-agent", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *self.capsys.readouterr()

    def process(self, *args: str) -> tuple[int, str, str]:
        """The same in a process of its own: what takes signals, or starts an agent."""
        done = subprocess.run(
            [sys.executable, "-m", "wal_agent", *args],
            cwd=self.folder,
            env={**self.env, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    @property
    def env(self) -> dict[str, str]:
        return dict(os.environ)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Clone]:
    root = tmp_path.resolve()
    folder = root / "clone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in [n for n in os.environ if n.startswith(("WAL_AGENT_", "XDG_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(root / "home"))
    runtime = Path(tempfile.mkdtemp(prefix="wa-"))  # short: a socket's path is
    monkeypatch.setenv("WAL_AGENT_RUNTIME_DIR", str(runtime))
    yield Clone(folder, root / "home", monkeypatch, capsys)
    shutil.rmtree(runtime, ignore_errors=True)

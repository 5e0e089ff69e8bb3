"""A scratch home, workspace and bucket for benches that run whole commands."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.stub_agent import STUB


@dataclass(frozen=True, slots=True)
class Story:
    root: Path
    bucket: str
    reach: Mapping[str, str]  # what a process needs to get to the bucket

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def stub(self) -> Path:
        return self.root / "stub"

    def env(self, **more: str) -> dict[str, str]:
        kept = {k: os.environ[k] for k in ("PATH", "LANG") if k in os.environ}
        return {
            **kept,
            "HOME": str(self.home),
            "WAL_AGENT_BUCKET": self.bucket,
            "WAL_AGENT_RUNTIME_DIR": str(self.root / "run"),
            "WAL_AGENT_UNVERIFIED": "allow",  # the stub does not go on where it is asked to look
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "STUB_BEGAN": str(self.root / "began"),
            **self.reach,
            **more,
        }

    def until_agent(self, argv: list[str], **more: str) -> float:
        """Milliseconds from starting `argv` to the stub's first instruction."""
        began = time.time_ns()
        subprocess.run(
            argv, cwd=self.work, env=self.env(**more), stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
        return (int((self.root / "began").read_text().split()[-1]) - began) / 1e6


def wal_agent(*args: str) -> list[str]:
    return [sys.executable, "-m", "wal_agent", "run", "gemini", "--job=gemini-work", "--", *args]


@contextmanager
def story(bucket: str = "", reach: Mapping[str, str] = MappingProxyType({})) -> Iterator[Story]:
    """An empty home and workspace; the bucket is a folder of its own where none is named."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        made = Story(Path(folder), bucket or f"file://{folder}/bucket", reach)
        (made.home / ".gemini").mkdir(parents=True)
        (made.home / ".gemini" / "settings.json").write_text(
            '{"security": {"auth": {"selectedType": "gemini-api-key"}}}\n'
        )
        made.work.mkdir()
        made.stub.write_text(STUB)
        made.stub.chmod(0o755)
        yield made

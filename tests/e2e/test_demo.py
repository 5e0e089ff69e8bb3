"""`wal-agent demo`: the story plays to its end, and everything that it promises holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_story_holds(tmp_path: Path, gemini_cli: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "WAL_AGENT_GEMINI": str(gemini_cli)}
    done = subprocess.run(
        [sys.executable, "-m", "wal_agent", "demo"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "Everything held" in done.stderr, done.stderr
    assert "FAILED" not in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("wal-agent-demo-*")), "it leaves nothing behind"

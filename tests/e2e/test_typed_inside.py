"""Commands that a tool types inside a run find that run's job, whatever bucket, name and key it was started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import once
from wal_agent import wording

# The command that the standing protocol names to an agent without a plan tool.
PLAN = next(part for part in (wording.FOLDER / "protocol.md").read_text().split("`") if part.startswith("printf"))
SCRIPT = f"""
w() {{ {sys.executable} -m wal_agent "$@"; }}
set -e
w checkpoint --title "the heron sleeps" --progress 40
{PLAN.replace("wal-agent", "w")}
w checkpoint show
w checkpoint list
w recall heron
w status
"""


@pytest.mark.parametrize("encrypted", once([False, True], True))
def test_commands_inside_a_run_need_no_options(tmp_path: Path, encrypted: bool) -> None:
    work, key = tmp_path / "work", tmp_path / "key"
    (work / "below").mkdir(parents=True)
    key.touch(mode=0o600)
    key.write_text(os.urandom(32).hex() + "\n")
    (work / "job.sh").write_text(f"cd below\n{SCRIPT}")
    options = ["--encryption-key-file", "../key"] if encrypted else []
    runtime = Path(f"/tmp/wt-{os.getpid()}-{int(encrypted)}")
    bucket = (tmp_path / "other").as_uri()
    argv = [sys.executable, "-m", "wal_agent", "run", "generic", "--bucket", bucket, "--job", "odd", *options]
    done = subprocess.run(
        [*argv, "--", "sh", "job.sh"],
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "WAL_AGENT_RUNTIME_DIR": str(runtime)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the heron sleeps") == 4 and "40 %" in done.stdout and "running" in done.stdout
    assert "[x] DONE\n" in done.stdout and "[ ] NEXT\n" in done.stdout
    indexes = list((tmp_path / "home").rglob("*.sqlite"))
    assert len(indexes) == (0 if encrypted else 1)

"""`wal-agent demo`: the story plays to its end with each agent, and everything that it promises holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiers import deep
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.agents.copilot.hooks import program_cache

HOOKED = [name for name, agent in AGENTS.items() if rehearsal_of(agent) is not None]


@deep
@pytest.mark.parametrize("agent", HOOKED)
def test_the_story_holds(tmp_path: Path, agent: str, agent_cli: Callable[[str], Path]) -> None:
    program = {f"WAL_AGENT_{agent.upper()}": str(agent_cli(agent))}
    unpacked = {"COPILOT_PKG_CACHE_HOME": str(program_cache(os.environ))}  # 235 MB otherwise, in each HOME anew
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **program, **unpacked}
    argv = [sys.executable, "-m", "wal_agent", "demo", "--agent", agent]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Everything held" in done.stderr, done.stderr
    assert "FAILED" not in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("demo-of-wal-*")), "it leaves nothing behind"


@deep
def test_the_story_of_a_task_holds(tmp_path: Path, agent_cli: Callable[[str], Path]) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "WAL_AGENT_GEMINI": str(agent_cli("gemini"))}
    argv = [sys.executable, "-m", "wal_agent", "demo", "--story", "task"]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Everything held" in done.stderr and "FAILED" not in done.stderr, done.stderr

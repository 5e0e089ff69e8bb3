"""`wal-agent agents --check`: what a description says and does not hold is named. That all holds of a true one is in
test_how_to.py."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import once

ROOT = Path(__file__).resolve().parents[2]
LIES = {
    "prompt": ('short = "p=prompt"', 'short = "r=resume"', "hold the prompt"),
    "session": ('main = "{session}.jsonl"', 'main = "{session}.json"', "main file"),
    "start-of-a-tool": ("PreToolUse =", "BeforeTool =", "denied"),
    "end-of-a-tool": ("PostToolUse =", "AfterTool =", "its end behind it"),
    "result": ('where = { type = "result" }, id = "id"', 'where = { type = "result" }, id = "call"', "call's end"),
    "resume": ('session = ["resume"]', 'session = ["continue"]', "resume"),
    "turn": ("Stop =", "End =", "turn's end"),
    "refused": (r"\Awal-agent did not run this", r"\Awal-agent refused this", "record is read as refused"),
    "input-of-a-hook": (
        "PreToolUse = {",
        'PreToolUse = { input = "args",',
        'nothing is at input = "args";',
    ),
    "result-of-a-hook": (
        'PostToolUse = { means = "tool_ended"',
        'PostToolUse = { means = "tool_ended", result = "out"',
        "tells what a tool printed",
    ),
    "result-in-the-session": ('result = "output"', 'result = "out"', "read as refused"),
    "time": ('time = "timestamp"', 'time = "id"', "of the clock"),
    "tools": ('tools_of = "claude"', 'tools_of = "gemini"', "shell"),
}


@pytest.mark.parametrize("lie", once(LIES, "end-of-a-tool"))
def test_what_does_not_hold_is_named(lie: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/add-an-agent.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    old, new, claim = LIES[lie]
    assert text.count(old) == 1
    file, program = tmp_path / "toy.toml", tmp_path / "bin/toy"
    file.write_text(text.replace(old, new))
    file.chmod(0o644)
    program.parent.mkdir()
    shutil.copy(ROOT / "tests/toy.py", program)
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "wal_agent", "agents", "--check", str(file), "--json"],
        env={**env, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 78, done.stderr
    failed = [f"{proof['what']}: {proof['detail']}" for proof in json.loads(done.stdout)["proofs"] if not proof["ok"]]
    assert any(claim in what for what in failed), failed
    assert not any("a bug in wal-agent" in what for what in failed), failed
    assert not (tmp_path / ".toy").exists(), "it uses a scratch HOME"

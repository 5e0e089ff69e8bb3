"""The shell line, run by bash as Qwen Code runs it, without Qwen: only exit code 2 with words on stderr, or a deny in
JSON, keeps a tool from running."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from wal_agent.agents.base import HookSetup
from wal_agent.agents.hook_line import GONE
from wal_agent.agents.qwen.line import MARKER, hook_line

CLIENTS = {
    "missing": None,
    "not a program": "garbage",
    "fails": "exit 1",
    "is killed": "kill -9 $$",
    "kills its shell": "kill -9 $PPID",
    "says nothing": "exit 0",
    "says half": "printf 'wal-agent:all'",
    "says too much": "printf 'noise wal-agent:allow\\0'",
}


def outcome(tmp_path: Path, event: str, client: str | None, **env: str) -> tuple[int, str, str]:
    program = tmp_path / "client"
    if client is not None:
        program.write_text(f"#!/bin/bash\n{client}\n")
        program.chmod(0o755)
    line = hook_line(HookSetup("r1", tmp_path, (str(program),)), event)
    path = {"PATH": os.environ["PATH"], **env}
    done = subprocess.run(["bash", "-c", line], env=path, input="{}", capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def blocks(code: int, out: str, err: str) -> bool:
    """As the real program reads it (0.15.10: hookRunner)."""
    if code == 2:
        return err.strip() != ""
    try:
        return json.loads(out.strip() or err.strip())["decision"] in ("deny", "block")
    except (ValueError, TypeError, LookupError):
        return False


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_every_broken_client_blocks_the_tool_and_nothing_else(client: str | None, tmp_path: Path) -> None:
    told = outcome(tmp_path, "PreToolUse", client, **{MARKER: "r1"})
    assert blocks(*told) and GONE in told[1] + told[2]
    assert not blocks(*outcome(tmp_path, "PostToolUse", client, **{MARKER: "r1"}))
    code, out, _ = outcome(tmp_path, "UserPromptSubmit", client, **{MARKER: "r1"})
    assert (code, out) == (0, ""), "a prompt is never kept back"


def test_an_allow_is_silent_and_a_deny_is_passed_on(tmp_path: Path) -> None:
    env = {MARKER: "r1"}
    assert outcome(tmp_path, "PreToolUse", "printf 'wal-agent:allow\\0'", **env) == (0, "", "")
    deny = '{"decision": "deny", "reason": "because"}'
    assert outcome(tmp_path, "PreToolUse", f"printf '%s\\0' 'wal-agent:say {deny}'", **env) == (0, deny, "")


def test_in_a_qwen_of_nobodys_it_leaves(tmp_path: Path) -> None:
    assert outcome(tmp_path, "PreToolUse", None) == (0, "", "")
    assert outcome(tmp_path, "PreToolUse", None, **{MARKER: "r2"}) == (0, "", "")

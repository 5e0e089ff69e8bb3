"""selftest: what goes wrong in a proof is a failed proof (the proofs themselves are made in tests/e2e)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wal_agent.agents import AGENTS
from wal_agent.paths import launchers
from wal_agent.rehearsal import selftest


def test_a_run_that_does_not_end_is_a_failed_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SECONDS", 0.01)
    program = endless(tmp_path)
    proofs = selftest.prove(AGENTS["gemini"], {"PATH": os.environ["PATH"], "WAL_AGENT_GEMINI": str(program)})
    assert [(p.what, p.ok, p.detail) for p in proofs] == [
        (what, False, "did not end within 0.01 s") for what in (selftest.ALLOW, selftest.DENY)
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_a_proof_ends_its_agents_too(tmp_path: Path, number: signal.Signals) -> None:
    """Nothing of a proof goes on, or stays on the disk but after SIGKILL; the signal has its own effect."""
    if number == signal.SIGKILL and sys.platform != "linux":
        return  # no other system ends a child with its parent
    program, temp = endless(tmp_path), tmp_path / "temp"
    temp.mkdir()
    code = (
        "import os; from wal_agent.agents import AGENTS; from wal_agent.rehearsal.selftest import prove; "
        "prove(AGENTS['gemini'], os.environ)"
    )
    env = {**os.environ, "WAL_AGENT_GEMINI": str(program), "TMPDIR": str(temp)}
    proof = subprocess.Popen([sys.executable, "-c", code], env=env)
    try:
        until(lambda: sum(p.stat().st_size > 0 for p in tmp_path.glob("pid.*")) == 2)
        proof.send_signal(number)
        assert proof.wait(60) == -number
    finally:
        proof.kill()
        proof.wait()
    until(lambda: not any(alive(int(p.read_text())) for p in tmp_path.glob("pid.*")))
    if number != signal.SIGKILL:
        assert [*temp.iterdir()] == []


def endless(folder: Path) -> Path:
    """An agent that only tells its pid, in a file beside it."""
    program = folder / "gemini"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo {AGENTS["gemini"].tested} && exit\n'
        'echo $$ >"$(dirname "$0")/pid.$$"\nexec sleep 600\n'
    )
    program.chmod(0o755)
    return program


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Zombies are not."""
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return said.strip() != "" and not said.startswith("Z")


def test_a_program_that_needs_more_than_the_path_is_found_from_a_home_of_its_own(tmp_path: Path) -> None:
    """And one that does not even start is told apart from one whose hooks do not hold."""
    (tmp_path / ".volta").mkdir()
    program = tmp_path / "gemini"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo {AGENTS["gemini"].tested} && exit\n'
        'echo "volta=$VOLTA_HOME key=$GEMINI_API_KEY"; exit 127\n'
    )
    program.chmod(0o755)
    keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    proofs = selftest.prove(
        AGENTS["gemini"], {**keep, "HOME": str(tmp_path), "WAL_AGENT_GEMINI": str(program), "MISE_X": "1"}
    )
    assert [(p.ok, type(p)) for p in proofs] == [(False, selftest.Unreached)] * 2
    assert f"volta={tmp_path}/.volta" in proofs[0].detail and "127" in proofs[0].detail


def test_an_agent_without_a_rehearsal_is_a_failed_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` of an agent that somebody adds was a bug report, 70."""
    monkeypatch.setattr(selftest, "rehearsal_of", lambda _: None)
    (proof,) = selftest.prove(AGENTS["gemini"], {})
    assert not proof.ok and "docs/how-to/add-an-agent.md" in proof.detail
    assert selftest.prove(AGENTS["generic"], {}) == []


def test_what_launchers_go_by(tmp_path: Path) -> None:
    (tmp_path / ".asdf").mkdir()
    env = {"HOME": str(tmp_path), "NVM_DIR": "/n", "LD_LIBRARY_PATH": "/l", "OPENAI_API_KEY": "k", "GEMINI_DIR": "g"}
    assert launchers(env) == {"ASDF_DATA_DIR": f"{tmp_path}/.asdf", "NVM_DIR": "/n", "LD_LIBRARY_PATH": "/l"}

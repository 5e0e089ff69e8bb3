"""Proves on the real CLI, against a scripted model on loopback, that an allow passes and a deny blocks (I1, I5).

It runs the whole of `wal-agent run` twice in a scratch home, so it proves hooks, socket, log and refusal together. No
key and no network are needed; nothing of the user's is read or changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.bucket.fault_file import FaultFile, write_faults
from wal_agent.loopback.gemini import GeminiModel
from wal_agent.loopback.model import Turn

SECONDS = 90.0
ALLOW = "an allowed tool call runs"
DENY = "a denied tool call does not run, and the agent is told why"


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that was shown, or not. `detail` says what happened instead."""

    what: str
    ok: bool
    detail: str = ""


def prove_gemini(env: Mapping[str, str]) -> list[Proof]:
    """Run both arms; `env` is the user's (PATH, WAL_AGENT_GEMINI)."""
    with tempfile.TemporaryDirectory(prefix="wal-agent-doctor-") as folder:
        return [_in_time(ALLOW, _allow, Path(folder) / "allow", env), _in_time(DENY, _deny, Path(folder) / "deny", env)]


def _in_time(what: str, arm: Callable[[Path, Mapping[str, str]], Proof], root: Path, env: Mapping[str, str]) -> Proof:
    try:
        return arm(root, env)
    except subprocess.TimeoutExpired:
        return Proof(what, False, f"did not end within {SECONDS:g} s")


def _allow(root: Path, env: Mapping[str, str]) -> Proof:
    with GeminiModel(_turns(None)) as model:
        done = _run(root, env, model, {})
    ran = (root / "work" / "touched").exists()
    ok = ran and done.returncode == 0
    return Proof(ALLOW, ok, "" if ok else _said(done))


def _deny(root: Path, env: Mapping[str, str]) -> Proof:
    """The bucket stops taking records when the model answers, so the call's intent cannot be saved."""
    root.mkdir()
    faults, hold = root / "faults.json", threading.Event()
    with GeminiModel(_turns(hold)) as model:

        def outage() -> None:
            with suppress(OSError):  # no request came in time, or the folder is gone: the proof has failed by itself
                model.wait_for(1, SECONDS)
                write_faults(faults, FaultFile(down=True, ops=("put",), prefixes=("doctor/log/",)))
                hold.set()
                model.wait_for(2, SECONDS)
                faults.unlink()

        helper = threading.Thread(target=outage, daemon=True)
        helper.start()
        more = {"WAL_AGENT_BUCKET_FAULTS": str(faults), "WAL_AGENT_APPEND_DEADLINE": "0.5"}
        done = _run(root, env, model, more)
        answered = any("wal-agent did not run this" in str(request) for request in model.requests)
    ran = (root / "work" / "touched").exists()
    ok = answered and not ran
    why = "the tool ran although its intent was not saved" if ran else _said(done)
    return Proof(DENY, ok, "" if ok else why)


def _turns(hold: threading.Event | None) -> list[Turn]:
    call = ("run_shell_command", {"command": "touch touched"})
    return [Turn(text="Trying.", calls=[call], hold=hold), Turn(text="Done.")]


def _run(
    root: Path, env: Mapping[str, str], model: GeminiModel, more: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    home, work = root / "home", root / "work"
    (home / ".gemini").mkdir(parents=True)
    work.mkdir()
    (home / ".gemini" / "settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    kept = {k: env[k] for k in ("PATH", "LANG", "WAL_AGENT_GEMINI", "PYTHONPATH") if k in env}
    scratch = {
        **kept,
        **model.env,
        "HOME": str(home),
        "WAL_AGENT_BUCKET": f"file://{root}/bucket",
        "WAL_AGENT_JOB": "doctor",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        **more,
    }
    argv = [sys.executable, "-m", "wal_agent", "run", "gemini", "--", "--yolo", "--prompt", "self-test"]
    return subprocess.run(
        argv,
        cwd=work,
        env=scratch,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _said(done: subprocess.CompletedProcess[str]) -> str:
    last = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()][-3:]
    return f"exit {done.returncode}{os.linesep}" + os.linesep.join(last)

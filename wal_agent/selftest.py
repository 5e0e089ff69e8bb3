"""Proves on the real CLI, against a scripted model on loopback, that an allow passes and a deny blocks (I1, I5).

It runs the whole of `wal-agent run` twice in a scratch home, so it proves hooks, socket, log and refusal together. No
key and no network are needed; nothing of the user's is read or changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.agents.base import Agent, Rehearsal
from wal_agent.bucket.fault_file import FaultFile, write_faults
from wal_agent.loopback.model import Model, Turn

SECONDS = 180.0  # a laden machine is no proof of anything
IN_PROOF = "WAL_AGENT_IN_PROOF"  # set for the runs of a proof, which must not begin one themselves
ALLOW = "an allowed tool call runs"
DENY = "a denied tool call does not run, and the agent is told why"


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that was shown, or not. `detail` says what happened instead."""

    what: str
    ok: bool
    detail: str = ""


def prove(agent: Agent, env: Mapping[str, str]) -> list[Proof]:
    """Run both arms, at the same time; `env` is the user's (PATH, WAL_AGENT_<AGENT>). Nothing for an agent that has no
    hooks to prove."""
    rehearsal = agent.rehearsal()
    if rehearsal is None:
        return []
    with tempfile.TemporaryDirectory(prefix="wal-agent-doctor-") as folder:
        stages = (Stage(agent, rehearsal, Path(folder) / name, env) for name in ("allow", "deny"))
        with ThreadPoolExecutor() as both:
            return [*both.map(_in_time, (ALLOW, DENY), (_allow, _deny), stages)]


@dataclass(frozen=True, slots=True)
class Stage:
    """One arm's scratch folder, and what is run in it. `env` is the user's."""

    agent: Agent
    rehearsal: Rehearsal
    root: Path
    env: Mapping[str, str]

    def model(self, hold: threading.Event | None) -> Model:
        call = self.rehearsal.shell("touch touched")
        return Model(self.rehearsal.dialect, [Turn("Trying.", [call], hold=hold), Turn("Done.")])

    @property
    def ran(self) -> bool:
        return (self.root / "work" / "touched").exists()

    def run(self, model: Model, more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        home, work = self.root / "home", self.root / "work"
        for folder in (home, work):
            folder.mkdir(parents=True)
        needed = self.rehearsal.home(home, work, model.url)
        program = f"WAL_AGENT_{self.agent.name.upper()}"
        ours = ("PATH", "LANG", program, "PYTHONPATH", "WAL_AGENT_RUNTIME_DIR")
        kept = {k: self.env[k] for k in ours if k in self.env}
        scratch = {
            **kept,
            **needed,
            "HOME": str(home),
            "WAL_AGENT_BUCKET": f"file://{self.root}/bucket",
            "WAL_AGENT_JOB": "doctor",
            IN_PROOF: "1",
            **more,
        }
        name, args = self.agent.name, self.rehearsal.args("self-test")
        return subprocess.run(
            [sys.executable, "-m", "wal_agent", "run", name, "--", *args],
            cwd=work,
            env=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def _in_time(what: str, arm: Callable[[Stage], Proof], stage: Stage) -> Proof:
    try:
        return arm(stage)
    except subprocess.TimeoutExpired:
        return Proof(what, False, f"did not end within {SECONDS:g} s")


def _allow(stage: Stage) -> Proof:
    with stage.model(None) as model:
        done = stage.run(model, {})
    ok = stage.ran and done.returncode == 0
    return Proof(ALLOW, ok, "" if ok else _said(done))


def _deny(stage: Stage) -> Proof:
    """The bucket stops taking records when the model answers, so the call's intent cannot be saved."""
    stage.root.mkdir()
    faults, hold = stage.root / "faults.json", threading.Event()
    with stage.model(hold) as model:

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
        done = stage.run(model, more)
        answered = any("wal-agent did not run this" in json.dumps(request) for request in model.requests)
    ok = answered and not stage.ran
    why = "the tool ran although its intent was not saved" if stage.ran else _said(done)
    return Proof(DENY, ok, "" if ok else why)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    last = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()][-3:]
    return f"exit {done.returncode}{os.linesep}" + os.linesep.join(last)

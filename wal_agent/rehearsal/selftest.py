"""Proves on the real CLI, against a scripted model on loopback, that an allow passes and a deny blocks (I1, I5).

It runs the whole of `wal-agent run` twice in a scratch home, so it proves hooks, socket, log and refusal together. No
key and no network are needed; nothing of the user's is read or changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from wal_agent.agents import rehearsal_of
from wal_agent.agents.base import Agent, Rehearsal
from wal_agent.answers import JsonAnswer
from wal_agent.paths import LAUNCH, PROGRAM, launchers
from wal_agent.rehearsal.model import Model, Turn

SECONDS = 180.0  # a laden machine is no proof of anything
IN_PROOF = "WAL_AGENT_IN_PROOF"  # the folder of a proof's run, which must not begin a proof itself
_PREFIX = "wal-agent-doctor-"
_GRACE = 2.0  # seconds for killed processes to be gone, before their folder is removed
ALLOW = "an allowed tool call runs"
DENY = "a denied tool call does not run, and the agent reads why"
ALONE = "hooks in its settings that find no run refuse a tool call"


class Proof(msgspec.Struct, frozen=True):
    """One thing that was shown, or not. `detail` says what happened instead."""

    what: str
    ok: bool
    detail: str = ""


class Doctor(JsonAnswer, frozen=True):
    """`wal-agent doctor`. `ok`: every proof is."""

    ok: bool
    proofs: tuple[Proof, ...]


class DeniedProof(Proof, frozen=True):
    """A permission or credentials are missing, which is no fault of the setup."""


class Unreached(Proof, frozen=True):
    """The agent did not get as far as its model: nothing is known of its hooks."""


class NotShown(Proof, frozen=True):
    """What nothing here could show; `detail` says why. No failure, and no proof."""


def not_shown(what: str, why: str) -> NotShown:
    return NotShown(what, True, f"not shown: {why}")


def prove(agent: Agent, env: Mapping[str, str], denied: Callable[[Stage], Proof] | None = None) -> list[Proof]:
    """Run all arms, at the same time; `env` is the user's (PATH, WAL_AGENT_<AGENT>). Nothing for an agent that has no
    hooks to prove. `denied`: what else is to be proven where a call was denied."""
    rehearsal = rehearsal_of(agent)
    if rehearsal is None and agent.capabilities.hookless is None:
        missing = f"{agent.name} has no rehearsal module (docs/how-to/add-an-agent.md)"
        return [Proof(f"{agent.name}'s hooks were tried", False, missing)]
    if rehearsal is None:
        return []
    groups = Groups()
    with (
        _ended_by_signals(groups),
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor() as both,
    ):
        arms = {ALLOW: _allow, DENY: _deny} | ({ALONE: _alone} if rehearsal.hooks_alone else {})
        stages = [Stage(agent, rehearsal, Path(folder) / arm.__name__, env, groups) for arm in arms.values()]
        proofs = [*both.map(_in_time, arms, arms.values(), stages)]
        if denied is not None and all(proof.ok for proof in proofs):
            proofs.append(denied(stages[list(arms).index(DENY)]))
        return proofs


def in_proof(env: Mapping[str, str]) -> bool:
    """Whether this is the run of a proof: only in a proof's own folder, so that no setting switches proofs off."""
    root = Path(env.get(IN_PROOF, ""))
    own = root.is_absolute() and root.parent.name.startswith(_PREFIX) and root.is_dir()
    return own and env.get("HOME") == str(root / "home")


class Groups:
    """Programs that run in process groups of their own, which end with us however we end."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # `stop` runs in a signal handler, and another one may come into it
        self._running: list[subprocess.Popen[bytes]] = []
        self._over = False

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], said: Path) -> int:
        """The exit code; what it said goes into a file: a pipe would stay open with whoever outlives it.
        TimeoutExpired."""
        # Linux ends it with the thread that starts it, which is this one, also when we are killed.
        tied = [sys.executable, "-I", "-S", "-E", str(LAUNCH), str(os.getpid()), "--", *argv]
        with said.open("wb") as out:
            with self._lock:
                if self._over:
                    return -signal.SIGKILL
                null = subprocess.DEVNULL
                program = subprocess.Popen(
                    tied, cwd=cwd, env=env, stdin=null, stdout=out, stderr=out, start_new_session=True
                )
                self._running.append(program)
            try:
                return program.wait(SECONDS)
            finally:
                _end(program)
                with self._lock:
                    self._running.remove(program)

    def stop(self) -> None:
        """Also what has not begun."""
        with self._lock:
            self._over = True
            for program in self._running:
                with suppress(OSError):
                    os.killpg(program.pid, signal.SIGKILL)


def _end(program: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # nobody is left
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        limit = time.monotonic() + _GRACE
        while time.monotonic() < limit:
            os.killpg(program.pid, 0)
            time.sleep(0.01)


@contextmanager
def _ended_by_signals(groups: Groups) -> Iterator[None]:
    """A signal ends the groups; when all is cleaned up, it has its own effect."""
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        groups.stop()

    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        groups.stop()
        for known, handler in before.items():
            signal.signal(known, handler)  # type: ignore[arg-type]
        if came:
            os.kill(os.getpid(), came[0])
            raise SystemExit(128 + came[0])


@dataclass(frozen=True, slots=True)
class Stage:
    """One arm's scratch folder, and what is run in it. `env` is the user's."""

    agent: Agent
    rehearsal: Rehearsal
    root: Path
    env: Mapping[str, str]
    groups: Groups = field(default_factory=Groups)
    needed: dict[str, str] = field(default_factory=dict)  # variables that the agent needs in this home

    def model(self, hold: threading.Event | None) -> Model:
        call = self.rehearsal.shell("touch touched")
        return Model(self.rehearsal.dialect, [Turn("Trying.", [call], hold=hold), Turn("Done.")])

    @property
    def ran(self) -> bool:
        return (self.root / "work" / "touched").exists()

    def run(self, model: Model, more: Mapping[str, str], bare: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        home, work = self.root / "home", self.root / "work"
        for folder in (home, work):
            folder.mkdir(parents=True)
        self.needed.update(self.rehearsal.home(home, work, model.url))
        program = f"WAL_AGENT_{self.agent.name.upper()}"
        ours = ("PATH", "LANG", program, "PYTHONPATH", "WAL_AGENT_RUNTIME_DIR")
        kept = {k: self.env[k] for k in ours if k in self.env}
        scratch = {
            **launchers(self.env),
            **kept,
            **self.needed,
            "HOME": str(home),
            "WAL_AGENT_BUCKET": f"file://{self.root}/bucket",
            "WAL_AGENT_JOB": "doctor",
            IN_PROOF: str(self.root),
            **more,
        }
        name, args = self.agent.name, self.rehearsal.args("self-test")
        said = self.root / "said"
        code = self.groups.run([*(bare or (*PROGRAM, "run", name, "--")), *args], work, scratch, said)
        return subprocess.CompletedProcess(args, code, said.read_text(errors="replace"))


def _in_time(what: str, arm: Callable[[Stage], Proof], stage: Stage) -> Proof:
    try:
        return arm(stage)
    except subprocess.TimeoutExpired:
        return Proof(what, False, f"did not end within {SECONDS:g} s")


def _allow(stage: Stage) -> Proof:
    with stage.model(None) as model:
        done = stage.run(model, {})
    ok = stage.ran and done.returncode == 0
    return (Proof if ok or model.requests else Unreached)(ALLOW, ok, "" if ok else _said(done))


def _deny(stage: Stage) -> Proof:
    """The bucket goes away when the model answers, as a disk does, so the call's intent cannot be saved."""
    bucket, away, hold = stage.root / "bucket", stage.root / "away", threading.Event()
    with stage.model(hold) as model:

        def outage() -> None:
            with suppress(OSError):  # no request came in time, or the folder is gone: the proof has failed by itself
                model.wait_for(1, SECONDS)
                bucket.rename(away)
                hold.set()
                model.wait_for(2, SECONDS)
                away.rename(bucket)

        helper = threading.Thread(target=outage, daemon=True)
        helper.start()
        done = stage.run(model, {"WAL_AGENT_APPEND_DEADLINE": "0.5"})
    ok = _refused(model) and not stage.ran
    why = "the tool ran although its intent was not saved" if stage.ran else _said(done)
    return (Proof if ok or model.requests else Unreached)(DENY, ok, "" if ok else why)


def _alone(stage: Stage) -> Proof:
    with stage.model(None) as model:
        done = stage.run(model, stage.rehearsal.hooks_alone, [str(stage.agent.locate(stage.env).path)])
    ok = _refused(model) and not stage.ran
    return (Proof if ok or model.requests else Unreached)(ALONE, ok, "" if ok else _said(done))


def _refused(model: Model) -> bool:
    return any("wal-agent did not run this" in json.dumps(request) for request in model.requests)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    last = [line for line in done.stdout.splitlines() if line.strip()][-3:]
    return f"exit {done.returncode}{os.linesep}" + os.linesep.join(last)

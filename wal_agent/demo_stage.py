"""The stage of `wal-agent demo`: a scratch machine with a shop's repository, its remote, a bucket, and a death."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from wal_agent.agents.base import Agent, Rehearsal
from wal_agent.bucket import open_bucket
from wal_agent.rehearsal.model import Model
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

ROUNDS = 5  # of ending what runs, until there is nothing
SECONDS = 180.0  # after which a thing that should have happened counts as not happening
SCRIPT = """\
#!/bin/sh
echo "charged $1" >> ledger.txt
sleep 300            # the slow half: here the machine dies
echo "receipt sent" >> ledger.txt
"""
RULES = """\
| Tool / Operation | Idempotent? | Verify With | On Ambiguity |
|---|---|---|---|
| `./charge.sh` | No. Each run charges the customer again | `cat ledger.txt` | ask the shop's owner |
"""


@dataclass
class Stage:
    """`failed` collects what did not hold; `work` is the folder that the job is in now."""

    root: Path
    runtime: Path  # for the hooks' socket, whose path must be short
    env: Mapping[str, str]
    show: Callable[[str], None]
    task: str
    agent: Agent
    rehearsal: Rehearsal
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._needed: dict[Path, dict[str, str]] = {}  # by home
        self.work = self.root / "shop"
        self.remote = self.root / "origin.git"
        self.bucket = self.root / "bucket"
        self.work.mkdir()
        (self.work / "README.md").write_text("A small shop.\n")
        (self.work / "GEMINI.md").write_text(RULES)
        script = self.work / "charge.sh"
        script.write_text(SCRIPT)
        script.chmod(0o755)
        self.git("init", "-q", "--bare", str(self.remote))
        (self.remote / "logs").mkdir()
        self.git("--git-dir", str(self.remote), "config", "core.logAllRefUpdates", "true")
        self.git("init", "-q")
        for name, value in (("user.name", "demo"), ("user.email", "demo@example.invalid")):
            self.git("config", name, value)
        self.git("symbolic-ref", "HEAD", "refs/heads/main")
        self.git("add", "-A")
        self.git("commit", "-qm", "A small shop")
        self.git("remote", "add", "origin", str(self.remote))
        self.git("push", "-q", "origin", "main")

    def git(self, *words: str) -> str:
        kept = {name: value for name, value in self.env.items() if not name.startswith("GIT_")}
        env = {**kept, "HOME": str(self.root), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *words], cwd=self.work, check=True, env=env, stdout=subprocess.PIPE, text=True)
        return done.stdout

    # ---- what happens

    def home(self, name: str) -> Path:
        home = self.root / name
        home.mkdir()
        return home

    def start(self, home: Path, model: Model) -> subprocess.Popen[str]:
        name, args = self.agent.name, self.rehearsal.args(self.task)
        argv = ["run", name, "--bucket", f"file://{self.bucket}", "--", *args]
        self.show("$ wal-agent " + shlex.join(argv))
        return subprocess.Popen(
            [sys.executable, "-m", "wal_agent", *argv],
            cwd=self.work,
            env=self.machine(home, model),
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def machine(self, home: Path, model: Model) -> dict[str, str]:
        """The environment on the machine with this home."""
        kept = ("PATH", "LANG", "TERM", f"WAL_AGENT_{self.agent.name.upper()}", "PYTHONPATH")
        if home not in self._needed:  # written once: its agent may be reading them later on
            self._needed[home] = self.rehearsal.home(home, self.work, model.url)
        return {
            **{k: self.env[k] for k in kept if k in self.env},
            **self._needed[home],
            "HOME": str(home),
            "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
        }

    def die(self, run: subprocess.Popen[str], home: Path) -> None:
        """The machine: the wrapper first, so that the log hears nothing more, then all that it left."""
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        end_all(home)

    def lose(self, folder: Path) -> None:
        """At once: what a process that is just dying still writes there must not hold it."""
        gone = folder.with_name(f"{folder.name}.lost")
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def wait(self, what: str, test: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not test():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {SECONDS:.0f} s in vain until {what}")
            time.sleep(0.05)

    # ---- what is true

    def state(self) -> State:
        """What the log says."""
        bucket = open_bucket(f"file://{self.bucket}")
        try:
            return replay(bucket, Keys(f"{self.agent.name}-shop")).state
        finally:
            bucket.close()

    def all_saved(self, home: Path, model: Model) -> bool:
        """The log has the conversation with every call so far, and the tree with what they did."""
        state = self.state()
        tree, main = state.workspace, state.files.get(self.agent.main_file)
        whole = not state.unsettled and tree is not None and tree.holds == state.next_call - 1
        return whole and main is not None and main.size == len(self.session(home, model))

    def session(self, home: Path, model: Model) -> bytes:
        """The session's main file on the machine with this home."""
        files = self.agent.session_files(self.state().session, self.work, self.machine(home, model))
        return files[0].path.read_bytes() if files else b""

    def charged(self, home: Path, model: Model, before: str) -> bool:
        """The slow half of the charge runs, and the log has the tree and the conversation up to the call that names
        `before`: Copilot writes its session in pieces, a second late, and the first has not even the task."""
        state = self.state()
        session, main = self.session(home, model), state.files.get(self.agent.main_file)
        told = main is not None and main.size == len(session) and before.encode() in session
        return bool(self.ledger() and state.workspace and told)

    def ledger(self) -> list[str]:
        path = self.work / "ledger.txt"
        return path.read_text().splitlines() if path.exists() else []

    def updates(self) -> int:
        """How often the remote's branch was moved."""
        return len((self.remote / "logs/refs/heads/main").read_text().splitlines())

    def landed(self) -> bool:
        """The remote took the second push, and git here knows it: not by the log of the ref, which it writes before the
        ref itself, and a death in between leaves a lock."""
        tracking = self.work / ".git/refs/remotes/origin/main"
        sent = (self.work / ".git/refs/heads/main").read_text()
        done = tracking.read_text() == sent and not tracking.with_name("main.lock").exists()
        return self.updates() == 2 and done

    def tree(self) -> dict[str, str]:
        """Every file of the shop by hash, and where git stands."""
        files = (p for p in self.work.rglob("*") if p.is_file() and ".git" not in p.relative_to(self.work).parts)
        found = {str(p.relative_to(self.work)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
        return {**found, "git status": self.git("status", "--porcelain", "-b"), "HEAD": self.git("rev-parse", "HEAD")}

    def check(self, what: str, held: bool) -> None:
        self.show(f"  {'held ' if held else 'FAILED'}  {what}")
        if not held:
            self.failed.append(what)


def end_all(home: Path) -> None:
    """End whatever still runs under a HOME that is, or is below, this one, and what it starts meanwhile; a machine that
    died runs nothing any more."""
    for _ in range(ROUNDS):
        alive = [process for process in of_home(home) if process.pid != os.getpid()]
        if not alive:
            return
        for process in alive:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=5)


def of_home(home: Path) -> Iterator[psutil.Process]:
    """All that run under a HOME that is, or is below, this one, whoever started them: those of one pretended machine.
    Git that saves a working tree is given no HOME, but its repository is below it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            env = process.environ()
            folders = (env.get("HOME") or "/", env.get("GIT_DIR") or "/")
            if any(Path(f).is_relative_to(home) for f in folders) and process.status() != psutil.STATUS_ZOMBIE:
                yield process

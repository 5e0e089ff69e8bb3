"""End to end: `wal-agent run AGENT` on the real CLI, a scripted model, a real folder bucket, real SIGKILL.

The agent is Codex where a test names none: its start costs a fifth of the others'. A `Machine` is one pretended
host: its own HOME, runtime folder and host id (so that a flock of the "other machine" means nothing here, as between
two real hosts). Tests wait for things that happen, never for time to pass.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.processes import command_line
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.cli.log import as_json, read_entries
from wal_agent.errors import UsageError
from wal_agent.rehearsal.demo import end_all, end_at_once
from wal_agent.rehearsal.dialects import Gemini, Responses
from wal_agent.rehearsal.model import Call, Called, HistoryText, Json, Model, Part, Returned, Turn
from wal_agent.safefs import flock_state
from wal_agent.supervise.rewrite import read_main
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseDoc, read_lease
from wal_agent.wal.reader import Replay, replay
from wal_agent.wal.store import JobStore

TTL = "6"  # seconds: as long is waited for a machine that was lost, and as long may one here stand still
PATIENCE = 240.0  # seconds after which a thing that should have happened counts as not happening


def until(what: Callable[[], Any], why: str, patience: float = PATIENCE) -> Any:
    """Poll until `what()` is truthy; give it. What takes long is asked less often: others want the processor."""
    end = time.monotonic() + patience
    while (now := time.monotonic()) < end:
        found = what()
        if found:
            return found
        time.sleep(max(0.02, time.monotonic() - now))
    raise AssertionError(f"waited {patience:.0f} s in vain: {why}")


USUAL = "codex"


def shell(command: str, agent: str = USUAL) -> Call:
    """A model's call of the agent's shell."""
    rehearsal = rehearsal_of(AGENTS[agent])
    assert rehearsal is not None
    return rehearsal.shell(command)


SETTINGS = {"codex": ".codex/config.toml", "gemini": ".gemini/settings.json"}


@dataclass
class Run:
    """A `wal-agent run` process."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def agent_pid(self, agent: str = USUAL) -> int:
        """The CLI's process, once it runs."""

        def find() -> int | None:
            for child in _children(self.pid):
                words = command_line(child)
                if words and not words.startswith("git ") and ("node" in words or agent in words):
                    return child.pid
            return None

        found: int = until(find, "the agent's process")
        return found

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def died(self) -> None:
        """It ended by SIGKILL: by `kill`, or at the failpoint that it was started with."""
        assert self.wait() == -signal.SIGKILL, self.stderr()

    def wait(self, patience: float = PATIENCE) -> int:
        return self.process.wait(patience)

    def stderr(self) -> str:
        return self.err.read_text()

    def stdout(self) -> str:
        return self.out.read_text()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


@dataclass
class Machine:
    """A host with its own HOME. `runs` numbers the output files."""

    root: Path
    name: str
    bucket: str
    model: Model
    program: Path
    workspace: Path
    kernel: str = ""  # machines with the same one are the same kernel with another HOME
    reach: dict[str, str] = field(default_factory=dict)  # how this machine gets to the store and to the model
    enter: tuple[str, ...] = ()  # command that a process of this machine is started through, e.g. into its network
    agent: str = USUAL
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home = self.root / self.name
        self.home.mkdir()
        rehearsal = rehearsal_of(AGENTS[self.agent])
        assert rehearsal is not None
        self.rehearsal = rehearsal
        self.agent_env = rehearsal.home(self.home, self.workspace, self.model.url)
        self.runtime = Path(f"/tmp/wa-{os.getpid()}-{abs(hash(str(self.home))) % 10**8}")

    @property
    def settings(self) -> Path:
        """The user's own."""
        return self.home / SETTINGS[self.agent]

    def env(self, **extra: str) -> dict[str, str]:
        base = {k: os.environ[k] for k in ("PATH", "LANG", "TERM", "PYTHONPATH") if k in os.environ}
        return {
            **base,
            **self.agent_env,
            "HOME": str(self.home),
            f"WAL_AGENT_{self.agent.upper()}": str(self.program),
            "WAL_AGENT_BUCKET": self.bucket,
            "WAL_AGENT_JOB": "job",
            "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
            "WAL_AGENT_HOST_ID": self.kernel or self.name,
            "WAL_AGENT_UNVERIFIED": "allow",  # most scripts end in doubt, and are about something else
            **self.reach,
            **extra,
        }

    def run(self, *args: str, options: Sequence[str] = (), wait: bool = False, **env: str) -> Run:
        """Start `wal-agent run AGENT OPTIONS -- ARGS`."""
        command = (sys.executable, "-m", "wal_agent", "run", self.agent, "--ttl", TTL, *options, "--", *args)
        argv = [*self.enter, *command]
        n = len(self.runs)
        out, err = self.root / f"{self.name}-{n}.out", self.root / f"{self.name}-{n}.err"
        with out.open("wb") as o, err.open("wb") as e:
            process = subprocess.Popen(
                argv, cwd=self.workspace, env=self.env(**env), stdin=subprocess.DEVNULL, stdout=o, stderr=e
            )
        run = Run(process, out, err)
        self.runs.append(run)
        if wait:
            run.wait()
        return run

    def ask(self, prompt: str, options: Sequence[str] = (), wait: bool = False, **env: str) -> Run:
        """Start a run whose agent asks no person, and ends when it has answered the prompt."""
        return self.run(*self.rehearsal.args(prompt), options=options, wait=wait, **env)

    def cli(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Another wal-agent command, to its end."""
        return subprocess.run(
            [*self.enter, sys.executable, "-m", "wal_agent", *args],
            cwd=self.workspace,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        done = self.cli("status", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (64 if found["state"] == "none" else 0), done.stderr
        return found

    def log(self) -> list[dict[str, Any]]:
        """The job's records, oldest first."""
        done = self.cli("log", "--json", "-n", "0")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def session_file(self) -> Path:
        """Of Gemini: the session's main file here, the one that has most."""
        found = [*(self.home / ".gemini" / "tmp").glob("*/chats/session-*.jsonl")]
        return max(found, key=lambda path: path.stat().st_size)

    def kept(self) -> list[Path]:
        """The folders of restores on this machine, oldest first."""
        return sorted((self.home / ".local/state/wal-agent/jobs/job/pre-restore").glob("*"))

    def end(self) -> None:
        """Switch it off: what still runs here is gone."""
        running = [run for run in self.runs if run.process.poll() is None]  # else its number may be another's by now
        end_at_once([process for run in running for process in (psutil.Process(run.pid), *_children(run.pid))])
        for run in running:
            run.process.wait()
        end_all(self.home)

    def lost(self) -> None:
        """Switch it off for good: its disk is gone too."""
        self.end()
        self.home.rename(self.home.with_name(f"{self.name}.lost"))


@dataclass
class Scene:
    """A workspace, a bucket and a model; machines are added as the story needs them."""

    root: Path
    program: Path
    model: Model
    agent: str = USUAL
    machines: list[Machine] = field(default_factory=list)
    url: str = ""  # of the bucket; a folder where none is named

    def __post_init__(self) -> None:
        self.workspace = self.root / "work"
        self.workspace.mkdir()
        self.bucket = self.root / "bucket"
        self.url = self.url or f"file://{self.bucket}"
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        (self.workspace / "README.md").write_text("hello\n")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
            subprocess.run([*git, *words], cwd=self.workspace, check=True, env={**os.environ, "HOME": str(self.root)})

    def machine(
        self,
        name: str,
        workspace: Path | None = None,
        kernel: str = "",
        reach: dict[str, str] | None = None,
        enter: tuple[str, ...] = (),
    ) -> Machine:
        where = workspace or self.workspace
        made = Machine(
            self.root, name, self.url, self.model, self.program, where, kernel, reach or {}, enter, self.agent
        )
        self.machines.append(made)
        return made

    def close(self) -> None:
        for machine in self.machines:
            machine.end()
            shutil.rmtree(machine.runtime, ignore_errors=True)

    def script(self, *turns: Turn) -> None:
        self.model.turns[:] = turns

    def hold_turn(self, n: int) -> threading.Event:
        """Hold the n-th scripted answer back until the event is set."""
        event = threading.Event()
        self.model.turns[n].hold = event
        return event

    def asked(self, requests: int) -> None:
        """Wait until the model was asked so often."""
        self.model.wait_for(requests, PATIENCE)

    def stop(self, run: Run) -> None:
        """SIGSTOP, at a moment at which it holds none of the folder bucket's locks: it would keep it."""

        def stopped() -> bool:
            run.kill(signal.SIGSTOP)
            until(lambda: psutil.Process(run.pid).status() == psutil.STATUS_STOPPED, "it stands still")
            if not any(flock_state(lock) == "held" for lock in (self.bucket / ".locks").iterdir()):
                return True
            run.kill(signal.SIGCONT)
            return False

        until(stopped, "it is stopped between two writes")

    def records(self, job: str = "job") -> list[dict[str, Any]]:
        """The job's records as `wal-agent log --json` gives them; none before the first one."""
        with opened(self.url) as bucket:
            return [json.loads(as_json(entry)) for entry in read_entries(bucket, Keys(job))]

    def replay(self, upto: int | None = None) -> Replay:
        with opened(self.url) as bucket:
            return replay(bucket, Keys("job"), upto)

    def conversation(self) -> bytes:
        """The session's main file as the log has it; empty before it is saved."""
        with opened(self.url) as bucket:
            keys = Keys("job")
            blobs = Blobs(JobStore(bucket, keys, rng=random.Random(0)))
            with suppress(UsageError):
                return read_main(replay(bucket, keys).state, blobs, AGENTS[self.agent], "")
        return b""

    def lease(self) -> LeaseDoc:
        """The job's lease; there must be one."""
        with opened(self.url) as bucket:
            seen = read_lease(bucket, Keys("job"))
        assert seen is not None
        return seen.doc

    def saved(self, calls: int) -> None:
        """Wait until the captured session itself tells the first `calls` calls."""
        until(
            lambda: any(r.get("settled", 0) >= calls for r in self.records()), f"{calls} calls are in the saved session"
        )

    def side(self, name: str = "side") -> list[str]:
        """Lines that tools appended to a file of the workspace: the side effects, counted."""
        path = self.workspace / name
        return path.read_text().splitlines() if path.exists() else []


@contextmanager
def opened(url: str) -> Iterator[Bucket]:
    bucket = open_bucket(url)
    try:
        yield bucket
    finally:
        bucket.close()


def check_log(scene: Scene, before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must hold of a log whatever happened; `before`: its records at some earlier moment. Gives all records."""
    log = scene.records()
    assert log[: len(before)] == list(before), "I3: a record that was there before is gone or has changed its place"
    epochs = [r["epoch"] for r in log]
    assert epochs == sorted(epochs), "I2: an epoch went down"
    assert [r["epoch"] for r in log if r["type"] == "opening"] == sorted(set(epochs)), "I2: one opening an epoch"
    intents, ends = ([r["call"] for r in log if r["type"] == kind] for kind in ("intent", "end"))
    unsettled = [o.intent.call for o in scene.replay().state.open]
    assert sorted([*ends, *unsettled]) == sorted(intents), "I8: each call has one end, or is listed as open"
    return log


def check_exact(scene: Scene, machine: Machine) -> None:
    """I4: the newest restore's exact copies are byte for byte what the log held before that run opened it."""
    opened = [r["record"] for r in scene.records() if r["type"] == "opening"][-1]
    files = scene.replay(opened - 1).state.files
    exact = machine.kept()[-1] / "exact"
    made = {p.relative_to(exact).as_posix(): p.read_bytes() for p in exact.rglob("*") if p.is_file()}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in made.items()} == {
        name: file.sha256 for name, file in files.items()
    }
    assert AGENTS[scene.agent].main_file in made


def parts_of(request: Json) -> list[Part]:
    """What a request's history holds, in order: one to Gemini's API, or to the Responses API."""
    return (Gemini() if "contents" in request else Responses()).history(request)


def texts_in(request: Json, role: str = "user") -> list[str]:
    """The text parts of one role in a request's history, in order."""
    return [part.text for part in parts_of(request) if isinstance(part, HistoryText) and part.role == role]


def notices(request: Json) -> list[str]:
    """The recovery notices in a request's history, in order."""
    return [text for text in texts_in(request) if text.startswith("[wal-agent recovery]")]


def told(request: Json) -> str:
    """All text that the model received in one request's history."""
    return json.dumps(request.get("contents") or request["input"], ensure_ascii=False)


def calls_in(request: Json) -> list[Call]:
    """The calls in a request's history, in order."""
    return [(part.tool, part.input) for part in parts_of(request) if isinstance(part, Called)]


def commands_in(request: Json) -> list[str]:
    """The shell commands in a request's history, in order."""
    return [command_of(call) for call in calls_in(request)]


def command_of(call: Call) -> str:
    """A call put back from the log has the command, and may lack a setting of the tool's (Codex: `yield_time_ms`)."""
    return str(call[1].get("cmd", call[1].get("command")))


def results_in(request: Json) -> list[Returned]:
    """The results of calls in a request's history, in order."""
    return [part for part in parts_of(request) if isinstance(part, Returned)]


TASK = "please do the work"
LONG = "echo begun >> side; touch started; sleep 600; echo ended >> side"


def crashed(scene: Scene, machine: Machine) -> None:
    """A run that was killed in its first call, #1."""
    scene.script(Turn(text="Now.", calls=[shell(LONG, scene.agent)]))
    run = machine.ask(TASK)
    until(lambda: (scene.workspace / "started").exists(), "the call runs")
    until(lambda: any(r["type"] == "file" for r in scene.records()), "the session is saved")
    run.kill()
    run.died()
    machine.end()


@contextmanager
def agent_scene(root: Path, agent_cli: Callable[[str], Path], name: str) -> Iterator[Scene]:
    """The scene of one agent, with a model of its dialect."""
    rehearsal = rehearsal_of(AGENTS[name])
    assert rehearsal is not None
    with Model(rehearsal.dialect) as model:
        made = Scene(root, agent_cli(name), model, name)
        yield made
        made.close()

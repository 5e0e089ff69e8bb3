"""A job that is run, killed and recovered again and again: real runs, a real server behind a storm, real SIGKILL."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.contract.wire import reach
from tests.faults.soak import agent
from tests.faults.soak.cycles import MACHINES, OUTAGE, Cycle
from tests.faults.soak.ledger import Effect, Ledger, Wrong
from tests.servers import Server, fresh_bucket
from tests.servers.proxy import Proxy, Storm, proxied
from wal_agent.bucket.decorators import RetryBucket
from wal_agent.clock import SystemClock
from wal_agent.errors import LeaseHeld
from wal_agent.operate.acknowledge import acknowledge_call
from wal_agent.operate.at_rest import JobAccess
from wal_agent.wal.keys import Keys

ROOT = Path(__file__).parents[3]
KEYS = Keys("job")
TTL = 2.0
PATIENCE = 60.0  # seconds; only a run that hangs takes so long
KILLED = -signal.SIGKILL
EXPECTED = {KILLED, 0, 69, 128 + signal.SIGKILL}  # of a run: died, ended, bucket away, its agent died


@dataclass
class Nursery:
    """The process that forks runs (nursery.py)."""

    process: subprocess.Popen[bytes]

    @classmethod
    @contextmanager
    def begun(cls) -> Iterator[Nursery]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.soak.nursery"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        with process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def start(self, order: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        return self._line()

    def ended(self, seconds: float) -> bool:
        """Whether the run ends within so many seconds."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def status(self) -> int:
        return self._line()

    def _line(self) -> int:
        assert self.process.stdout is not None
        number = bytearray()  # unbuffered: `ended` asks the pipe
        while (byte := os.read(self.process.stdout.fileno(), 1)) != b"\n":
            assert byte, "the nursery is gone"
            number += byte
        return int(number)


@dataclass
class Job:
    """`root` is short: sockets lie below it."""

    root: Path
    url: str
    proxy: Proxy
    nursery: Nursery
    ledger: Ledger
    broken: bool
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        (self.root / "cli").mkdir()
        (self.root / "cli" / "package.json").write_text('{"name": "@google/gemini-cli", "version": "0.61.0"}')
        self.cli = self.root / "cli" / "gemini"
        self.cli.write_text(f"#!{sys.executable} -IS\n{Path(agent.__file__).read_text()}")
        self.cli.chmod(0o700)
        (self.root / "work").mkdir()
        for machine in range(MACHINES):
            (self.root / f"m{machine}" / ".gemini").mkdir(parents=True)

    # ---- one cycle

    def live(self, cycle: Cycle) -> None:
        """Run until the cycle's death. Wrong when the world then holds what the log does not, or the run ended as none
        may."""
        what, n = cycle.death
        status = self._run(cycle, what, float(n))
        if cycle.all_of_it or cycle.settle:
            self.end_machine(cycle.machine)
        self.counts["killed" if status == KILLED else f"exit {status}"] += 1
        self.ledger.look(self.world())
        if status not in EXPECTED:
            raise Wrong(f"a run ended with {status}")
        if cycle.settle:
            self.settle(cycle.machine)

    def _run(self, cycle: Cycle, what: str, n: float) -> int:
        order = {
            "env": self.env(cycle),
            "settings": {
                "bucket": self.url,
                "job": KEYS.job,
                "ttl": TTL,
                "autosave": 0.2,
                "append_deadline": 5.0 if cycle.cut is None else 0.4,
            },
            "workspace": str(self.root / "work"),
            "said": str(self.root / "said"),
            "wait": True,
            "broken": self.broken,
        }
        before = self._agents(cycle.machine)
        pid = self.nursery.start(order)
        try:
            if cycle.cut is not None and self._has_begun(cycle.machine, before) and not self.nursery.ended(cycle.cut):
                self.proxy.partition()
                self.nursery.ended(OUTAGE)
                self.proxy.heal()
            if what == "after" and not self.nursery.ended(n):
                os.kill(pid, signal.SIGKILL)
            if not self.nursery.ended(PATIENCE):
                os.kill(pid, signal.SIGKILL)
                raise Wrong(f"a run hangs: it has not ended within {PATIENCE:.0f} s")
            return self.nursery.status()
        finally:
            self.proxy.heal()

    def _agents(self, machine: int) -> set[Path]:
        """What runs of this machine wrote down when their agents began."""
        return {*(self.root / f"r{machine}").glob("*/agent.pid")}

    def _has_begun(self, machine: int, before: set[Path]) -> bool:
        """Wait for the run's agent; whether it began before the run ended. A cut before it would deny no call."""
        while not self._agents(machine) - before:
            if self.nursery.ended(0.01):
                return False
        return True

    def env(self, cycle: Cycle) -> dict[str, str]:
        what, n = cycle.death
        plan = {"cycle": cycle.number, "batches": cycle.batches, "again": cycle.again, "death": (what, n)}
        env = {
            "PATH": os.environ["PATH"],
            "WAL_AGENT_GEMINI": str(self.cli),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "SOAK_WORLD": str(self.root / "world"),
            "SOAK_PLAN": json.dumps(plan),
            **self.proxy.server.env,
            **self.machine(cycle.machine),
        }
        kind, _, place = what.partition(" ")
        return env | ({"WAL_AGENT_FAILPOINT": f"{place}:{n}"} if kind == "failpoint" else {})

    def machine(self, number: int) -> dict[str, str]:
        """What makes it a machine of its own: its home, its run folders and its kernel's id."""
        return {
            "HOME": str(self.root / f"m{number}"),
            "WAL_AGENT_RUNTIME_DIR": str(self.root / f"r{number}"),
            "WAL_AGENT_HOST_ID": f"{self.root.name}-{number}",
        }

    def story(self) -> str:
        """What the runs said last."""
        said = self.root / "said"
        return said.read_text()[-4000:] if said.exists() else ""

    # ---- the world

    def world(self) -> list[Effect]:
        path = self.root / "world"
        return [Effect(*line.split()) for line in path.read_text().splitlines()] if path.exists() else []

    def end_machine(self, number: int) -> None:
        """Nothing runs on it any more."""
        mark = b"HOME=%s\0" % os.fsencode(self.root / f"m{number}")
        while found := [pid for pid in _pids() if mark in _environ(pid)]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def settle(self, machine: int) -> None:
        """A person looks at the world, and says what became of each open call."""
        done = self.world()
        for call in self.ledger.open():
            try:
                happened = call.effect in done
                access = JobAccess(self.ledger.bucket, KEYS, TTL, self.machine(machine))
                acknowledge_call(access, call.number, happened)
            except LeaseHeld:
                return  # the run before had another machine's lease to wait for, and died waiting
            self.counts["settled by a person"] += 1

    def end(self) -> None:
        for machine in range(MACHINES):
            self.end_machine(machine)
        self.proxy.release()
        self.ledger.audit(self.world())


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environ(pid: int) -> bytes:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return b"" if state == b"Z" else Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@contextmanager
def soaked(server: Server, seed: int, broken: bool = False) -> Iterator[Job]:
    """A new job whose requests go through a storm of their own."""
    storm = Storm(seed, server.scheme, lost=0.03, late=0.02, reset=0.02, refused=0.03, cut=0.02, stale=0.03)
    url = fresh_bucket(server)
    root = Path(tempfile.mkdtemp(prefix="wa-soak-", dir="/tmp"))
    with (
        proxied(server, plan=storm) as proxy,
        closing(reach(server, url)) as plain,
        Nursery.begun() as nursery,
    ):
        # as each command has it: a server closes a connection that rests
        bucket = RetryBucket(plain, SystemClock(), random.Random(seed))
        job = Job(root, url, proxy, nursery, Ledger(bucket, KEYS), broken)
        try:
            yield job
        finally:
            for machine in range(MACHINES):
                job.end_machine(machine)
            shutil.rmtree(root, ignore_errors=True)

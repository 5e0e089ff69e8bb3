"""Runs wal-agent commands, each in a fresh child of a process that has everything imported: one takes milliseconds.

A child has little memory (MEMORY) and little time (SECONDS): a command that believes a claim of 10 GB, or that never
ends, fails loudly. Requests and answers are JSON lines on stdin and stdout.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MEMORY = 1_500_000_000  # bytes of address space
SECONDS = 60.0
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Said:
    """What a command did. `code` is negative when a signal ended it."""

    code: int
    out: str
    err: str

    @property
    def ours(self) -> list[str]:
        """The lines that are a message of wal-agent's, but for who named the bucket and what is waited for."""
        lines = [line for line in self.err.split("\n") if line.startswith("wal-agent:")]
        return [line for line in lines if not ASIDE.fullmatch(line)]


ASIDE = re.compile(r"wal-agent: (bucket \S+ \(from WAL_AGENT_BUCKET\)|waiting for .*)")


class Prober:
    """Ask it from one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.prober"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *argv: str, cwd: Path, env: Mapping[str, str]) -> Said:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "cwd": str(cwd), "env": dict(env)}) + "\n")
        self._process.stdin.flush()
        return Said(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Serve until stdin ends."""
    import wal_agent.cli.main as cli
    from wal_agent.agents import AGENTS
    from wal_agent.cli import log, view
    from wal_agent.operate import acknowledge, dry_run, unlock
    from wal_agent.supervise import run

    assert AGENTS and cli and log and view and acknowledge and unlock and dry_run and run, (
        "imported before the first fork"
    )
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = os.fork()
            if pid == 0:
                command(asked["argv"], asked["cwd"], asked["env"], out.fileno(), err.fileno())
            code = ended(pid)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "backslashreplace"))
        print(json.dumps({"code": code, "out": texts[0], "err": texts[1]}), flush=True)


def command(argv: Sequence[str], cwd: str, env: Mapping[str, str], out: int, err: int) -> None:
    """In the child: become that command."""
    from wal_agent.cli.main import main as wal_agent

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["wal-agent", *argv]
    code = 70
    try:
        wal_agent()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int:
    """Its exit code; a child that does not end in time is killed (-9)."""
    end = time.monotonic() + SECONDS
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


if __name__ == "__main__":
    main()

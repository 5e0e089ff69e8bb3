"""How long from SIGTERM to the end of the process? `python -m bench drain`.

The real Gemini CLI with a scripted model and a bucket in a folder, bare and under wal-agent, which ends the agent,
saves the session and the working tree, seals the log and gives the lease up. In the model wait; in a tool that does not
end, which has half of `--drain 2` (1,000 ms, counted); and in that tool from a second SIGTERM on. Told besides: how
many processes of the session were left running. One that has not ended after 10 s is killed, and counts as that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.measure import Times, scaled
from tests.servers import ROOT
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.demo import end_at_once, home_environment
from wal_agent.rehearsal.dialects import GeminiModel
from wal_agent.rehearsal.model import Turn

ROUNDS = scaled(10, 1)
PATIENCE = 120.0
MOST = 10.0  # seconds
CLI = ROOT / ".tools/npm/node_modules/.bin/gemini"
ARGS = ("-y", "-p", "work")
OURS = (sys.executable, "-m", "wal_agent", "run", "gemini", "--")


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    argv: tuple[str, ...]
    tool: bool
    twice: bool = False


BARE_WAIT = Case("bare, in the model wait", (str(CLI), *ARGS), False)
BARE_TOOL = Case("bare, in a tool", (str(CLI), *ARGS), True)
CASES = {
    BARE_WAIT: (Case("wal-agent, in the model wait", (*OURS, *ARGS), False),),
    BARE_TOOL: (
        Case("wal-agent, in a tool (half of 2 s)", (*OURS, *ARGS), True),
        Case("wal-agent, in a tool, second SIGTERM", (*OURS, *ARGS), True, twice=True),
    ),
}


def until(what: str, happened: object, process: subprocess.Popen[bytes]) -> None:
    assert callable(happened)
    end = time.monotonic() + PATIENCE
    while not happened():
        assert process.poll() is None and time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.01)


def once(case: Case) -> tuple[float, int]:
    """Milliseconds from the (last) SIGTERM to the end, and how many processes outlive it."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder, GeminiModel() as model:
        root = Path(folder)
        home, work = root / "home", root / "work"
        home.mkdir()
        work.mkdir()
        (work / "README.md").write_text("hello\n")
        subprocess.run(["git", "init", "-q"], cwd=work, check=True)
        rehearsal = rehearsal_of(AGENTS["gemini"])
        assert rehearsal is not None
        then = "; sleep 1000" if case.tool else ""
        never = threading.Event()
        shell = ("run_shell_command", {"command": f"echo x > began{then}"})
        model.turns[:] = [Turn(text="Working.", calls=[shell]), Turn(text="never said", hold=never)]
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {
            **rehearsal.home(home, work, model.url),
            "PYTHONPATH": str(ROOT),
            "GEMINI_CLI_NO_RELAUNCH": "true",  # as under wal-agent; with its second process the bare one did not end
            "HOME": str(home),
            "WAL_AGENT_GEMINI": str(CLI),
            "WAL_AGENT_BUCKET": f"file://{root}/bucket",
            "WAL_AGENT_RUNTIME_DIR": str(root / "run"),
            "WAL_AGENT_DRAIN": "600" if case.twice else "2" if case.tool else "20",
        }
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(case.argv, cwd=work, env=env, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            until("the tool", (work / "began").exists, process)
            until("the model", lambda: case.tool or len(model.requests) >= 2, process)
            time.sleep(1.0)  # what is saved meanwhile is no part of the drain
            if case.twice:
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            began = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(MOST)
            took = (time.perf_counter() - began) * 1000
        finally:
            left = list(home_environment(home))
            end_at_once(left)
            psutil.wait_procs(left)
            process.wait()
        return took, len(left)


def measured(cases: Sequence[Case]) -> dict[Case, tuple[Times, float]]:
    """Interleaved, so that the machine's drift hits all alike."""
    found: dict[Case, list[tuple[float, int]]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case in cases:
            found[case].append(once(case))
    return {
        case: (Times(case.name, tuple(took for took, _ in seen)), sum(left for _, left in seen) / ROUNDS)
        for case, seen in found.items()
    }


def main() -> None:
    found = measured([case for bare, ours in CASES.items() for case in (bare, *ours)])
    for bare, ours in CASES.items():
        base = found[bare][0]
        for case in (bare, *ours):
            times, left = found[case]
            print(f"{times.line(base)}   {left:.1f} processes left")


if __name__ == "__main__":
    main()

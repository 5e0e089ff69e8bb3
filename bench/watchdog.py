"""What does looking cost while nothing happens? `python -m bench watchdog`.

The CPU time of a whole idle run (a stub stands in for the agent: it began a turn and the model does not answer), and of
the watchdog's own looks in it, which are counted by a loop of them: seconds of CPU an hour, and the one over the other.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time

import psutil

from bench.measure import scaled
from bench.story import Story, story, wal_agent
from wal_agent.agents.hook_line import client_command
from wal_agent.clock import SystemClock
from wal_agent.supervise.gate import RunningCall
from wal_agent.supervise.watchdog import Watchdog, WatchdogLimits

EVERY = 0.1  # seconds between two looks (Live._every)
SECONDS = scaled(60.0, 3.0)
SETTLE = scaled(5.0, 0.0)  # seconds after the stub's word, in which the first saves and threads are done
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds; the kernel counts no less
LOOKS = scaled(200_000, 1_000)
STUB = f"""#!/bin/sh
case "$1" in --version) echo 0.61.0; exit 0;; esac
echo '{{"session_id": "s", "prompt": "x"}}' |
    {shlex.join(client_command())} "$WAL_AGENT_SOCKET" "$WAL_AGENT_RUN" gemini BeforeAgent $$ 20 >/dev/null
date +%s%N > "$STUB_BEGAN"
exec sleep 600
"""


def look() -> float:
    """Microseconds of one look, as each tick of a run has it; a call runs."""
    clock, watch = SystemClock(), Watchdog(WatchdogLimits(hang=600))
    running = [RunningCall(1, "t", b"{}", "", True, 0.0)]
    began = time.process_time()
    for _ in range(LOOKS):
        watch.tick(clock.awake(), "awaiting_model", "", running)
    return (time.process_time() - began) / LOOKS * 1e6


def idle(at: Story) -> float:
    """Seconds of CPU an hour of the supervisor of an idle run."""
    at.stub.write_text(STUB)
    process = subprocess.Popen(
        wal_agent("-p", "x"),
        cwd=at.work,
        env=at.env(WAL_AGENT_GEMINI=str(at.stub)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        supervisor = psutil.Process(process.pid)
        while not (at.root / "began").exists():
            if process.poll() is not None:
                raise SystemExit(f"the run ended by itself: {process.returncode}")
            time.sleep(0.05)
        time.sleep(SETTLE)
        before, began = used(supervisor), time.monotonic()
        time.sleep(SECONDS)
        return max(TICK, used(supervisor) - before) / (time.monotonic() - began) * 3600
    finally:
        process.terminate()
        process.wait(60)


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    one = look()
    watchdog = one / 1e6 * 3600 / EVERY
    with story() as at:
        whole = idle(at)
    print(f"  one look: {one:.1f} us; {watchdog:.2f} s of CPU an hour")
    print(f"  an idle run: {whole:.1f} s of CPU an hour ({whole / 36:.2f} % of a core); the watchdog is", end=" ")
    print(f"{watchdog / whole * 100:.2f} % of it: {whole / (whole - watchdog):.4f} x a run without it")


if __name__ == "__main__":
    main()

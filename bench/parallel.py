"""What do 8 tool calls at once cost? `python -m bench parallel`: at most two round trips in all (group commit).

Each call is a thread at the gate of one run, over a store that is 30 ms away; the time is that of the slowest.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.measure import Times, scaled
from bench.owner import owned
from bench.store import NAMES, ROUND_TRIP, store
from wal_agent.agents.base import Allow, ToolStarting
from wal_agent.bucket import open_bucket
from wal_agent.supervise.gate import Gate

CALLS = 8
ROUNDS = scaled(40, 1)


def together(gate: Gate, pool: ThreadPoolExecutor, round: int) -> float:
    """Milliseconds until all calls of a round are allowed."""
    start = threading.Barrier(CALLS + 1)

    def one(n: int) -> None:
        input = json.dumps({"command": f"make {round}-{n}"}).encode()
        start.wait()
        if not isinstance(gate.begin_call(ToolStarting("s", "run_shell_command", input)), Allow):
            raise RuntimeError("a call was denied")

    calls = [pool.submit(one, n) for n in range(CALLS)]
    start.wait()
    began = time.perf_counter()
    for call in calls:
        call.result()
    return (time.perf_counter() - began) * 1000


def main() -> None:
    for scheme in NAMES:
        with (
            store(scheme, ROUND_TRIP) as at,
            tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder,
            owned(Path(folder), open_bucket(at.url)) as (_, gate, _run),
            ThreadPoolExecutor(CALLS) as pool,
        ):
            values = tuple(together(gate, pool, n) for n in range(ROUNDS))
        found = Times(f"{CALLS} calls at once, {at.name}", values)
        print(f"{found.line()}  {found.median / ROUND_TRIP:.2f} round trips (p95 {found.p95 / ROUND_TRIP:.2f})")


if __name__ == "__main__":
    main()

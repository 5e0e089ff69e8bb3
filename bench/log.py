"""How long do `wal-agent log -n 30` and `status` take on 50,000 records, and how many requests? `python -m bench log`.

A log of 50,150 segments with a snapshot after each 200, on emulators 30 ms away. The whole command is measured, with
Python's start, and held against reading the segments one after the other from the first on: of these 500 are read in
the same run, and the rest is taken to go on like that. The requests are those that the proxy before the store counts.
With BENCH_RECORDS in the environment the log is as long as that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from bench.store import NAMES, ROUND_TRIP, Store, store
from tests import longlog
from tests.longlog import KEYS
from wal_agent.bucket import open_bucket

RECORDS = 50_150  # so that status has the 150 behind the newest snapshot to read
RUNS = (20_001, 20_777, 49_001)
SAMPLE = 500  # segments that are read one after the other
COMMANDS: Sequence[tuple[str, ...]] = (("log", "-n", "30"), ("status",), ("log", "--crashes"), ("fleet", "ls"))


def main() -> None:
    records = int(os.environ.get("BENCH_RECORDS", RECORDS))
    for scheme in NAMES:
        with store(scheme, 0.0) as near:
            print(f"  {scheme} {records} records, written", end="", flush=True)
            began = time.monotonic()
            bucket = open_bucket(near.url)
            runs = tuple(run for run in RUNS if run < records)
            longlog.write(bucket, records, runs, parallel=16)
            bucket.close()
            print(f" in {time.monotonic() - began:.0f} s")
            with near.through_proxy(ROUND_TRIP) as at, at.environment():
                plain = in_turn(at, records)
                print(f"    one GET after the other: {plain:.0f} s for all (from {SAMPLE})")
                for words in COMMANDS:
                    took, requests = command(at, *words)
                    told = f"{took:5.2f} s, {requests:5} requests, {took / plain:.5f} x the plain read"
                    print(f"    {' '.join(words):<14} {told}", flush=True)


def in_turn(at: Store, records: int) -> float:
    """Seconds for all segments, by the first of them."""
    bucket = open_bucket(at.url)
    count = min(SAMPLE, records)
    bucket.get(KEYS.segment(1))  # connects
    began = time.monotonic()
    for seq in range(1, count + 1):
        bucket.get(KEYS.segment(seq))
    took = time.monotonic() - began
    bucket.close()
    return took * records / count


def command(at: Store, *words: str) -> tuple[float, int]:
    """Seconds and requests of a command, the better of two."""
    job = [] if words[0] == "fleet" else ["--job", KEYS.job]
    best, requests = float("inf"), 0
    for _ in range(2):
        before, began = at.requests(), time.monotonic()
        argv = [sys.executable, "-m", "wal_agent", *words, *job, "--bucket", at.url]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        took = time.monotonic() - began
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        best, requests = min(best, took), at.requests() - before
    return best, requests


if __name__ == "__main__":
    main()

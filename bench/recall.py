"""How long does `wal-agent recall` take on 100,000 records? `python -m bench recall`.

A log on `file://`, one record a segment. The first search reads all of it and builds the index, later ones read what is
new. Of two first searches at once the second waits for the index of the first. Held against what a user would do
without: `wal-agent log -n 0 --json | grep WORD`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import scaled
from tests import longlog
from tests.longlog import KEYS
from wal_agent.bucket import open_bucket

RECORDS = scaled(100_000, 300)
WORD = "done"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wal-agent-bench-") as folder:
        url = (Path(folder) / "bucket").as_uri()
        bucket = open_bucket(url)
        longlog.write(bucket, RECORDS, (), parallel=2)
        bucket.close()
        env = {**os.environ, "HOME": folder, "XDG_STATE_HOME": f"{folder}/state"}
        job = ("--job", KEYS.job, "--bucket", url)
        grep = timed(f"{sys.executable} -m wal_agent log -n 0 --json {' '.join(job)} | grep -c {WORD}", env)
        print(f"  log -n 0 --json | grep          {grep:8.2f} s")
        for name in ("first recall, builds the index", "second recall", "third recall"):
            took = timed(f"{sys.executable} -m wal_agent recall {WORD} {' '.join(job)}", env)
            print(f"  {name:<31} {took:8.2f} s  {took / grep:6.3f} x the grep", flush=True)
        shutil.rmtree(Path(folder) / "state")
        search = f"{sys.executable} -m wal_agent recall {WORD} {' '.join(job)}"
        took = timed(f"{search} & {search}; wait", env)
        print(f"  {'two at once, without an index':<31} {took:8.2f} s  {took / grep:6.3f} x the grep", flush=True)


def timed(command: str, env: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or "bug" in done.stderr:
        raise RuntimeError(done.stderr)
    return time.monotonic() - began


if __name__ == "__main__":
    main()

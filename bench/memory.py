"""Does the supervisor grow? `python -m bench memory` (I9): its resident memory over 10,000 tool calls.

A process with all that a run imports, and a cloud SDK, makes the calls at its own gate; the session grows by 2 KB each,
snapshots and retention run as they do in a run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import scaled
from bench.store import NAMES, store

CALLS = scaled(10_000, 20)
LOOKS = scaled((500, 1_000, 2_000, 5_000, 10_000), (10, 20))


def child(url: str, folder: Path) -> None:
    """Print the resident MB after so many calls, as they come: it takes minutes."""
    import psutil

    import wal_agent.supervise.run  # noqa: F401 - what a run has in memory
    from bench.flat import Lane, lane
    from wal_agent.bucket import open_bucket
    from wal_agent.supervise.lease_keeper import Housekeeping

    def problem(error: BaseException) -> None:
        raise error

    def calls(at: Lane) -> None:
        for n in range(1, CALLS + 1):
            at.call(n)
            if n in LOOKS:
                print(f"  after {n:6} calls {psutil.Process().memory_info().rss / 1e6:6.1f} MB", flush=True)

    bucket = open_bucket(url)
    with lane(50_000, bucket) as at:
        keeper = Housekeeping(bucket, at.job, folder / "mirror", lambda: True, problem)
        keeper.start()
        calls(at)
        keeper.stop()


def main() -> None:
    for scheme in NAMES:
        with store(scheme, 0) as at, tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
            print(f"  {at.name}", flush=True)
            subprocess.run([sys.executable, "-m", "bench.memory", at.url, folder], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        main()

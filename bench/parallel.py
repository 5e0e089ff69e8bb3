"""What do 8 tool calls at once cost? `python -m bench parallel`: at most two round trips in all (group commit).

One shell starts 8 hooks of a run as real processes, over a store that is 30 ms away, and waits for all of them. Beside
it, in the same rounds: 8 times `bash -c true` and one raw conditional put, which nothing with hooks can do without.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.hook import clients, hooks, payload
from bench.measure import interleaved, scaled
from bench.store import NAMES, ROUND_TRIP, RawPut, store
from wal_agent.agents.base import HookSetup
from wal_agent.agents.gemini.hooks import MARKER, hook_line

CALLS = 8
ROUNDS = scaled(60, 1)
WARMUP = scaled(3, 0)
AT_ONCE = """
for input in "$1"/*; do bash -c "$2" <"$input" >/dev/null & all="$all $!"; done
for one in $all; do wait "$one" || exit; done
"""


def at_once(folder: Path, line: str, env: dict[str, str]) -> Callable[[], object]:
    """Run the line 8 times at the same time, each with a call of its own on stdin. CalledProcessError if one fails."""
    rounds = itertools.count()

    def run() -> None:
        n = next(rounds)
        for call in range(CALLS):
            (folder / str(call)).write_bytes(payload("BeforeTool", f"make {n}-{call}"))
        subprocess.run(["bash", "-c", AT_ONCE, "bash", str(folder), line], env=env, check=True)

    return run


def main() -> None:
    for scheme in NAMES:
        with (
            store(scheme, ROUND_TRIP) as at,
            tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder,
            hooks(at.url) as hook,
        ):
            env = {**os.environ, MARKER: hook.run.run}
            line = hook_line(HookSetup(hook.run.run, hook.run.path, clients()[0]), "BeforeTool")
            empty, raw = at_once(Path(folder), "true", env), RawPut(at)

            def least(empty: Callable[[], object] = empty, raw: RawPut = raw) -> None:
                empty()
                raw(b"x" * 700)

            before = at.requests()
            limit, ours = interleaved(
                {
                    f"{at.name}: limit ({CALLS} bash -c true + a raw put)": least,
                    f"{at.name}: {CALLS} hooks at once": at_once(Path(folder), line, env),
                },
                ROUNDS,
                WARMUP,
            )
            puts = (at.requests() - before) / (ROUNDS + WARMUP) - 1
            for times in (limit, ours):
                trips = f"{times.median / ROUND_TRIP:.2f} round trips (p95 {times.p95 / ROUND_TRIP:.2f})"
                print(f"{times.line(limit)}  {trips}")
            print(f"    requests for {CALLS} hooks: {puts:.1f}")


if __name__ == "__main__":
    main()

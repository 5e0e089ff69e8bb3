"""Live through ever new seeds on each store in turn, for as long as is asked for, and report what happened.

`make soak HOURS=1`, or `python -m tests.faults.soak --hours 1 [--seed N]`. The report goes to stdout as JSON: the
lives, kills, effects, faults and so on, by store. The first effect that is lost or repeated ends it with 1, and names
the store and the seed: `WAL_AGENT_TEST_SEED=N pytest -m deep tests/faults/soak` plays that one again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

from tests.contract.wire import STORES, own_credentials
from tests.faults.soak.seed import TOGETHER, soak
from tests.servers import shared


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6, 10**9))
    given = parser.parse_args()
    until, seed = time.monotonic() + given.hours * 3600, given.seed
    counts = {server: Counter[str]() for server in sorted(STORES)}
    with own_credentials(), ThreadPoolExecutor(TOGETHER) as pool:
        for server in cycle(counts):
            if time.monotonic() >= until:
                break
            shared(server)  # once, before two threads ask for it
            try:
                counts[server] += sum(pool.map(soak, [server] * TOGETHER, range(seed, seed + TOGETHER)), Counter[str]())
            except AssertionError as error:
                print(error, file=sys.stderr)
                return 1
            seed += TOGETHER
            lives = sum(each["lives"] for each in counts.values())
            print(f"{server}, up to seed {seed - 1}: {lives} lives in all", file=sys.stderr)
    print(json.dumps({"first_seed": given.seed, **counts}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

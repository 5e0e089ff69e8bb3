"""Two hundred crashes and recoveries of real runs over real servers behind storms (I1, I2, I3, I5, I8).

Each seed is a job of its own: `wal-agent run` with everything that it does, its hooks included, around a scripted agent
(agent.py), killed where its seed says. `make soak HOURS=N` goes on with ever new seeds. Seeds are exact in what is
planned, not in the moment at which the machine does it. `WAL_AGENT_TEST_SEED=N` runs that seed alone; a failure names
it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.wire import STORES, own_credentials
from tests.faults.soak.seed import TOGETHER, soak
from tests.servers import shared
from tests.tiers import deep

ROUNDS, STEP = 4, 10
BROKEN = 100  # cycles in which a gate that does not wait must be found; most often the first ones will do
SEED = os.environ.get("WAL_AGENT_TEST_SEED")
OFTEN = {
    "killed": 25,
    "effects": 40,
    "again": 3,
    "settled by a person": 3,
    "openings": 40,
    "faults": 100,
    "snapshots": 4,
    "denied": 1,
}
"""In one test, lest the weather be too fine: then it goes on with other seeds, since a quick store is away for less."""


@pytest.fixture(autouse=True, scope="module")
def credentials() -> Iterator[None]:
    with own_credentials():
        yield


@deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", [3 if SEED is None else int(SEED)])
@pytest.mark.parametrize("server", sorted(STORES))
def test_no_crash_loses_or_repeats_anything(server: str, first: int) -> None:
    shared(server)  # once, before two threads ask for it
    counts: Counter[str] = Counter()
    for begin in [first] if SEED else range(first, first + ROUNDS * STEP, STEP):
        seeds = range(begin, begin + (1 if SEED else TOGETHER))
        with ThreadPoolExecutor(TOGETHER) as pool:
            counts += sum(pool.map(lambda seed: soak(server, seed), seeds), Counter[str]())
        if all(counts[what] >= least for what, least in OFTEN.items()):
            return
    assert SEED, counts


@deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("server", sorted(STORES))
def test_a_gate_that_does_not_wait_is_found(server: str) -> None:
    """I1: what the soak is for, taken out of the real gate."""
    with pytest.raises(AssertionError, match="I1: "):
        soak(server, 1, BROKEN, broken=True)

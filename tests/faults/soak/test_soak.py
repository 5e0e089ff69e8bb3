"""Two hundred crashes and recoveries of real runs over real servers behind storms (I1, I2, I3, I5, I8).

Each seed is a job of its own: `wal-agent run` with everything that it does, its hooks included, around a scripted agent
(agent.py), killed where its seed says. Seeds are exact in what is planned, not in the moment at which the machine does
it. `WAL_AGENT_TEST_SEED=N` runs that seed alone; a failure names it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.wire import STORES, own_credentials
from tests.faults.soak.cycles import roll
from tests.faults.soak.job import soaked
from tests.servers import shared
from tests.tiers import deep
from wal_agent.records import End, Opening

CYCLES = 25
TOGETHER = 2  # jobs at a time: they wait for leases more than they work
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


def soak(server: str, seed: int, cycles: int = CYCLES, broken: bool = False) -> Counter[str]:
    """Live through the seed; what happened how often. AssertionError: with the seed, the cycle, what the runs said."""
    with soaked(shared(server), seed, broken) as job:
        lived = []
        try:
            for cycle in roll(seed, cycles):
                lived.append(cycle)
                job.live(cycle)
            job.end()
        except Exception as error:
            raise AssertionError(f"{server}, seed {seed}: {error}\n{lived[-2:]}\n{job.story()}") from error
        world, log = job.world(), job.ledger.records()
        return job.counts + Counter(
            effects=len(world),
            again=len(world) - len({effect.uid for effect in world}),
            openings=sum(isinstance(r, Opening) for r in log),
            denied=sum(isinstance(r, End) and r.how == "refused" for r in log),
            faults=sum(seen.fault is not None for seen in job.proxy.seen),
            snapshots=sum(1 for _ in job.ledger.bucket.list(job.ledger.keys.snapshots)),
        )


@deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", [3, 7] if SEED is None else [int(SEED)])
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

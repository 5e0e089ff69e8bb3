"""Live through one seed: a job that is killed and recovered as often as its cycles say."""

from __future__ import annotations

from collections import Counter

from tests.faults.soak.cycles import roll
from tests.faults.soak.job import soaked
from tests.servers import shared
from wal_agent.records import End, Opening

CYCLES = 25
TOGETHER = 2  # jobs at a time: they wait for leases more than they work


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
            lives=len(lived),
            effects=len(world),
            again=len(world) - len({effect.uid for effect in world}),
            openings=sum(isinstance(r, Opening) for r in log),
            denied=sum(isinstance(r, End) and r.how == "refused" for r in log),
            faults=sum(seen.fault is not None for seen in job.proxy.seen),
            snapshots=sum(1 for _ in job.ledger.bucket.list(job.ledger.keys.snapshots)),
        )

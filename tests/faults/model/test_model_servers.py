"""The seeded simulation over real servers of each cloud: the same checks at every step (I2, I3, I8, R1-R8), and
the very history that the same seed has over memory, so a bucket that answers otherwise is found in either way.

`WAL_AGENT_SEEDS=FROM-TO` runs other seeds than the first ones.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count

import pytest

from tests.contract.wire import STORES, own_credentials, reach
from tests.faults.model.ablations import ABLATIONS
from tests.faults.model.served import ServedStore
from tests.faults.model.simulate import Failure, simulate
from tests.faults.model.test_model_rules import first_violation
from tests.faults.model.world import Clock, Shape
from tests.servers import fresh_bucket, shared
from tests.tiers import deep
from wal_agent.bucket.base import Bucket

SEEDS = {"azurite": "6-18", "fake-gcs": "6-30", "ministack": "6-18"}  # all but the second are slower
NEEDED = ("R1 the tail is read", "R3 one seq, one content", "R10 mine whatever the nonce")
OFTEN = {"lost": 15, "late": 25, "landed late": 5, "fenced": 8, "opened: dead": 20, "snapshots": 40, "retained": 10}
"""In these seeds of either, lest the weather be too fine."""

MakeStore = Callable[[Clock], Bucket]


@pytest.fixture(params=sorted(STORES))
def name(request: pytest.FixtureRequest) -> str:
    """Of the server."""
    found: str = request.param
    return found


@pytest.fixture
def make_store(name: str) -> Iterator[MakeStore]:
    """Stores of one server, each in a fresh prefix."""
    with own_credentials():
        server = shared(name)
        url, numbers = fresh_bucket(server), count(1)
        yield lambda clock: ServedStore(reach(server, f"{url}/{next(numbers)}"), clock)


@deep
def test_a_seed_has_the_same_history_over_a_server(name: str, make_store: MakeStore) -> None:
    first, _, last = os.environ.get("WAL_AGENT_SEEDS", SEEDS[name]).partition("-")
    counts: Counter[str] = Counter()
    for seed in range(int(first), int(last)):
        world = simulate(seed, make_store=make_store)
        with closing(world.store):
            counts += world.counts
            assert world.trace == simulate(seed).trace, f"seed {seed}"
    rare = {what: counts[what] for what, least in OFTEN.items() if counts[what] < least}
    assert not rare or "WAL_AGENT_SEEDS" in os.environ


@deep
@pytest.mark.parametrize("rule", NEEDED)
def test_a_rule_that_is_out_is_missed_over_a_server_too(make_store: MakeStore, rule: str) -> None:
    [ablation] = [one for one in ABLATIONS if one.name == rule]
    assert isinstance(ablation.world, Shape)
    seed, kind = first_violation(ablation, ablation.world)
    with ablation.out(), pytest.raises(Failure) as found:
        simulate(seed, ablation.world, make_store)
    assert str(found.value).splitlines()[-1].startswith(f"{kind}:")
    with closing(simulate(seed, ablation.world, make_store).store):
        pass  # with the rule in, the same weather does no harm

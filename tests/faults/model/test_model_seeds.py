"""The seeded simulation of the whole protocol over the real code: I2, I3, I8 and the protocol's other checks.

A failing seed prints its history; `WAL_AGENT_SEEDS=FROM-TO` runs others than the first 2,000.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.faults.model.simulate import simulate

FIRST, _, LAST = os.environ.get("WAL_AGENT_SEEDS", "0-2000").partition("-")
CHUNK = 200

OFTEN = {
    "lost": 200,
    "late": 200,
    "landed late": 80,
    "dropped": 80,
    "crash": 50,
    "opened: first": 150,
    "opened: dead": 200,
    "opened: closed": 20,
    "opened: released": 200,
    "opened: unlocked": 20,
    "unlocked": 20,
    "fenced": 100,
    "allowed": 1500,
    "denied": 200,
    "snapshots": 400,
    "retained": 100,
    "files restored": 100,
    "lease deleted": 10,
}
"""How often each thing has to happen in a chunk of seeds, so that nobody tunes the weather until it is always fine."""


@pytest.mark.parametrize("first", range(int(FIRST), int(LAST), CHUNK))
def test_seeds(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        counts += simulate(seed).counts
    rare = {what: counts[what] for what, least in OFTEN.items() if counts[what] < least}
    assert not rare


def test_a_seed_is_a_history() -> None:
    for seed in (4, 5):
        assert simulate(seed).trace == simulate(seed).trace
    assert simulate(4).trace != simulate(6).trace

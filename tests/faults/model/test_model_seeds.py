"""The seeded simulation of the whole protocol over the real code: I2, I3, I8 and the protocol's other checks.

A failing seed prints its history; `WAL_AGENT_SEEDS=FROM-TO` runs others than the first 1,000.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.faults.model.simulate import BLOBS, simulate
from tests.tiers import once

FIRST, _, LAST = os.environ.get("WAL_AGENT_SEEDS", "0-1000").partition("-")
CHUNK = 200

OFTEN = {
    "lost": 150,
    "late": 200,
    "landed late": 60,
    "dropped": 60,
    "crash": 40,
    "opened: first": 100,
    "opened: dead": 200,
    "opened: closed": 8,
    "opened: released": 150,
    "opened: unlocked": 20,
    "unlocked": 25,
    "fenced": 150,
    "allowed": 1200,
    "denied": 150,
    "tool: completed": 600,
    "tool: background": 40,
    "tool: cut": 40,
    "tool: refused": 40,
    "task allowed": 150,
    "task denied": 20,
    "snapshots": 700,
    "retained": 50,
    "files restored": 100,
    "lease deleted": 8,
}
"""How often each thing has to happen in a chunk of seeds, so that nobody tunes the weather until it is always fine."""


@pytest.mark.parametrize("first", once(range(int(FIRST), int(LAST), CHUNK), int(FIRST)))
def test_seeds(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        counts += simulate(seed).counts
    rare = {what: counts[what] for what, least in OFTEN.items() if counts[what] < least}
    assert not rare


def test_blobs_go_without_clocks() -> None:
    """I3, I4: R7 is off, nothing waits for a day, deletes arrive late, and strangers collect beside the owners."""
    counts: Counter[str] = Counter()
    for seed in range(CHUNK // 2):
        counts += simulate(seed, BLOBS).counts
    often = {"blobs retained": 50, "blobs collected": 50, "deleted late": 50, "files restored": 400}
    rare = {what: counts[what] for what, least in often.items() if counts[what] < least}
    assert not rare


def test_a_seed_is_a_history() -> None:
    for seed in (4, 5):
        assert simulate(seed).trace == simulate(seed).trace
    assert simulate(4).trace != simulate(6).trace

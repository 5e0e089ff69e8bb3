"""wal/damage.py: what is said of a damaged log when the bucket cannot be read to explain it."""

from __future__ import annotations

import pytest

from tests.unit.wal.world import KEYS, World, drain, intent
from wal_agent.bucket.base import Object
from wal_agent.errors import Damaged, Denied, Unavailable
from wal_agent.wal.damage import explain_open_error


def damaged_log() -> World:
    world = World()
    job = world.open("a")
    for n in (1, 2, 3):
        job.writer.append(intent(n))
        drain(job)
    world.inner.delete(KEYS.segment(3))
    world.inner.put(KEYS.segment(3), b"junk")
    return world


def test_it_says_up_to_where_the_log_is_whole() -> None:
    world = damaged_log()
    found = explain_open_error(world.bucket, KEYS, world.seen(), Damaged("met"))
    assert "Everything up to record 2" in str(found)


@pytest.mark.parametrize("error", [Unavailable("away"), Denied("no")])
def test_what_was_met_is_not_replaced_by_what_the_explaining_met(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world = damaged_log()
    seen, met = world.seen(), Damaged("met")

    def refuse(key: str) -> Object:
        raise error

    monkeypatch.setattr(world.inner, "get", refuse)
    assert explain_open_error(world.bucket, KEYS, seen, met) is met

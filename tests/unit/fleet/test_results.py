"""What is acted on, and that nobody acts twice."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.unit.fleet.leases import ELSEWHERE, seen
from wal_agent.bucket.base import MemoryBucket, Version
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, Fenced, Unavailable
from wal_agent.fleet.jobs import Job, JobState, classify_job
from wal_agent.fleet.watch import (
    FIRST_PAUSE,
    KEY,
    Act,
    Memory,
    ResultStore,
    choose_jobs,
    finish_act,
    name_acts,
    orphaned_acts,
    pause_after,
    prune_memory,
    record_acts,
)

ALL = ("crashed", "released", "due")


def job(name: str = "a", state: JobState = "crashed", epoch: int = 1, waits: float = 1.0, mark: str = "") -> Job:
    return Job(job=name, state=state, needs_host=True, epoch=epoch, waits=waits, mark=mark)


def acts(memory: Memory, jobs: list[Job], now: float = 0.0, most: int = 20, on: tuple[str, ...] = ALL) -> list[str]:
    return [f"{act.job}{act.tries}" for act, _ in choose_jobs(memory, jobs, on, now, most=most, tries=3)]


def test_a_job_is_acted_on_once_for_each_epoch_state_and_write_of_its_lease() -> None:
    memory = Memory()
    for found in (job(), job(epoch=2), job(state="released"), job(state="due", mark="1"), job(state="due", mark="2")):
        assert acts(memory, [found]) == ["a1"]
        [(act, _)] = choose_jobs(memory, [found], ALL, 0.0, most=1, tries=3)
        memory = record_acts(memory, [act])
        assert acts(memory, [found]) == []
        memory = record_acts(memory, [finish_act(act, 0, 1.0)])
        assert acts(memory, [found], now=1e9) == []
    assert len(memory.acts) == 5


def test_only_what_needs_a_host_and_was_asked_for_the_longest_waiting_first() -> None:
    jobs = [
        job("a", waits=1),
        job("b", waits=9),
        job("c", "due", waits=5),
        Job(job="d", state="released"),
        job("e", waits=9),
    ]
    assert acts(Memory(), jobs) == ["b1", "e1", "c1", "a1"]
    assert acts(Memory(), jobs, most=2) == ["b1", "e1"]
    assert acts(Memory(), jobs, on=("due",)) == ["c1"]


def test_what_failed_is_tried_again_later_and_not_for_ever() -> None:
    memory, now = Memory(), 0.0
    for tries in (1, 2, 3):
        assert acts(memory, [job()], now) == [f"a{tries}"]
        [(act, _)] = choose_jobs(memory, [job()], ALL, now, most=1, tries=3)
        memory = record_acts(memory, [finish_act(act, 7, now)])
        assert acts(memory, [job()], now + pause_after(tries) - 1) == []
        now += pause_after(tries)
    assert acts(memory, [job()], 1e9) == []
    assert now == FIRST_PAUSE * 7


def test_what_a_dead_watcher_had_begun_is_not_begun_again() -> None:
    memory = record_acts(Memory(), [Act(job="a", epoch=1, state="crashed")])
    assert [act.job for act in orphaned_acts(memory)] == ["a"]
    assert acts(memory, [job()]) == []
    assert acts(record_acts(memory, [replace(act, outcome="unknown") for act in orphaned_acts(memory)]), [job()]) == []


def test_what_jobs_left_behind_is_forgotten_and_what_cannot_be_read_is_not() -> None:
    memory = record_acts(Memory(), [Act(job=name, epoch=1, state="crashed") for name in ("a", "b", "c", "d")])
    now = prune_memory(memory, [job("a"), job("b", epoch=2), Job(job="c", state="damaged")])
    assert [act.job for act in now.acts] == ["a", "c"]


@pytest.mark.parametrize("looked", [True, False], ids=["seen", "between two looks"])
def test_the_crash_that_comes_after_a_false_alarm_is_acted_on(looked: bool) -> None:
    """Its host could not reach the bucket for longer than its ttl, and then renewed its lease under the same epoch."""
    memory = Memory()
    for mark in ("first", "second"):
        lost = classify_job(seen(3600, nonce=mark), ELSEWHERE)
        [(act, _)] = choose_jobs(memory, [lost], ALL, 0.0, most=1, tries=3)
        memory = record_acts(memory, [finish_act(act, 0, 1.0)])
        assert acts(prune_memory(memory, [lost]), [lost], now=1e9) == []
        alive = classify_job(seen(5, nonce=f"{mark} renewed"), ELSEWHERE)
        memory = prune_memory(memory, [alive]) if looked else memory
    assert len(memory.acts) == (0 if looked else 2)


def test_what_we_ended_ourselves_is_no_try() -> None:
    memory = Memory()
    for outcome, tries in ((None, 1), (7, 1), (None, 2), (None, 2), (0, 2)):
        [(act, _)] = choose_jobs(memory, [job()], ALL, 1e6, most=1, tries=3)
        assert act.tries == tries
        memory = record_acts(record_acts(memory, [act]), [finish_act(act, outcome, 0.0)])
    assert [(act.tries, act.outcome) for act in memory.acts] == [(2, "done")]


def test_the_memory_is_bounded_and_no_more_is_acted_on_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_agent.fleet.watch.MAX_ACTS", 3)
    memory = record_acts(Memory(), [Act(job=name, epoch=1, state="crashed") for name in ("a", "b")])
    assert acts(memory, [job("c"), job("d")]) == ["c1"]


def test_it_is_told_in_a_few_words() -> None:
    some = [Act(job=name, epoch=2, state="crashed") for name in "abcde"]
    assert name_acts(some[:1]) == "a (epoch 2)"
    assert name_acts(some) == "a (epoch 2), b (epoch 2), c (epoch 2) and 2 more"


# ---- the object


class Lossy(MemoryBucket):
    """The answers to the next `lost` puts get lost, or the puts never arrive."""

    lost = 0
    dropped = 0

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        if self.dropped:
            self.dropped -= 1
            raise Unavailable("dropped")
        version = super().put(key, data, if_version=if_version)
        if self.lost:
            self.lost -= 1
            raise Unavailable("lost")
        return version


def opened(bucket: MemoryBucket) -> ResultStore:
    return ResultStore(bucket, SystemClock(), random.Random())


def with_one(name: str) -> Memory:
    return record_acts(Memory(), [Act(job=name, epoch=1, state="crashed")])


def test_a_second_watcher_is_refused_before_it_acts() -> None:
    bucket = MemoryBucket()
    first, second = opened(bucket), opened(bucket)
    first.save(with_one("a"))
    with pytest.raises(Fenced):
        second.save(with_one("a"))
    assert second.now.acts == () and [act.job for act in opened(bucket).now.acts] == ["a"]


@pytest.mark.parametrize("kind", ["lost", "dropped"])
def test_a_put_without_an_answer_is_sent_again_and_counts_once(kind: str) -> None:
    bucket = Lossy()
    acted = opened(bucket)
    for n, name in enumerate("abc"):
        setattr(bucket, kind, n)
        acted.save(record_acts(acted.now, with_one(name).acts))
    assert [act.job for act in opened(bucket).now.acts] == ["a", "b", "c"]


def test_what_could_not_be_saved_is_not_known_and_may_land_later() -> None:
    bucket = Lossy()
    acted = opened(bucket)
    bucket.lost = 1
    with pytest.raises(Unavailable):
        acted.save(with_one("a"), budget=0.0)
    assert acted.now.acts == ()
    acted.save(with_one("b"))
    assert [act.job for act in opened(bucket).now.acts] == ["b"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 0}', b"\xff", b"[" * 100_000])
def test_a_memory_that_cannot_be_read_stops_it_with_the_way_out(data: bytes) -> None:
    bucket = MemoryBucket()
    bucket.put(KEY, data)
    with pytest.raises(Damaged, match="Delete it"):
        opened(bucket)

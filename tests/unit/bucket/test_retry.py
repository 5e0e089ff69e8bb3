from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.faulty_bucket import Fault, FaultBucket
from wal_agent.bucket.base import Bucket, MemoryBucket
from wal_agent.bucket.decorators import FIRST_PAUSE, MAX_PAUSE, RetryBucket
from wal_agent.errors import BucketError, Conflict, Denied, NotFound, Unavailable


class Clock:
    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.time

    def boot(self) -> float:
        return self.time

    def awake(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.pauses.append(seconds)


class Calls:
    """A plan that fails the first `failures` calls and remembers all."""

    def __init__(self, failures: int, fault: Fault | None = None) -> None:
        self.failures = failures
        self.fault = fault or Fault(before=True)
        self.seen: list[tuple[str, str]] = []

    def __call__(self, op: str, key: str) -> Fault:
        self.seen.append((op, key))
        return self.fault if len(self.seen) <= self.failures else Fault()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryBucket:
    store = MemoryBucket()
    for number in range(10):
        store.put(f"log/{number}", b"x")
    return store


ACTS: dict[str, Callable[[Bucket], object]] = {
    "get": lambda bucket: bucket.get("log/1").data,
    "list": lambda bucket: [entry.key for entry in bucket.list("log/")],
    "delete": lambda bucket: bucket.delete("log/1"),
    "time": lambda bucket: bucket.time() > 0,
}


@pytest.mark.parametrize("op", sorted(ACTS))
@pytest.mark.parametrize("fault", [Fault(before=True), Fault(after=True)], ids=["not sent", "reply lost"])
def test_what_changes_nothing_twice_is_asked_again(store: MemoryBucket, clock: Clock, op: str, fault: Fault) -> None:
    expected = ACTS[op](MemoryBucket() if op == "delete" else store)
    calls = Calls(3, fault)
    bucket = RetryBucket(FaultBucket(store, calls), clock, Random(1))
    assert ACTS[op](bucket) == expected
    assert [op for op, _ in calls.seen] == [op] * 4
    assert len(clock.pauses) == 3


@pytest.mark.parametrize("op", sorted(ACTS))
def test_it_gives_up_with_the_buckets_own_error(store: MemoryBucket, clock: Clock, op: str) -> None:
    calls = Calls(99)
    bucket = RetryBucket(FaultBucket(store, calls), clock, Random(1), attempts=4, deadline=1e9)
    with pytest.raises(Unavailable, match="did not answer"):
        ACTS[op](bucket)
    assert len(calls.seen) == 4


def test_it_never_waits_past_its_deadline(store: MemoryBucket, clock: Clock) -> None:
    bucket = RetryBucket(FaultBucket(store, Calls(999)), clock, Random(1), attempts=999, deadline=60.0)
    with pytest.raises(Unavailable):
        bucket.get("log/1")
    assert 60.0 - MAX_PAUSE <= clock.time <= 60.0


def test_pauses_are_jittered_grow_and_are_capped(store: MemoryBucket, clock: Clock) -> None:
    with pytest.raises(Unavailable):
        RetryBucket(FaultBucket(store, Calls(9999)), clock, Random(1), attempts=2000, deadline=1e9).get("log/1")
    limits = [min(MAX_PAUSE, FIRST_PAUSE * 2**n) for n in range(1, 12)]
    assert all(0 <= pause <= limit for pause, limit in zip(clock.pauses, [FIRST_PAUSE, *limits], strict=False))
    late = sorted(clock.pauses[20:])
    assert late[0] < 0.1 * MAX_PAUSE
    assert 0.9 * MAX_PAUSE < late[-1] <= MAX_PAUSE


@pytest.mark.parametrize(
    "fault", [Fault(before=True), Fault(after=True), Fault(late=2)], ids=["before", "after", "late"]
)
def test_a_put_is_sent_once(store: MemoryBucket, clock: Clock, fault: Fault) -> None:
    calls = Calls(1, fault)
    bucket = RetryBucket(FaultBucket(store, calls), clock, Random(1))
    with pytest.raises(Unavailable):
        bucket.put("new", b"")
    assert calls.seen == [("put", "new")]
    calls.seen.clear()
    with pytest.raises(Unavailable):
        bucket.put("log/1", b"", if_version=store.get("log/1").version)
    assert calls.seen == [("put", "log/1")]
    assert clock.pauses == []


def test_an_answer_is_not_asked_for_again(store: MemoryBucket, clock: Clock) -> None:
    calls = Calls(0)
    bucket = RetryBucket(FaultBucket(store, calls), clock, Random(1))
    with pytest.raises(NotFound):
        bucket.get("absent")
    with pytest.raises(Conflict):
        bucket.put("log/1", b"")
    assert len(calls.seen) == 2

    def denied(op: str, key: str) -> Fault:
        calls.seen.append((op, key))
        raise Denied("no.")

    for act in ACTS.values():
        calls.seen.clear()
        with pytest.raises(BucketError, match="no"):
            act(RetryBucket(FaultBucket(store, denied), clock, Random(1)))
        assert len(calls.seen) == 1


def test_a_listing_that_breaks_off_goes_on_where_it_was(store: MemoryBucket, clock: Clock) -> None:
    """Each try here gives half of what is left; patience is renewed by every step forward."""
    calls = Calls(4, Fault(after=True))
    bucket = RetryBucket(FaultBucket(store, calls), clock, Random(1), attempts=3)
    assert [entry.key for entry in bucket.list("log/")] == [f"log/{number}" for number in range(10)]
    assert len(calls.seen) == 5

from __future__ import annotations

import pytest

from tests.faulty_bucket import Fault, FaultBucket
from wal_agent.bucket.base import MemoryBucket
from wal_agent.bucket.decorators import MeterBucket, OpUsage
from wal_agent.errors import Conflict, NotFound, Unavailable


def test_requests_bytes_and_errors_are_counted_by_operation() -> None:
    bucket = MeterBucket(MemoryBucket())
    before = bucket.snapshot()
    version = bucket.put("log/1", b"12345")
    bucket.put("log/1", b"678", if_version=version)
    bucket.get("log/1")
    with pytest.raises(Conflict):
        bucket.put("log/1", b"9")
    for _ in range(2):
        with pytest.raises(NotFound):
            bucket.get("log/2")
    assert len([*bucket.list("log/")]) == 1
    bucket.delete("log/1")
    bucket.time()
    usage = bucket.snapshot()
    assert usage.put == OpUsage(requests=3, sent=9, errors={"Conflict": 1}, answered=2)
    assert usage.get == OpUsage(requests=3, received=3, errors={"NotFound": 2}, answered=1)
    assert usage.list == OpUsage(requests=1, received=5, answered=1)
    assert (usage.delete, usage.time) == (OpUsage(requests=1, answered=1),) * 2
    assert (usage.requests, usage.sent) == (9, 9)
    assert before.requests == 0


def test_errors_of_a_listing_are_counted_when_they_come() -> None:
    bucket = MeterBucket(FaultBucket(MemoryBucket(), lambda op, key: Fault(before=True)))
    listing = bucket.list("a")
    assert bucket.snapshot().list == OpUsage(requests=1)
    with pytest.raises(Unavailable):
        next(listing)
    assert bucket.snapshot().list == OpUsage(requests=1, errors={"Unavailable": 1})


def test_a_request_for_what_had_no_answer_is_a_retry_once() -> None:
    lost = iter([Fault(before=True), Fault(before=True), Fault(), Fault()])
    bucket = MeterBucket(FaultBucket(MemoryBucket(), lambda op, key: next(lost)))
    for _ in range(2):
        with pytest.raises(Unavailable):
            bucket.put("a", b"1")
    bucket.put("a", b"1")
    bucket.put("b", b"1")
    used = bucket.snapshot().put
    assert (used.requests, used.answered, used.retries, used.errors) == (4, 2, 2, {"Unavailable": 2})

"""bucket/examine.py: times and clocks as they are told, and errors as findings."""

from __future__ import annotations

import pytest

from tests.unit.bucket.test_check import IgnoresCreates, Lacks
from tests.unit.wal.world import FakeClock
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.check import Finding
from wal_agent.bucket.examine import PUTS, WARM_UP, clock_offset, examine, put_times, quantile
from wal_agent.bucket.faults import Fault, FaultBucket
from wal_agent.bucket.memory import MemoryBucket


class Slow(MemoryBucket):
    """Each put takes the next of `trips`, in seconds; its own clock is `ahead` of ours."""

    def __init__(self, clock: FakeClock, trips: list[float], ahead: float = 0.0, whole: bool = False) -> None:
        super().__init__(clock=lambda: clock.at + ahead)
        self.here, self.trips, self.whole = clock, trips, whole
        self.names: list[str] = []
        self.deletes: list[tuple[str, ...]] = []

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        self.here.at += self.trips.pop(0)
        self.names.append(key)
        return super().put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        self.deletes.append(keys)
        super().delete(*keys)

    def time(self) -> float:
        self.here.at += 1.0  # the way there, and below the way back
        told = super().time()
        self.here.at += 1.0
        return float(int(told)) if self.whole else told


def test_put_times_leave_the_first_ones_out_and_nothing_behind() -> None:
    """Each put has a name of its own (stores limit writes to one name); all are removed in one request."""
    clock = FakeClock()
    store = Slow(clock, [9.0] * WARM_UP + [0.030] * 10 + [0.040] * 8 + [0.050, 0.700])
    said = put_times(store, "job/probe", clock)
    assert said.ok and f"about 30 ms (put: p50 30 ms, p95 50 ms, n={PUTS})" in said.check
    assert len(set(store.names)) == WARM_UP + PUTS == len(store.names)
    assert [sorted(keys) for keys in store.deletes] == [sorted(store.names)] and [*store.list("")] == []


def test_quick_puts_have_a_digit_more() -> None:
    clock = FakeClock()
    assert "about 0.4 ms" in put_times(Slow(clock, [0.0004] * 99), "", clock).check


@pytest.mark.parametrize(("q", "wanted"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.95, 4), (1.0, 4)])
def test_quantiles_are_values_that_were_measured(q: float, wanted: float) -> None:
    assert quantile([4, 1, 3, 2], q) == wanted


@pytest.mark.parametrize(
    ("ahead", "whole", "words"),
    [
        (0.0, False, "agree within 2 s"),
        (1.9, False, "agree within 2 s"),
        (-1.9, False, "agree within 2 s"),
        (0.9, True, "agree within 2 s"),  # told as 0, counted as 0.5
        (-2.3, True, "2 s behind"),  # told as -3
        (2.1, False, "2 s ahead of this machine's; the lease goes by the store's alone"),
        (-37.2, False, "37 s behind this machine's; the lease goes by the store's alone"),
        (61.2, False, "61 s ahead of this machine's; the lease goes by the store's alone, but set this machine's"),
    ],
)
def test_the_stores_clock_is_compared_in_the_middle_of_the_round_trip(ahead: float, whole: bool, words: str) -> None:
    """It is told and never a failure: nothing that decides compares the two clocks (I2)."""
    clock = FakeClock()
    said = clock_offset(Slow(clock, [], ahead, whole), clock)
    assert said.ok and words in said.check
    assert ("set this machine's" in said.check) == (abs(ahead) > 60)


def test_an_honest_bucket_is_found_good_in_all_and_left_empty() -> None:
    store = MemoryBucket()
    found = [*examine(store, "job/probe", FakeClock(0.0))]
    assert len(found) == 12 and all(finding.ok for finding in found)
    assert [*store.list("")] == []


def failures(bucket: Bucket) -> list[Finding]:
    return [finding for finding in examine(bucket, "job/probe", FakeClock()) if not finding.ok]


def test_a_store_that_ignores_conditions_fails_and_the_rest_is_told() -> None:
    assert ("a second create is refused", "it was carried out") in [
        (f.check, f.detail) for f in failures(IgnoresCreates())
    ]
    assert "changing tool call waits" in [*examine(IgnoresCreates(), "", FakeClock())][-2].check


def test_an_outage_is_a_finding_with_its_reason() -> None:
    found = failures(FaultBucket(MemoryBucket(), lambda op, key: Fault(before=True)))
    assert [finding.check for finding in found] == ["it can be used"] and "did not answer" in found[0].detail


def test_an_outage_in_the_middle_of_the_puts_leaves_nothing() -> None:
    store = MemoryBucket()

    def plan(op: str, key: str) -> Fault:
        return Fault(after=op == "put" and key.endswith("-10"))

    found = failures(FaultBucket(store, plan))
    assert [finding.check for finding in found] == ["it can be used"] and [*store.list("")] == []


@pytest.mark.parametrize("missing", ["create", "read", "list", "replace", "delete"])
def test_what_needs_a_permission_that_is_missing_is_left_out(missing: str) -> None:
    """Nothing is put that could not be removed, and no time asked where that needs a listing."""
    store = Lacks(missing)
    found = [*examine(store, "job/probe", FakeClock())]
    assert [finding.check for finding in found if not finding.ok] == [missing]
    assert any("changing tool call" in f.check for f in found) == (missing not in ("create", "delete"))
    assert any("clock" in f.check for f in found) == (missing != "list")
    assert len(store._keys) == (3 if missing == "delete" else 0)

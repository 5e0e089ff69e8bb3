"""bucket/check.py: a store that breaks the contract is found out, and how well a bucket serves is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faulty_bucket import Fault, FaultBucket, Faults
from tests.unit.wal.world import FakeClock
from wal_agent.bucket.base import Bucket, Entry, MemoryBucket, Object
from wal_agent.bucket.check import (
    PUTS,
    WARM_UP,
    Finding,
    clock_offset,
    examine,
    probe,
    put_times,
    quantile,
    require_conditions,
)
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import ConfigError, Conflict, Denied, Misconfigured, NotFound, Unavailable


class IgnoresCreates(MemoryBucket):
    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        if if_version is None:
            self.delete(key)
        return super().put(key, data, if_version=if_version)


class IgnoresVersions(MemoryBucket):
    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        if if_version is not None:
            self.delete(key)
        return super().put(key, data)


class WritesBeforeItRefuses(MemoryBucket):
    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        try:
            return super().put(key, data, if_version=if_version)
        except Conflict:
            super().put(key, data, if_version=self.get(key).version)
            raise


class NeverReplaces(MemoryBucket):
    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        return super().put(key, data)


class SaysNotFound(MemoryBucket):
    """As some S3 servers answer If-Match on an absent key; a bucket's own code has to make a Conflict of it."""

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        if if_version is not None:
            self.get(key)
        return super().put(key, data, if_version=if_version)


class ForgetsToReplace(MemoryBucket):
    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        if if_version is None:
            return super().put(key, data)
        old = self.get(key)
        return super().put(key, old.data, if_version=if_version)


class RepeatsVersions(MemoryBucket):
    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        if if_version is None or self.get(key).version == if_version:
            super().put(key, data, if_version=if_version)
            return if_version or self.get(key).version
        raise Conflict("no.")


class ListsLate(MemoryBucket):
    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return iter([*super().list(prefix, start_after)][:-1])


class ListsWhatIsGone(MemoryBucket):
    gone: tuple[Entry, ...] = ()

    def delete(self, *keys: str) -> None:
        self.gone += tuple(entry for entry in super().list("") if entry.key in keys)
        super().delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return iter([*self.gone, *super().list(prefix, start_after)])


class NeverDeletes(MemoryBucket):
    def delete(self, *keys: str) -> None:
        pass


BROKEN: dict[type[MemoryBucket], str] = {
    IgnoresCreates: "a second create is refused: it was carried out",
    IgnoresVersions: "a replace of another version is refused",
    WritesBeforeItRefuses: "what was refused changed nothing",
    NeverReplaces: "the current version can be replaced",
    SaysNotFound: "a replace of an absent object is refused: it was answered with not found",
    ForgetsToReplace: "a replaced object reads as the newer one",
    RepeatsVersions: "the current version can be replaced: same version",
    ListsLate: "a listing shows what was put",
    ListsWhatIsGone: "a listing leaves out what was deleted",
    NeverDeletes: "what was deleted is gone",
}


@pytest.mark.parametrize("prefix", ["", "job", "fleet/job/"])
def test_honest_buckets_pass_and_nothing_is_left(tmp_path: Path, prefix: str) -> None:
    for bucket in (MemoryBucket(), FileBucket(tmp_path)):
        findings = probe(bucket, prefix)
        assert len(findings) == len({finding.check for finding in findings}) == 10
        assert [finding for finding in findings if not finding.ok or finding.detail] == []
        require_conditions(bucket, prefix)
        assert [*bucket.list("")] == []


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_bucket_is_found_out_and_refused(broken: type[MemoryBucket]) -> None:
    with pytest.raises(ConfigError) as caught:
        require_conditions(broken())
    assert BROKEN[broken] in str(caught.value)


def test_every_check_has_a_bucket_that_fails_it() -> None:
    failed = {finding.check for broken in BROKEN for finding in probe(broken()) if not finding.ok}
    assert failed == {finding.check for finding in probe(MemoryBucket())}


# ---- a store that answers late, or only so often


def test_nobody_waits_for_a_bucket_that_answers(tmp_path: Path) -> None:
    for bucket in (MemoryBucket(), FileBucket(tmp_path)):
        clock = FakeClock(0.0)
        assert all(finding.ok for finding in probe(bucket, clock=clock)) and clock.at == 0.0


class OneWriteASecond(MemoryBucket):
    """As GCS, at its worst: refused puts and deletes count too, and each request takes `trip` seconds."""

    def __init__(self, trip: float) -> None:
        self.clock = FakeClock(0.0)
        self.trip = trip
        self.last: dict[str, float] = {}
        self.told_off = 0
        super().__init__(clock=self.clock.now)

    def write(self, key: str) -> None:
        self.clock.at += self.trip
        if self.clock.at - self.last.get(key, -10.0) < 1.0:
            self.told_off += 1
            raise Unavailable(f"429 for {key}")
        self.last[key] = self.clock.at

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        self.write(key)
        return super().put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.write(key)
        super().delete(*keys)


@pytest.mark.parametrize("trip", [0.0, 0.03, 0.4])
def test_a_store_that_takes_one_write_a_second_to_a_name_passes(trip: float) -> None:
    """Second writes to a name come late, and once more after a second where that is too soon."""
    store = OneWriteASecond(trip)
    require_conditions(store, "job", store.clock)
    assert [*store.list("")] == []
    assert store.told_off <= 6 and store.clock.at < 15


REQUESTS = 16  # that a probe makes of a FaultBucket


def test_every_request_is_covered_below() -> None:
    made: list[str] = []

    def plan(op: str, key: str) -> Fault:
        made.append(op)
        return Fault()

    probe(FaultBucket(MemoryBucket(), plan))
    assert len(made) == REQUESTS


def once(n: int, **fault: bool) -> Callable[[str, str], Fault]:
    """A plan under which the n-th call goes wrong."""
    calls = 0

    def plan(op: str, key: str) -> Fault:
        nonlocal calls
        calls += 1
        return Fault(**fault) if calls == n else Fault()

    return plan


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("n", range(1, REQUESTS + 1))
def test_one_request_that_is_not_answered_is_no_finding(n: int, fault: str) -> None:
    """It may have landed: an own create or replace whose reply was lost is not taken for a conflict."""
    store = MemoryBucket()
    clock = FakeClock(0.0)
    findings = probe(FaultBucket(store, once(n, **{fault: True})), clock=clock)
    assert [finding for finding in findings if not finding.ok] == [] and len(findings) == 10
    assert 1.0 < clock.at < 2.0
    assert [*store.list("")] == []


def test_a_broken_store_is_found_out_through_a_lost_reply() -> None:
    for n in range(1, REQUESTS + 1):
        bucket = FaultBucket(IgnoresCreates(), once(n, after=True))
        with pytest.raises(ConfigError, match="a second create is refused: it was carried out"):
            require_conditions(bucket, clock=FakeClock())


class Answers:
    """A plan: which of the calls so far were not answered, each after `hangs` seconds."""

    def __init__(self, clock: FakeClock, lost: Callable[[int], bool], hangs: float = 0.0) -> None:
        self.clock, self.lost, self.hangs = clock, lost, hangs
        self.calls = 0

    def __call__(self, op: str, key: str) -> Fault:
        self.calls += 1
        if not self.lost(self.calls):
            return Fault()
        self.clock.at += self.hangs
        return Fault(before=True)


@pytest.mark.parametrize(("hangs", "tries"), [(0.0, 19), (10.0, 2)])
def test_an_outage_is_no_finding_and_leaves_nothing(hangs: float, tries: int) -> None:
    """It is asked again, for twenty seconds in all: a black hole twice, what refuses at once more often."""
    store, clock = MemoryBucket(), FakeClock(0.0)
    plan = Answers(clock, lambda n: 5 <= n < 5 + tries, hangs)
    with pytest.raises(Unavailable):
        probe(FaultBucket(store, plan), clock=clock)
    assert plan.calls == 4 + tries + 3 and clock.at <= 21.1  # the last ones remove what was made
    assert [*store.list("")] == []


@pytest.mark.parametrize("share", [0.1, 0.4])
@pytest.mark.parametrize("landed", [False, True])
def test_a_store_that_fails_now_and_then_is_used(share: float, landed: bool) -> None:
    """Also 409 for four puts of ten; `doctor` tells the rate."""
    for seed in range(20):
        clock = FakeClock(0.0)
        before, after = (0.0, share) if landed else (share, 0.0)
        faults = Faults(Random(seed), error_before=before, error_after=after)

        def plan(op: str, key: str, faults: Faults = faults) -> Fault:
            return faults(op, key) if share < 0.3 or op == "put" else Fault()

        require_conditions(FaultBucket(MemoryBucket(), plan), "job", clock)
        found = [*examine(FaultBucket(MemoryBucket(), plan), "job", clock)]
        assert [finding for finding in found if not finding.ok] == []
    assert "requests unanswered" in found[-1].check


class SentTwice(MemoryBucket):
    """Behind a proxy that sends each put again, and passes on what came of the second one."""

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        super().put(key, data, if_version=if_version)
        return super().put(key, data, if_version=if_version)


def test_a_put_that_met_itself_has_landed() -> None:
    """A refused put that should succeed is read back. One that should be refused is not."""
    store = SentTwice()
    require_conditions(store, "job")
    assert all(finding.ok for finding in examine(store, "job/probe", FakeClock()))
    assert [*store.list("")] == []


# ---- permissions


class Lacks(MemoryBucket):
    """A principal without some permissions; for absent objects it is answered as by S3 when it may not list."""

    def __init__(self, *missing: str) -> None:
        super().__init__()
        self.missing = missing

    def need(self, operation: str) -> None:
        if operation in self.missing:
            raise Denied(f"this needs {operation.upper()}.")

    def get(self, key: str) -> Object:
        self.need("read")
        try:
            return super().get(key)
        except NotFound:
            if "list" in self.missing:
                raise Denied("S3 says so of absent objects too.") from None
            raise

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
        there = key in self._objects
        self.need("replace" if if_version or there else "create")
        return super().put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        self.need("delete")
        super().delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self.need("list")
        return super().list(prefix, start_after)


@pytest.mark.parametrize(
    ("missing", "tried"),
    [("create", 0), ("read", 7), ("list", 6), ("replace", 3), ("delete", 8)],
)
def test_a_missing_permission_is_named_and_the_rest_is_tried(missing: str, tried: int) -> None:
    findings = probe(Lacks(missing))
    denied = [finding for finding in findings if finding.denied]
    assert [(f.check, f.ok) for f in denied] == [(missing, False)]
    assert denied[0].detail.startswith(f"permission missing: this needs {missing.upper()}.")
    assert [f for f in findings if not f.ok and not f.denied] == []
    assert len(findings) - 1 == tried
    with pytest.raises(Denied, match=missing.upper()):
        require_conditions(Lacks(missing))


def test_without_any_permission_each_one_is_named() -> None:
    """Whether an object can be read cannot be told without one, where listing is denied too."""
    findings = probe(Lacks("create", "read", "list", "replace", "delete"))
    assert [f.check for f in findings] == ["create", "list", "delete"]
    assert [f.check for f in probe(Lacks("create", "read"))] == ["create", "read"]


def test_what_cannot_be_removed_is_named() -> None:
    store = Lacks("delete")
    [finding] = [f for f in probe(store, "job") if f.denied]
    left = [entry.key for entry in store.list("")]
    assert len(left) == 3 and finding.detail.endswith(f" Left there: {', '.join(left)}.")
    assert "Left there" not in probe(Lacks("delete", "create"))[-1].detail


def test_a_broken_store_is_refused_although_a_permission_is_missing() -> None:
    class Both(Lacks):
        def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
            self._objects.pop(key, None)
            self._keys[:] = sorted(self._objects)
            return super().put(key, data)

    with pytest.raises(ConfigError, match="a second create is refused"):
        require_conditions(Both("list"))


def test_a_bucket_that_is_not_there_is_one_error() -> None:
    class Nowhere(MemoryBucket):
        def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
            raise Misconfigured("There is no such bucket.")

    with pytest.raises(Misconfigured):
        probe(Nowhere())


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
    assert len(found) == 13 and all(finding.ok for finding in found)
    assert found[-1].check.startswith("it answered each of ") and [*store.list("")] == []


def failures(bucket: Bucket) -> list[Finding]:
    return [finding for finding in examine(bucket, "job/probe", FakeClock()) if not finding.ok]


def test_a_store_that_ignores_conditions_fails_and_the_rest_is_told() -> None:
    assert ("a second create is refused", "it was carried out") in [
        (f.check, f.detail) for f in failures(IgnoresCreates())
    ]
    assert "changing tool call waits" in [*examine(IgnoresCreates(), "", FakeClock())][-3].check


def test_an_outage_is_a_finding_with_its_reason() -> None:
    found = failures(FaultBucket(MemoryBucket(), lambda op, key: Fault(before=True)))
    assert [finding.check for finding in found] == ["it can be used"] and "did not answer" in found[0].detail


def test_an_outage_in_the_middle_of_the_puts_leaves_nothing() -> None:
    store = MemoryBucket()

    def plan(op: str, key: str) -> Fault:
        return Fault(after=op == "put" and "/put-" in key and int(key[-2:]) >= 10)

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

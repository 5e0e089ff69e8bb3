"""The probe passes every honest bucket and catches each way to break the contract, one broken store per check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wal_agent.bucket.base import Entry, Object
from wal_agent.bucket.check import probe, require_conditions
from wal_agent.bucket.faults import Fault, FaultBucket
from wal_agent.bucket.file import FileBucket
from wal_agent.bucket.memory import MemoryBucket
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


def never(seconds: float) -> None:
    raise AssertionError("an honest, quick bucket is not waited for")


def test_nobody_waits_for_a_bucket_that_answers(tmp_path: Path) -> None:
    for bucket in (MemoryBucket(), FileBucket(tmp_path)):
        assert all(finding.ok for finding in probe(bucket, sleep=never))


class OneWriteASecond(MemoryBucket):
    """As GCS, at its worst: refused puts and deletes count too, and each request takes `trip` seconds."""

    def __init__(self, trip: float) -> None:
        self.at = 0.0
        self.trip = trip
        self.last: dict[str, float] = {}
        self.told_off = 0
        super().__init__(clock=lambda: self.at)

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def write(self, key: str) -> None:
        self.at += self.trip
        if self.at - self.last.get(key, -10.0) < 1.0:
            self.told_off += 1
            raise Unavailable(f"429 for {key}")
        self.last[key] = self.at

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
    require_conditions(store, "job", sleep=store.sleep)
    assert [*store.list("")] == []
    assert store.told_off <= 6 and store.at < 15


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
    slept: list[float] = []
    findings = probe(FaultBucket(store, once(n, **{fault: True})), sleep=slept.append)
    assert [finding for finding in findings if not finding.ok] == [] and len(findings) == 10
    assert len(slept) == 1 and slept[0] > 1.0
    assert [*store.list("")] == []


def test_a_broken_store_is_found_out_through_a_lost_reply() -> None:
    for n in range(1, REQUESTS + 1):
        bucket = FaultBucket(IgnoresCreates(), once(n, after=True))
        with pytest.raises(ConfigError, match="a second create is refused: it was carried out"):
            require_conditions(bucket, sleep=lambda _: None)


def test_an_outage_is_no_finding_and_leaves_nothing() -> None:
    store, down = MemoryBucket(), [5, 6]
    calls = 0

    def plan(op: str, key: str) -> Fault:
        nonlocal calls
        calls += 1
        return Fault(before=calls in down)

    with pytest.raises(Unavailable):
        probe(FaultBucket(store, plan), sleep=lambda _: None)
    assert calls > 6
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

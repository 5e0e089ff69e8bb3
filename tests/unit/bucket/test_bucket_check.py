"""The probe passes every honest bucket and catches each way to break the contract, one broken store per check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wal_agent.bucket.base import Bucket, Entry
from wal_agent.bucket.check import probe, require_conditions
from wal_agent.bucket.faults import Fault, FaultBucket
from wal_agent.bucket.file import FileBucket
from wal_agent.bucket.memory import MemoryBucket
from wal_agent.errors import ConfigError, Conflict, NotFound, Unavailable


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


def test_an_outage_is_no_finding_and_leaves_nothing() -> None:
    store = MemoryBucket()
    calls = 0

    def plan(op: str, key: str) -> Fault:
        nonlocal calls
        calls += 1
        return Fault(after=calls == 5)

    bucket: Bucket = FaultBucket(store, plan)
    with pytest.raises(Unavailable):
        probe(bucket)
    assert calls > 5
    assert [*store.list("")] == []
    with pytest.raises(NotFound):
        store.get("probe")

"""Display names: resolved, taken by compare-and-swap, and read as foreign data."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.fleet.leases import store
from wal_agent.bucket.base import Bucket, BucketDecorator, MemoryBucket, Object, Version
from wal_agent.bucket.folder import remember_run
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, Denied, LeaseHeld, Newer, Unavailable, UsageError
from wal_agent.wal import names
from wal_agent.wal.names import KEY, JobNames, rename_job, resolve_name

ENV: Mapping[str, str] = {"HOME": "/nonexistent"}
RNG = random.Random(1)


@pytest.fixture
def bucket() -> MemoryBucket:
    made = MemoryBucket()
    for job in ("one", "two"):
        store(made, job)
    return made


def rename(bucket: Bucket, job: str, name: str) -> str:
    return rename_job(bucket, job, name, ENV, SystemClock(), RNG, budget=0.5)


def stored(bucket: Bucket) -> dict[str, str]:
    return names.read_names(bucket)[0].names


def write(bucket: Bucket, value: object) -> None:
    bucket.delete(KEY)
    bucket.put(KEY, value if isinstance(value, bytes) else json.dumps(value).encode())


def test_a_display_name_leads_to_its_job_and_a_job_has_one(bucket: MemoryBucket) -> None:
    before = bucket.get("one/lease.json").version
    assert rename(bucket, "one", "nightly") == ""
    assert resolve_name(bucket, "nightly", ENV) == "one" and resolve_name(bucket, "one", ENV) == "one"
    assert rename(bucket, "one", "daily") == "nightly" and stored(bucket) == {"daily": "one"}
    assert resolve_name(bucket, "nightly", ENV) == "nightly"
    assert rename(bucket, "one", "one") == "daily" and stored(bucket) == {}
    assert bucket.get("one/lease.json").version == before, "a live run goes on: nothing of the job is written"


@pytest.mark.parametrize("name", ["two", "taken", "", ".hidden", "a/b", "\x1b[2J", "n" * 101])
def test_a_name_that_is_taken_or_none_is_refused(bucket: MemoryBucket, name: str) -> None:
    rename(bucket, "two", "taken")
    before = stored(bucket)
    with pytest.raises(UsageError):
        rename(bucket, "one", name)
    assert stored(bucket) == before


def test_a_display_name_whose_job_is_gone_can_be_taken(bucket: MemoryBucket) -> None:
    rename(bucket, "one", "nightly")
    bucket.delete("one/lease.json")
    assert resolve_name(bucket, "nightly", ENV) == "nightly"
    rename(bucket, "two", "nightly")
    assert stored(bucket) == {"nightly": "two"}


def test_so_many_display_names_and_no_more(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    monkeypatch.setattr(names, "MAX_NAMES", 1)
    rename(bucket, "one", "nightly")
    with pytest.raises(UsageError, match="the most"):
        rename(bucket, "two", "daily")
    rename(bucket, "one", "weekly")
    assert stored(bucket) == {"weekly": "one"}


def test_an_own_name_goes_before_a_display_name(bucket: MemoryBucket, tmp_path: Path) -> None:
    """Who writes the bucket cannot lead a command for a job of this person to another job."""
    write(bucket, {"format": 1, "names": {"one": "two", "mine": "two"}})
    assert resolve_name(bucket, "one", ENV) == "one"
    bucket.put("two2/lease.json", b"damaged")
    write(bucket, {"format": 1, "names": {"two2": "two"}})
    assert resolve_name(bucket, "two2", ENV) == "two2"
    far, env = MemoryBucket(), {"HOME": str(tmp_path)}
    far.url = "s3://far"
    store(far, "two")
    write(far, {"format": 1, "names": {"mine": "two"}})
    assert resolve_name(far, "mine", env) == "two"
    remember_run(far.url, "", "mine", 3, env)  # its lease was deleted since
    assert resolve_name(far, "mine", env) == "mine"


def test_names_of_a_hostile_bucket_have_the_form_of_names(bucket: MemoryBucket) -> None:
    hostile = {"\x1b[2J": "one", "../x": "one", "ok": "one", "second": "one", "x": "a/b", "two": "two", "": "two"}
    write(bucket, {"format": 1, "names": hostile})
    assert stored(bucket) == {"ok": "one"}
    assert names.names_to_show(bucket) == {"one": "ok"}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"[]", Damaged),
        (b"\xff", Damaged),
        (b'{"format": 1, "names": {"a": 3}}', Damaged),
        (b" " * (names.MAX_BYTES + 1), Damaged),
        (b'{"format": 2}', Newer),
    ],
)
def test_names_that_cannot_be_read(bucket: MemoryBucket, data: bytes, kind: type[Exception]) -> None:
    """A start under an unknown name is no new job then; own names and listings work."""
    write(bucket, data)
    assert resolve_name(bucket, "one", ENV) == "one" and names.names_to_show(bucket) == {}
    with pytest.raises(kind):
        resolve_name(bucket, "nightly", ENV)
    with pytest.raises(kind):
        rename(bucket, "one", "nightly")
    assert bucket.get(KEY).data == data


class Odd(BucketDecorator):
    """Another person acts before the first put of the names; or that put lands although its reply is lost."""

    def __init__(self, inner: Bucket, other: tuple[str, str] | None = None, lost: bool = False) -> None:
        super().__init__(inner)
        self.other, self.lost = other, lost

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        if key == KEY and self.other is not None:
            other, self.other = self.other, None
            rename(self._inner, *other)
        made = super().put(key, data, if_version=if_version)
        if key == KEY and self.lost:
            self.lost = False
            raise Unavailable("the reply is lost")
        return made


def test_two_persons_at_once(bucket: MemoryBucket) -> None:
    """One wins, by compare-and-swap, and the other one reads who."""
    with pytest.raises(LeaseHeld, match="renamed to theirs"):
        rename(Odd(bucket, ("one", "theirs")), "one", "mine")
    assert stored(bucket) == {"theirs": "one"}
    with pytest.raises(UsageError, match="display name of job two"):
        rename(Odd(bucket, ("two", "same")), "one", "same")
    assert stored(bucket) == {"theirs": "one", "same": "two"}
    rename(Odd(bucket, ("two", "other")), "one", "mine")
    assert stored(bucket) == {"mine": "one", "other": "two"}, "what another person did to another job stays"


def test_a_lost_reply_is_no_failure(bucket: MemoryBucket) -> None:
    assert rename(Odd(bucket, lost=True), "one", "nightly") == "" and stored(bucket) == {"nightly": "one"}


class Away(BucketDecorator):
    def __init__(self, inner: Bucket, error: Exception) -> None:
        super().__init__(inner)
        self.error = error

    def get(self, key: str) -> Object:
        raise self.error


def test_a_bucket_that_cannot_be_asked(bucket: MemoryBucket) -> None:
    """Without an answer nothing is taken for a new job; where names may not be read, there are none."""
    with pytest.raises(Unavailable):
        resolve_name(Away(bucket, Unavailable("away")), "nightly", ENV)
    assert resolve_name(Away(bucket, Denied("no")), "nightly", ENV) == "nightly"


def test_the_object_is_small_json_that_grows_by_fields() -> None:
    assert names.decode_names(b'{"format": 1, "names": {"a": "b"}, "later": 1}') == JobNames(names={"a": "b"})


def test_an_object_is_read_up_to_its_size() -> None:
    for size, sound in ((names.MAX_BYTES, True), (names.MAX_BYTES + 1, False)):
        data = b'{"format":1}'.ljust(size)
        if sound:
            assert names.decode_names(data).names == {}
        else:
            with pytest.raises(Damaged, match="is damaged"):
                names.decode_names(data)

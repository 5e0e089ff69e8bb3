"""The contract of wal_agent/bucket/base.py, sentence by sentence, against every bucket and decorator.

What only a killed process or a power loss can show stands in tests/faults and tests/unit/bucket/test_file.py.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from urllib.parse import quote as percent

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.wire import like_ceph
from tests.faulty_bucket import Fault, FaultBucket
from tests.servers import CREDENTIALS, fresh_bucket, shared
from tests.tiers import examples
from wal_agent.bucket.azure import AzureBucket
from wal_agent.bucket.base import MAX_KEY, MAX_PART, Bucket, Entry, MemoryBucket
from wal_agent.bucket.check import require_conditions
from wal_agent.bucket.decorators import MeterBucket, RetryBucket
from wal_agent.bucket.encryption import EncryptedBucket, Key
from wal_agent.bucket.file import FileBucket
from wal_agent.bucket.gcs import GcsBucket
from wal_agent.bucket.s3 import S3Bucket
from wal_agent.clock import SystemClock
from wal_agent.errors import ConfigError, Conflict, NotFound, Unavailable

BUCKETS: dict[str, Callable[[Path], Bucket]] = {
    "memory": lambda folder: MemoryBucket(),
    "file": lambda folder: FileBucket(folder / "bucket", lock_timeout=60),
    "file-known": lambda folder: known(folder / "bucket"),
    "file-retried": lambda folder: RetryBucket(
        FileBucket(folder / "bucket", lock_timeout=60), SystemClock(), Random(1)
    ),
    "memory-metered": lambda folder: MeterBucket(MemoryBucket()),
    "memory-encrypted": lambda folder: encrypted(MemoryBucket()),
    "file-encrypted": lambda folder: encrypted(FileBucket(folder / "bucket", lock_timeout=60)),
    "memory-without-faults": lambda folder: FaultBucket(MemoryBucket(), lambda op, key: Fault()),
    "gcs-fake": lambda folder: GcsBucket(fresh_prefix("fake-gcs"), shared("fake-gcs").endpoint),
    "az-azurite": lambda folder: AzureBucket(fresh_prefix("azurite"), shared("azurite").endpoint),
    "s3-ministack": lambda folder: S3Bucket(fresh_prefix("ministack"), shared("ministack").endpoint),
    "s3-like-ceph": lambda folder: S3Bucket(fresh_prefix("ministack"), like_ceph().endpoint),
    "s3-moto": lambda folder: S3Bucket(fresh_prefix("moto"), shared("moto").endpoint),
}
ON_SERVERS = {"az-azurite", "gcs-fake", "s3-like-ceph", "s3-ministack", "s3-moto"}
NOT_ATOMIC = {"s3-moto"}  # it looks first and puts then, without a lock, and says 500 to a reader then; S3 does not
WRITERS = 8
server_bucket = cache(lambda name: fresh_bucket(shared(name)))


def known(root: Path) -> Bucket:
    """As a machine opens it that has used it before."""
    before = FileBucket(root)
    before.put("a", b"")
    before.delete("a")
    return FileBucket(root, lock_timeout=60, known=before.marker())


def encrypted(inner: Bucket) -> Bucket:
    """Whatever the key: that leases are left as they are is not the contract's affair."""
    return EncryptedBucket(inner, Key(bytes(range(32))), covers=lambda key: True)


def fresh_prefix(server: str) -> str:
    """A URL with nothing under it. The prefix is what is new: a server's bucket for each example takes too long."""
    return f"{server_bucket(server)}/{secrets.token_hex(8)}"


@cache
def ceph_bucket() -> str:
    """This gateway wants a signature."""
    name = f"t-{secrets.token_hex(8)}"
    boto3.client("s3", endpoint_url=CEPH).create_bucket(Bucket=name)  # type: ignore[no-untyped-call]
    return f"s3://{name}"


CEPH = os.environ.get("WAL_AGENT_CEPH")  # `make ceph`
if CEPH:
    BUCKETS["s3-ceph"] = lambda folder: S3Bucket(f"{ceph_bucket()}/{secrets.token_hex(8)}", CEPH)
    ON_SERVERS.add("s3-ceph")
LOST = (Conflict, Unavailable) if CEPH else Conflict  # Ceph says 500 to some of those that lose a race


@pytest.fixture(autouse=True, scope="module")
def only_the_servers_credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/dev/null")
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


@contextmanager
def opened(name: str) -> Iterator[Bucket]:
    with tempfile.TemporaryDirectory() as folder:
        bucket = BUCKETS[name](Path(folder))
        yield bucket
        bucket.close()


@pytest.fixture(params=sorted(BUCKETS))
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    with opened(request.param) as made:
        yield made


@pytest.fixture(params=sorted(BUCKETS.keys() - NOT_ATOMIC))
def atomic_bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    with opened(request.param) as made:
        yield made


def nonce(bucket: Bucket) -> bytes:
    """What the contract asks to put into each object of a store whose versions are hashes; nothing elsewhere."""
    return secrets.token_bytes(8) if isinstance(bucket, S3Bucket) else b""


def test_many_objects_go_at_once(bucket: Bucket) -> None:
    for name in "abcd":
        bucket.put(f"d/{name}", b"x")
    bucket.delete("d/a", "d/never", "d/c", "d/a")
    bucket.delete()
    assert keys(bucket.list("d/")) == ["d/b", "d/d"]


def keys(entries: Iterator[Entry]) -> list[str]:
    return [entry.key for entry in entries]


def race(count: int, act: Callable[[int], object]) -> list[object]:
    """Run `act` in `count` threads that start together; its results, or the exceptions, in order."""
    barrier = threading.Barrier(count)

    def one(number: int) -> object:
        barrier.wait()
        try:
            return act(number)
        except LOST as lost:
            return lost

    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(one, range(count))]


@contextmanager
def meanwhile(done: threading.Event, *acts: Callable[[], None]) -> Iterator[None]:
    """Run `acts` in threads of their own, which end when `done` is set; what they raise is raised here."""
    with ThreadPoolExecutor(len(acts)) as pool:
        running = [pool.submit(act) for act in acts]
        try:
            yield
        finally:
            done.set()
        for act in running:
            act.result()


BAD_KEYS = [
    "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", ".hidden", "a/.tmp", "a b", "a\n", "ä", "a=", "a\0b", "a\\b",
    "x" * (MAX_PART + 1), "/".join(["x" * 100] * 6),
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_what_is_no_key_is_a_value_error_before_anything_happens(bucket: Bucket, key: str) -> None:
    for call in (
        bucket.get,
        bucket.delete,
        lambda key: bucket.put(key, b""),
        lambda key: bucket.put(key, b"", if_version="1"),
    ):
        with pytest.raises(ValueError, match="not a bucket key"):
            call(key)
    assert keys(bucket.list("")) == []


def test_keys_may_be_as_long_as_promised(bucket: Bucket) -> None:
    part = "x" * MAX_PART
    key = f"{part}/{part}/{'y' * (MAX_KEY - 2 * MAX_PART - 2)}"
    bucket.put(key, b"long")
    assert bucket.get(key).data == b"long"
    assert keys(bucket.list(part)) == [key]


@pytest.mark.parametrize("prefix", ["/", "/a", "a//", "../", "a/../", ".tmp", "a b", "x" * (MAX_KEY + 1)])
def test_a_prefix_of_no_key_is_refused_at_the_call(bucket: Bucket, prefix: str) -> None:
    with pytest.raises(ValueError, match="not a prefix"):
        bucket.list(prefix)


@pytest.mark.parametrize("data", [b"", b"\0\r\n\xff", bytes(range(256)) * 8192], ids=["empty", "binary", "2 MiB"])
def test_what_was_put_is_read_back(bucket: Bucket, data: bytes) -> None:
    version = bucket.put("a/b.json", data)
    found = bucket.get("a/b.json")
    assert (found.data, found.version) == (data, version)
    version = bucket.put("a/b.json", data + b"!", if_version=version)
    assert (bucket.get("a/b.json").data, bucket.get("a/b.json").version) == (data + b"!", version)


def test_absent_is_not_found(bucket: Bucket) -> None:
    for key in ("a", "a/b/c"):
        with pytest.raises(NotFound):
            bucket.get(key)
    bucket.put("a/b", b"")
    for key in ("a", "a/b/c", "a/c"):
        with pytest.raises(NotFound):
            bucket.get(key)


def test_a_create_does_not_replace(bucket: Bucket) -> None:
    version = bucket.put("a", b"first")
    for data in (b"second", b"first"):
        with pytest.raises(Conflict):
            bucket.put("a", data)
    assert (bucket.get("a").data, bucket.get("a").version) == (b"first", version)


def test_only_the_version_that_stands_is_replaced(bucket: Bucket) -> None:
    old = bucket.put("a", b"1")
    new = bucket.put("a", b"2", if_version=old)
    other = bucket.put("b", b"1")
    for version in (old, other, "", "0", "nonsense", "1-00", '"d41d8cd98f00b204e9800998ecf8427e"'):
        with pytest.raises(Conflict):
            bucket.put("a", b"3", if_version=version)
    assert (bucket.get("a").data, bucket.get("a").version) == (b"2", new)


def test_what_is_absent_is_not_replaced(bucket: Bucket) -> None:
    version = bucket.put("a", b"")
    bucket.delete("a")
    for key in ("a", "never/was"):
        with pytest.raises(Conflict):
            bucket.put(key, b"", if_version=version)
        with pytest.raises(NotFound):
            bucket.get(key)
    assert keys(bucket.list("")) == []


def test_a_version_never_comes_back(bucket: Bucket) -> None:
    seen = []
    for _ in range(3):
        version = bucket.put("a", b"same" + nonce(bucket))
        seen.append(version)
        for _ in range(3):
            version = bucket.put("a", b"same" + nonce(bucket), if_version=version)
            seen.append(version)
        bucket.delete("a")
    assert len(set(seen)) == len(seen)
    bucket.put("a", b"same" + nonce(bucket))
    for version in seen:
        with pytest.raises(Conflict):
            bucket.put("a", b"other", if_version=version)


def test_of_writers_that_race_to_create_one_wins(atomic_bucket: Bucket) -> None:
    for turn in range(10):
        key = f"round-{turn}"
        results = race(WRITERS, lambda number, key=key: atomic_bucket.put(key, b"%d" % number))  # type: ignore[misc]
        won = [number for number, result in enumerate(results) if isinstance(result, str)]
        assert len(won) == 1
        assert atomic_bucket.get(key).data == b"%d" % won[0]
        assert atomic_bucket.get(key).version == results[won[0]]


def test_of_writers_that_race_to_replace_one_wins(atomic_bucket: Bucket) -> None:
    version = atomic_bucket.put("a", b"")
    for turn in range(20):
        sent = [b"%d-%d" % (turn, number) for number in range(WRITERS)]
        put = lambda number, old=version, sent=sent: atomic_bucket.put("a", sent[number], if_version=old)  # noqa: E731
        results = race(WRITERS, put)
        won = [number for number, result in enumerate(results) if isinstance(result, str)]
        assert len(won) == 1
        found = atomic_bucket.get("a")
        assert (found.data, found.version) == (sent[won[0]], results[won[0]])
        version = found.version


def test_a_reader_sees_all_of_an_object_or_nothing(atomic_bucket: Bucket) -> None:
    done = threading.Event()
    torn: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            data = atomic_bucket.get("a").data
            if data != data[:1] * len(data):
                torn.append(data)

    version = atomic_bucket.put("a", b"x")
    with meanwhile(done, read, read):
        for turn in range(60):
            version = atomic_bucket.put("a", bytes([turn]) * (turn * 997 % 40_000 + 1), if_version=version)
    assert torn == []


def test_deleting(bucket: Bucket) -> None:
    bucket.delete("a/b")
    bucket.put("a/b", b"1")
    bucket.delete("a/b")
    bucket.delete("a/b")
    with pytest.raises(NotFound):
        bucket.get("a/b")
    assert keys(bucket.list("")) == []
    bucket.put("a/b", b"2")
    assert bucket.get("a/b").data == b"2"


def test_times_are_the_stores(bucket: Bucket) -> None:
    before = bucket.time()
    bucket.put("a", b"")
    found, (entry,), after = bucket.get("a"), bucket.list("a"), bucket.time()
    # Kernels stamp files by a clock that ticks some milliseconds behind.
    assert before - 0.1 <= found.updated <= found.now <= after
    assert entry.updated == found.updated


MIXED = [
    "a",
    "a-b",
    "a.b",
    "a/a",
    "a/b",
    "a/b/c",
    "a/bc",
    "a0",
    "ab",
    "b",
    "B/x",
    "job/log/01",
    "job/log/02",
    "job/log/10",
]


@pytest.mark.parametrize(
    "prefix", ["", "a", "a/", "a/b", "a/b/", "job/log/", "job/log/0", "job/log/01", "none/at/all", "c"]
)
def test_a_listing_is_sorted_and_begins_with_its_prefix(bucket: Bucket, prefix: str) -> None:
    for key in Random(prefix).sample(MIXED, len(MIXED)):
        bucket.put(key, key.encode())
    expected = sorted(key for key in MIXED if key.startswith(prefix))
    assert keys(bucket.list(prefix)) == expected
    for after in [*MIXED, "a/", "a/b/", "job", "job/log/", "job/log/05", "~", "ü", " "]:
        assert keys(bucket.list(prefix, after)) == [key for key in expected if key > after], after


@pytest.mark.parametrize("prefix", ["a", "a//", "/", ".a/", "a/b"])
def test_what_is_no_folder_is_refused_at_the_call(bucket: Bucket, prefix: str) -> None:
    with pytest.raises(ValueError):
        bucket.folders(prefix)


def test_the_folders_below_a_prefix_are_told_each_once_on_any_number_of_pages(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal_agent.bucket.s3.PAGE_SIZE", 2)
    monkeypatch.setattr("wal_agent.bucket.gcs.PAGE_SIZE", 2)
    monkeypatch.setattr("wal_agent.bucket.azure.PAGE_SIZE", 2)
    assert [*bucket.folders("")] == []
    for key in MIXED:
        bucket.put(key, key.encode())
    for prefix in ("", "a/", "a/b/", "job/", "job/log/", "none/"):
        below = [key.removeprefix(prefix) for key in MIXED if key.startswith(prefix)]
        expected = {key.partition("/")[0] for key in below if "/" in key}
        assert sorted(bucket.folders(prefix)) == sorted(expected), prefix


def strange(bucket: Bucket, name: str) -> None:
    """Put what is no object of ours into the store."""
    match bucket:
        case FileBucket():
            path = bucket.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        case S3Bucket():
            with bucket._asking("write", name) as client:
                client.put_object(Bucket=bucket._bucket, Key=bucket._name(name), Body=b"x")
        case AzureBucket():
            headers = {"x-ms-blob-type": "BlockBlob"}
            with bucket._asking("create", bucket._name(percent(name)), "PUT", headers=headers, data=b"x") as reply:
                assert reply.status_code == 201
        case GcsBucket():
            bucket._store().bucket.blob(bucket._folder + name).upload_from_string(b"x")


@pytest.mark.parametrize("name", ["az-azurite", "file", "gcs-fake", "s3-moto"])
def test_folders_that_no_key_is_in_are_passed_over(name: str) -> None:
    with opened(name) as bucket:
        bucket.put("jobs/job/lease.json", b"1")
        for folder in (".git", "-\u202e", "sp ace", "x" * (MAX_PART + 1), "\x1b[2J"):
            if "\x1b" not in folder or not isinstance(bucket, AzureBucket):  # which Azurite takes, and cannot list
                strange(bucket, f"jobs/{folder}/lease.json")
        if isinstance(bucket, FileBucket):
            (bucket.root / "jobs" / "link").symlink_to("/")
        assert [*bucket.folders("jobs/")] == ["job"]


def test_a_listing_of_folders_that_breaks_off_is_begun_again_and_tells_none_twice() -> None:
    inner, calls = MemoryBucket(), []

    def plan(op: str, key: str) -> Fault:
        calls.append(op)
        return Fault(after=len(calls) < 3)

    for letter in "abcd":
        inner.put(f"{letter}/x", b"")
    bucket = RetryBucket(FaultBucket(inner, plan, lambda s: None), SystemClock(), Random(1))
    assert [*bucket.folders("")] == ["a", "b", "c", "d"]
    assert calls == ["list"] * 3


def test_a_listing_tells_sizes(bucket: Bucket) -> None:
    bucket.put("a", b"")
    bucket.put("b", b"12345")
    empty, five = bucket.list("")
    assert five.size - empty.size == 5


def test_what_stands_all_along_is_listed_once_while_others_come_and_go(atomic_bucket: Bucket) -> None:
    bucket = atomic_bucket
    stays = [f"log/{number:03}" for number in range(40)]
    for key in stays:
        bucket.put(key, b"")
    done = threading.Event()

    def disturb() -> None:
        version = bucket.put("log/changes", b"")
        while not done.is_set():
            bucket.put("log/new", b"")
            version = bucket.put("log/changes", b"", if_version=version)
            bucket.delete("log/new")

    with meanwhile(done, disturb):
        seen = [keys(bucket.list("log/")) for _ in range(30)]
    for listed in seen:
        assert [key for key in listed if key in stays] == stays
        assert listed == sorted(set(listed))


def test_closing_twice_is_fine(bucket: Bucket) -> None:
    bucket.put("a", b"")
    bucket.close()
    bucket.close()


KEYS = st.sampled_from(["a", "b", "a/a", "a/b", "a/b/c", "a-", "a0", "log/1", "log/2"])
OPS = st.one_of(
    st.tuples(st.just("create"), KEYS, st.binary(max_size=3)),
    st.tuples(st.just("replace"), KEYS, st.binary(max_size=3)),
    st.tuples(st.just("replace_old"), KEYS, st.integers(min_value=0)),
    st.tuples(st.just("delete"), KEYS, st.none()),
    st.tuples(
        st.just("list"), st.sampled_from(["", "a", "a/", "log/", "log/1"]), st.sampled_from(["", "a", "a/b", "log/1"])
    ),
)


@pytest.mark.parametrize("name", sorted(BUCKETS))
def test_any_sequence_behaves_like_a_dict(name: str) -> None:
    # A server takes a hundred times as long as memory.
    @settings(max_examples=examples(10 if name in ON_SERVERS else 40), deadline=None, derandomize=True)
    @given(ops=st.lists(OPS, max_size=25))
    def check(ops: list[tuple[str, str, object]]) -> None:
        behaves_like_a_dict(name, ops)

    check()


def behaves_like_a_dict(name: str, ops: list[tuple[str, str, object]]) -> None:
    with opened(name) as bucket:
        model: dict[str, tuple[bytes, str]] = {}
        old: list[str] = []
        for op, key, argument in ops:
            match op, argument:
                case "create", bytes() as drawn:
                    data = drawn + nonce(bucket)
                    if key in model:
                        with pytest.raises(Conflict):
                            bucket.put(key, data)
                    else:
                        model[key] = data, bucket.put(key, data)
                case "replace", bytes() as drawn if key in model:
                    data = drawn + nonce(bucket)
                    old.append(model[key][1])
                    model[key] = data, bucket.put(key, data, if_version=model[key][1])
                case "replace_old", int() as which if old:
                    with pytest.raises(Conflict):
                        bucket.put(key, b"!", if_version=old[which % len(old)])
                case "delete", _:
                    bucket.delete(key)
                    if key in model:
                        old.append(model.pop(key)[1])
                case "list", str() as after:
                    expected = sorted(k for k in model if k.startswith(key) and k > after)
                    assert keys(bucket.list(key, after)) == expected
        assert {k: (bucket.get(k).data, bucket.get(k).version) for k in keys(bucket.list(""))} == model


if CEPH:

    def test_a_versioned_bucket_of_ceph_is_refused() -> None:
        """I2: there the gateway ignores both conditions."""
        name = ceph_bucket.__wrapped__().removeprefix("s3://")
        boto3.client("s3", endpoint_url=CEPH).put_bucket_versioning(  # type: ignore[no-untyped-call]
            Bucket=name, VersioningConfiguration={"Status": "Enabled"}
        )
        with closing(S3Bucket(f"s3://{name}", CEPH)) as bucket, pytest.raises(ConfigError):
            require_conditions(bucket)

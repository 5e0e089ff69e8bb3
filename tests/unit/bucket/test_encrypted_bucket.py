"""bucket/encryption.py: an encrypted store shows nothing, and gives back what was put there, or an error."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import msgspec
import pytest

from tests.unit.supervise.crew import SILENT
from tests.unit.wal.world import FIELDS, KEYS, FakeClock, Flaky, claim, drain, end, intent
from wal_agent.bucket.base import Bucket, MemoryBucket
from wal_agent.bucket.decorators import MeterBucket, RetryBucket
from wal_agent.bucket.encryption import (
    NONCE,
    SEALED_FORMAT,
    SEALED_MAGIC,
    SEALED_OVERHEAD,
    TAG,
    EncryptedBucket,
    Key,
    is_covered,
    key_id,
)
from wal_agent.clock import SystemClock
from wal_agent.errors import Conflict, Damaged, Denied, Newer, WalAgentError
from wal_agent.records import Edit, FileDelta, Payload
from wal_agent.recovery.lease_policy import Acquire, Local, admit
from wal_agent.supervise.lease_keeper import AcquireOptions, acquire_job
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import INLINE
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.job import open_job as open_
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.reader import replay
from wal_agent.wal.retention import Mirror, Snapshots
from wal_agent.wal.store import JobStore

RIGHT, WRONG = Key(bytes(range(32))), Key(bytes(range(1, 33)))
MARKER = b"the quick brown fox"
SEGMENT = KEYS.segment(7)


def stored(bucket: Bucket) -> dict[str, bytes]:
    return {entry.key: bucket.get(entry.key).data for entry in bucket.list("")}


def replace(bucket: Bucket, key: str, data: bytes) -> None:
    """What someone who can write the bucket can do."""
    bucket.delete(key)
    bucket.put(key, data)


def open_job(bucket: Bucket, key: Key | None, run: str = "a") -> OpenedJob:
    """Take the job, from a dead owner if one has it, with the bucket as `wal-agent run` wraps it."""
    seen = leases.read_lease(bucket, KEYS)
    decided = admit(seen, Local("", "", unchanged=1e6))
    assert isinstance(decided, Acquire)
    return open_(
        JobStore(EncryptedBucket(bucket, key), KEYS, FakeClock(), random.Random(run)),
        claim=claimed(run, key),
        fields=FIELDS,
        seen=seen,
        cause=decided.cause,
    )


def claimed(run: str, key: Key | None) -> LeaseRequest:
    return msgspec.structs.replace(claim(run), key=key_id(key))


def start(bucket: Bucket, key: Key | None) -> OpenedJob:
    """As `wal-agent run` takes a job."""
    wrapped = EncryptedBucket(bucket, key)
    options = AcquireOptions(Path("/nowhere"))
    return acquire_job(
        JobStore(wrapped, KEYS, FakeClock(), random.Random("b")), claimed("b", key), FIELDS, options, SILENT
    )


def whole_job(bucket: Bucket, key: Key | None, folder: Path) -> None:
    """Opened, a call with the marker in its input, a file with it, small and large, a snapshot, closed."""
    job = open_job(bucket, key)
    large = MARKER * (2 * INLINE // len(MARKER))
    job.writer.append(
        msgspec.structs.replace(intent(1), input=Payload(len(MARKER), MARKER)),
        FileDelta(
            time=1.0,
            path="session.jsonl",
            size=len(large),
            sha256=hashlib.sha256(large).hexdigest(),
            edits=(Edit(0, job.blobs.put_payload(large)),),
            session=MARKER.decode(),
        ),
        end(1),
    )
    drain(job)
    folder.mkdir()
    assert Snapshots(EncryptedBucket(bucket, key), KEYS, job.writer, Mirror(folder, job.blobs)).take() is not None
    assert close_job(job, "closed") == "closed"


# ---- what is stored


def test_the_bytes_are_those_of_the_format_and_another_reader_can_open_them() -> None:
    """docs/FORMAT.md: magic, format, key id, nonce, ciphertext with tag; the head and the key are authenticated."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    inner = MemoryBucket()
    EncryptedBucket(inner, RIGHT).put(SEGMENT, MARKER)
    data = inner.get(SEGMENT).data
    head, nonce, sealed = data[:13], data[13 : 13 + NONCE], data[13 + NONCE :]
    assert head == b"WALE\x01" + bytes.fromhex(RIGHT.id)
    assert len(data) == len(MARKER) + SEALED_OVERHEAD == len(MARKER) + 41
    assert AESGCM(RIGHT.secret).decrypt(nonce, sealed, head + b"shop/log/00000000000000000007") == MARKER


def test_equal_content_is_not_seen_to_be_equal_and_no_nonce_comes_twice() -> None:
    inner = MemoryBucket()
    bucket = EncryptedBucket(inner, RIGHT)
    for n in range(500):
        bucket.put(KEYS.segment(n), b"same")
    datas = [*stored(inner).values()]
    assert len({data[13 : 13 + NONCE] for data in datas}) == len({data[13 + NONCE :] for data in datas}) == 500


@pytest.mark.parametrize("key", [None, RIGHT], ids=["clear", "encrypted"])
def test_nothing_of_the_content_of_a_job_is_in_the_bucket(tmp_path: Path, key: Key | None) -> None:
    """The same job in the clear shows that the test would see it."""
    inner = MemoryBucket()
    whole_job(inner, key, tmp_path / "mirror")
    objects = stored(inner)
    kinds = {name.split("/")[1] for name in objects}
    assert kinds == {"lease.json", "log", "snapshots", "blobs"}
    encrypted = {name for name, data in objects.items() if data.startswith(SEALED_MAGIC)}
    assert encrypted == (set() if key is None else objects.keys() - {KEYS.lease})
    small = {name: data for name, data in objects.items() if len(data) < 10_000}  # where chance writes no short word
    shown = [
        name for name, data in objects.items() if MARKER in data or b"gemini" in data or b"shop" in small.get(name, b"")
    ]
    blobs = [name for name in objects if name.startswith(KEYS.blobs)]
    assert (set(shown) & {*blobs} == {*blobs}) if key is None else (shown == [KEYS.lease])
    if key is not None:
        assert not any(word in objects[KEYS.lease] for word in (MARKER, RIGHT.secret, RIGHT.secret.hex().encode()))


def test_a_whole_job_is_read_back_and_goes_on_with_its_key(tmp_path: Path) -> None:
    """I3: what an encrypted job acknowledged is in the replay of the next owner, from its snapshot too."""
    inner = MemoryBucket()
    whole_job(inner, RIGHT, tmp_path / "mirror")
    job = open_job(inner, RIGHT, "b")
    assert job.replay.damage is None and job.replay.snapshot == 2 and job.lease.epoch == 2
    (file,) = job.replay.state.files.values()
    assert job.blobs.get(file.chunks[0]).startswith(MARKER)
    found = leases.read_lease(inner, KEYS)
    assert found is not None and found.doc.key == RIGHT.id


@pytest.mark.parametrize(
    ("key", "covered"),
    [
        ("shop/lease.json", False),
        ("shop/probe-1-a", False),
        ("log/lease.json", False),  # a job may be called so
        ("blobs/probe-1-a", False),
        ("shop/log/1", True),
        ("shop/blobs/1", True),
        ("shop/snapshots/1", True),
        ("shop/blobs/7/1", True),
        ("shop/whatever-comes/1", True),
    ],
)
def test_all_but_lease_and_probes_is_encrypted(key: str, covered: bool) -> None:
    assert is_covered(key) is covered
    inner = MemoryBucket()
    bucket = EncryptedBucket(inner, RIGHT)
    bucket.put(key, MARKER)
    assert (inner.get(key).data == MARKER) is not covered
    assert bucket.get(key).data == MARKER


# ---- versions and equality


def test_versions_are_the_stores_and_a_resent_segment_is_known_again() -> None:
    """R3: "mine" is decided on what get() gives; the ciphertexts of the two puts differ."""
    inner = MemoryBucket()
    bucket = EncryptedBucket(inner, RIGHT)
    version = bucket.put(SEGMENT, MARKER)
    with pytest.raises(Conflict):
        bucket.put(SEGMENT, MARKER)
    assert bucket.get(SEGMENT).data == MARKER
    assert bucket.get(SEGMENT).version == inner.get(SEGMENT).version == version
    newer = bucket.put(SEGMENT, b"newer", if_version=version)
    assert (bucket.get(SEGMENT).data, bucket.get(SEGMENT).version) == (b"newer", newer)


def test_a_lost_reply_is_settled_by_reading_back() -> None:
    """R3, I3: the put landed, its reply was lost, the second try has other bytes; the record is acknowledged once."""
    flaky = Flaky(MemoryBucket())
    job = open_job(flaky, RIGHT)
    flaky.fates = ["lost"]
    job.writer.append(intent(1))
    while job.writer.commit_once() != "idle":
        pass
    puts = [data for name, data in flaky.puts if name == KEYS.segment(2)]
    assert len(set(puts)) == len(puts) == 2
    found = replay(EncryptedBucket(flaky, RIGHT), KEYS)
    assert found.seq == 2 and [o.intent.call for o in found.state.open] == [1]


# ---- what was tampered with


def regions(data: bytes) -> dict[str, tuple[int, int]]:
    return {
        "magic": (0, 4),
        "format": (4, 5),
        "key id": (5, 13),
        "nonce": (13, 13 + NONCE),
        "ciphertext": (13 + NONCE, len(data) - TAG),
        "tag": (len(data) - TAG, len(data)),
    }


def test_a_flipped_bit_anywhere_is_damage_that_names_the_object() -> None:
    inner = MemoryBucket()
    bucket = EncryptedBucket(inner, RIGHT)
    bucket.put(SEGMENT, MARKER)
    data = inner.get(SEGMENT).data
    assert sum(stop - start for start, stop in regions(data).values()) == len(data)
    for name, (start, stop) in regions(data).items():
        for bit in range(8 * start, 8 * stop):
            broken = bytearray(data)
            broken[bit // 8] ^= 1 << bit % 8
            replace(inner, SEGMENT, bytes(broken))
            with pytest.raises(Damaged, match=SEGMENT):
                pytest.fail(f"read with a flipped bit in its {name}: {bucket.get(SEGMENT).data!r}")
    replace(inner, SEGMENT, data)
    assert bucket.get(SEGMENT).data == MARKER


def test_a_later_format_is_told_as_such() -> None:
    inner = MemoryBucket()
    inner.put(SEGMENT, SEALED_MAGIC + bytes([SEALED_FORMAT + 1]) + bytes.fromhex(RIGHT.id) + bytes(100))
    with pytest.raises(Newer, match=r"newer wal-agent \(encryption format 2\)"):
        EncryptedBucket(inner, RIGHT).get(SEGMENT)


@pytest.mark.parametrize("content", [b"", MARKER])
def test_what_was_cut_or_has_more_is_damage(content: bytes) -> None:
    inner = MemoryBucket()
    bucket = EncryptedBucket(inner, RIGHT)
    bucket.put(SEGMENT, content)
    data = inner.get(SEGMENT).data
    for other in [*(data[:length] for length in range(len(data))), data + b"\0", data + data]:
        replace(inner, SEGMENT, other)
        with pytest.raises(Damaged, match=SEGMENT):
            bucket.get(SEGMENT)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (KEYS.segment(1), KEYS.segment(2)),
        (f"{KEYS.blobs}{'a' * 64}", f"{KEYS.blobs}{'b' * 64}"),
        (KEYS.snapshot(1), KEYS.segment(1)),
        (KEYS.segment(1), Keys("other").segment(1)),
    ],
)
def test_objects_that_were_swapped_are_damage(here: str, there: str) -> None:
    inner = MemoryBucket()
    bucket = EncryptedBucket(inner, RIGHT)
    bucket.put(here, b"here")
    bucket.put(there, b"there")
    first, second = inner.get(here).data, inner.get(there).data
    replace(inner, here, second)
    replace(inner, there, first)
    for key in (here, there):
        with pytest.raises(Damaged, match=key):
            bucket.get(key)


@pytest.mark.parametrize("kind", ["log", "snapshots", "blobs"])
def test_what_was_slipped_in_without_the_key_is_not_read(tmp_path: Path, kind: str) -> None:
    """A bucket's writer who has no key cannot put words into the log: neither in the clear nor under a made-up key."""
    inner, clear = MemoryBucket(), MemoryBucket()
    whole_job(inner, RIGHT, tmp_path / "mirror")
    whole_job(clear, None, tmp_path / "other")
    forger = EncryptedBucket(inner, WRONG)
    for name, data in stored(clear).items():
        if name.split("/")[1] == kind:
            replace(inner, name, data)
            with pytest.raises(Damaged, match="is not encrypted, but a key was given"):
                EncryptedBucket(inner, RIGHT).get(name)
            replace(forger, name, data)
            with pytest.raises(Denied, match=WRONG.id):
                EncryptedBucket(inner, RIGHT).get(name)


def test_a_snapshot_in_the_clear_is_passed_over_and_a_segment_ends_the_replay(tmp_path: Path) -> None:
    inner, clear = MemoryBucket(), MemoryBucket()
    whole_job(inner, RIGHT, tmp_path / "mirror")
    whole_job(clear, None, tmp_path / "other")
    bucket = EncryptedBucket(inner, RIGHT)
    replace(inner, KEYS.snapshot(2), clear.get(KEYS.snapshot(2)).data)
    found = replay(bucket, KEYS)
    assert (found.seq, found.snapshot, found.damage) == (2, 0, None)
    replace(inner, KEYS.segment(2), clear.get(KEYS.segment(2)).data)
    found = replay(bucket, KEYS)
    assert found.seq == 1 and found.damage is not None and "is not encrypted" in found.damage.why


# ---- the wrong key changes nothing


OWNERS = {"clear": None, "right": RIGHT, "wrong": WRONG}
MIXED = [(a, b) for a in OWNERS for b in OWNERS if a != b]


@pytest.mark.parametrize(("first", "second"), MIXED, ids=map("-".join, MIXED))
@pytest.mark.parametrize("state", ["closed", "released", "held"])
def test_a_job_keeps_its_key_and_a_wrong_one_writes_nothing(
    tmp_path: Path, first: str, second: str, state: str
) -> None:
    inner = MemoryBucket()
    job = open_job(inner, OWNERS[first])
    if state != "held":
        close_job(job, "closed" if state == "closed" else "released")
    before = stored(inner)
    meter = MeterBucket(inner)
    with pytest.raises(Denied, match="Job shop is") as caught:
        start(meter, OWNERS[second])
    assert caught.value.exit_code == 77
    usage = meter.snapshot()
    assert (usage.put.requests, usage.delete.requests) == (0, 0)
    assert stored(inner) == before


@pytest.mark.parametrize(("first", "second"), MIXED, ids=map("-".join, MIXED))
def test_where_the_lease_was_deleted_the_log_itself_refuses(first: str, second: str) -> None:
    """Nothing but the probe, which is taken away again, is written."""
    inner = MemoryBucket()
    close_job(open_job(inner, OWNERS[first]), "closed")
    inner.delete(KEYS.lease)
    before = stored(inner)
    kind: type[WalAgentError] = Damaged if OWNERS[first] is None else Denied
    with pytest.raises(kind, match="shop/log/0"):
        start(inner, OWNERS[second])
    assert stored(inner) == before


def test_without_a_key_the_users_bytes_may_begin_with_anything() -> None:
    """A blob is stored as it is; a file that begins like an encrypted object is still a file."""
    bucket = EncryptedBucket(MemoryBucket(), None)
    bucket.put(f"{KEYS.blobs}{'a' * 64}", SEALED_MAGIC + b"...")
    assert bucket.get(f"{KEYS.blobs}{'a' * 64}").data == SEALED_MAGIC + b"..."
    bucket.put(SEGMENT, SEALED_MAGIC + bytes([SEALED_FORMAT]) + bytes.fromhex(RIGHT.id))
    with pytest.raises(Denied, match=rf"encrypted with key {RIGHT.id}, and no key was given.*--encryption-key-file"):
        bucket.get(SEGMENT)


def test_a_denied_read_is_not_tried_again() -> None:
    inner = MeterBucket(MemoryBucket())
    EncryptedBucket(inner, WRONG).put(SEGMENT, MARKER)
    with pytest.raises(Denied):
        RetryBucket(EncryptedBucket(inner, RIGHT), SystemClock(), random.Random(1)).get(SEGMENT)
    assert inner.snapshot().get.requests == 1


def test_a_bad_key_is_refused_before_anything_is_encrypted() -> None:
    calls: list[str] = []

    def covers(key: str) -> bool:
        calls.append(key)
        return True

    with pytest.raises(ValueError, match="not a bucket key"):
        EncryptedBucket(MemoryBucket(), RIGHT, covers).put("a b", b"")
    assert calls == []

"""What a newer wal-agent wrote is refused with 78 and the word "upgrade" by every command, and stays as it
is: not replaced, not repaired, not deleted. What is damaged stays 73 (test_damaged_*.py, test_hostile_records.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults.prober import Prober
from tests.faults.ruins import KEYS, LAST, SNAPSHOTS, Machine, a_job, add, change_lease, end, opened, put
from tests.faults.trial import RUN, Ruin, sane
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import SEALED_FORMAT as ENVELOPE
from wal_agent.bucket.encryption import SEALED_MAGIC, EncryptedBucket, Key
from wal_agent.bucket.file import FileBucket
from wal_agent.bucket.folder import MARKER
from wal_agent.wal import codec
from wal_agent.wal import codec as packing

SECRET = bytes(range(32))
READS = (
    ("status",),
    ("status", "--json"),
    ("log",),
    ("recover", "--dry-run"),
    ("restore", "--to", "out"),
    ("ack", "2", "--done"),
    ("gc",),
    ("gc", "--dry-run"),
    ("unlock",),
    ("unlock", "--damaged", "--epoch", "1", "--now"),
)
UNLOCK = ("unlock", "--epoch", "1", "--now")  # of a job that is held


def repacked(bucket: Bucket, key: str, change: Callable[[dict[str, Any]], object]) -> None:
    """The object with another content, otherwise as it was."""
    value = msgspec.msgpack.decode(packing.decompress(bucket.get(key).data, 64 << 20))
    change(value)
    put(bucket, key, packing.pack(value))


def raised(key: str) -> Callable[[Bucket], None]:
    return lambda bucket: repacked(bucket, key, lambda value: value.update(format=2))


def framed(key: str) -> Callable[[Bucket], None]:
    """A later frame of the file bucket, whose other bytes mean something that is not known here."""

    def damage(bucket: Bucket) -> None:
        root = file_bucket(bucket).root
        raw = (root / f"{key}=").read_bytes()
        (root / f"{key}=").write_bytes(raw[:8] + (2).to_bytes(2, "big") + b"\x07" * 24 + raw[34:])

    return damage


def file_bucket(bucket: Bucket) -> FileBucket:
    while not isinstance(bucket, FileBucket):
        bucket = bucket._inner  # type: ignore[attr-defined]
    return bucket


def marked(bucket: Bucket) -> None:
    marker = file_bucket(bucket).root / MARKER
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": 2}))


def unknown(**record: object) -> Callable[[Bucket], object]:
    return lambda bucket: add(bucket, {"time": 1.0, **record})


def hidden(bucket: Bucket) -> None:
    """A record type that only a later version knows, behind the snapshots and in front of records that all know."""
    seq = add(bucket, {"t": "tool_budget", "time": 1.0, "left": 3})
    last = codec.encode_segment(
        codec.Author(KEYS.job, 1, "run-1"),
        seq=seq + 1,
        prev=codec.digest(bucket.get(KEYS.segment(seq)).data),
        time=1100.0,
        records=[codec.encode_record(end(2))[0]],
    )
    bucket.put(KEYS.segment(seq + 1), last)


NEWER: dict[str, Callable[[Bucket], object]] = {
    "lease": lambda bucket: change_lease(bucket, format=2, state=["other", "words"], epoch="seven"),
    "lease that could be read": lambda bucket: change_lease(bucket, format=2),
    "newest segment": raised(KEYS.segment(LAST)),
    "newest segment, another layout": lambda bucket: put(
        bucket, KEYS.segment(LAST), packing.pack({"format": 7, "batch": [1, 2]})
    ),
    "segment behind the snapshots": raised(KEYS.segment(8)),
    "record type": unknown(t="tool_budget", left=3),
    "record type behind others": hidden,
    "field of a record": unknown(t="file_gone", path="x", trashed=True),
    "word of a record": unknown(t="end", call=2, how="rolled_back", by="hook"),
    "newest snapshot": raised(KEYS.snapshot(SNAPSHOTS[1])),
    "field of a snapshot's state": lambda bucket: repacked(
        bucket, KEYS.snapshot(SNAPSHOTS[1]), lambda value: value["state"].update(budgets=[1])
    ),
    "frame of the lease": framed(KEYS.lease),
    "frame of the newest segment": framed(KEYS.segment(LAST)),
    "frame of the newest snapshot": framed(KEYS.snapshot(SNAPSHOTS[1])),
    "marker": marked,
}
# Which commands look at the object: all, but that a lease alone says who holds a job, and snapshots and what lies
# before the newest one serve only those that replay the log, or delete.
NO_NEED = {
    "segment behind the snapshots": {"gc", "unlock"},
    "record type behind others": {"gc", "unlock"},
    "newest snapshot": {"log", "unlock"},
    "field of a snapshot's state": {"log", "unlock"},
    "frame of the newest snapshot": {"log", "unlock"},
}
LEASES = {"lease", "lease that could be read", "frame of the lease", "marker"}


def files(machine: Machine) -> dict[str, bytes]:
    root = Path(machine.url.removeprefix("file://"))
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_relative_to(root / ".locks")
    }


def refuses(machine: Machine, *argv: str) -> None:
    said = sane(machine(*argv))
    assert said.code == 78, (argv, said)
    assert len(said.ours) == 1 and "written by a newer wal-agent" in said.ours[0], said
    assert "Upgrade wal-agent" in said.ours[0], said


@pytest.mark.parametrize("kind", NEWER)
def test_no_command_touches_what_a_newer_one_wrote(ruin: Ruin, kind: str) -> None:
    machine, skipped = ruin.machine, NO_NEED.get(kind, ())
    if kind not in LEASES and "unlock" not in skipped:
        ruin.damage(lambda bucket: change_lease(bucket, state="held"))
        ruin.damage(NEWER[kind])
        before = files(machine)
        refuses(machine, *UNLOCK)
        assert files(machine) == before
        ruin.damage(lambda bucket: change_lease(bucket, state="released"))
    else:
        ruin.damage(NEWER[kind])
    before = files(machine)
    for argv in READS:
        if argv[0] in skipped:
            continue
        if argv[0] == "unlock" and kind not in LEASES:
            sane(machine(*argv))  # nothing to unlock, or the lease is sound
        else:
            refuses(machine, *argv)
        assert files(machine) == before, argv
    refuses(machine, *RUN)
    assert files(machine) == before and not machine.began


@pytest.mark.parametrize("kind", sorted(LEASES - {"marker"}))
def test_the_fleet_shows_it_and_goes_on_with_the_others(ruin: Ruin, kind: str, tmp_path: Path) -> None:
    from wal_agent.wal.keys import Keys

    ruin.damage(lambda bucket: a_job(bucket, tmp_path / "other", Keys("other")))
    ruin.damage(NEWER[kind])
    said = ruin.reads("fleet", "ls", "--json")
    assert said.code == 0
    jobs = {job["job"]: job for job in json.loads(said.out)["jobs"]}
    assert (jobs["shop"]["state"], jobs["other"]["state"]) == ("newer", "released")
    assert "newer wal-agent" in jobs["shop"]["problem"] and not jobs["shop"]["needs_host"]
    shown = ruin.reads("fleet", "ls")
    assert shown.code == 0 and re.search(r"newer +shop .*Upgrade wal-agent", shown.out)
    assert ruin.reads("fleet", "ls", "--state", "newer").code == 0


class TestEncrypted:
    """The format is read behind the decryption; that of the envelope before it."""

    @pytest.fixture
    def locked(self, prober: Prober, tmp_path: Path) -> Iterator[Machine]:
        key = tmp_path / "key"
        key.write_text(SECRET.hex() + "\n")
        key.chmod(0o600)
        reach = {"WAL_AGENT_ENCRYPTION_KEY_FILE": str(key)}
        machine = Machine(tmp_path, prober, (tmp_path / "bucket").as_uri(), reach)
        with opened(machine.url) as bucket:
            a_job(EncryptedBucket(bucket, Key(SECRET)), tmp_path / "scratch")
            change_lease(bucket, key=Key(SECRET).id)
        yield machine
        machine.end()

    @pytest.mark.parametrize("kind", ["segment", "record type", "snapshot", "envelope"])
    def test_every_command(self, locked: Machine, kind: str) -> None:
        with opened(locked.url) as inner:
            bucket = EncryptedBucket(inner, Key(SECRET))
            key = KEYS.segment(LAST)
            match kind:
                case "segment":
                    raised(key)(bucket)
                case "snapshot":
                    raised(KEYS.snapshot(SNAPSHOTS[1]))(bucket)
                case "record type":
                    unknown(t="tool_budget", left=3)(bucket)
                case "envelope":
                    put(inner, key, SEALED_MAGIC + bytes([ENVELOPE + 1]) + b"\x05" * 90)
        before = files(locked)
        commands = (("status",), ("recover", "--dry-run"), ("restore", "--to", "out"), ("ack", "2", "--done"), ("gc",))
        for argv in (*commands, RUN):
            refuses(locked, *argv)
            assert files(locked) == before, argv
        assert not locked.began

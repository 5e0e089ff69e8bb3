"""What stands in a bucket is hostile: each kind of damage gets one clear sentence and exit code 73, or is healed by
rule; what can be had is offered, and nothing outside the target is touched (I3, I4, I7).

Whole jobs, made by the real writer, are damaged and then read by the real commands, with 1.5 GB of memory and a minute.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.prober import Prober, Said
from tests.faults.ruins import (
    KEYS,
    LAST,
    MAIN,
    PLAN,
    SESSION,
    SNAPSHOTS,
    Damage,
    Machine,
    a_job,
    add,
    change_host,
    change_lease,
    contents,
    end,
    intent,
    last_snapshot,
    listing,
    opened,
    put,
    replace_snapshot,
)
from tests.servers import fresh_bucket, shared
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.memory import MemoryBucket
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged
from wal_agent.records import AgentStarted, Edit, FileDelta, FileGone, Host, Intent, Opening, Payload, Turn
from wal_agent.wal import lease_doc, packing, snapshot_codec
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys, is_blob
from wal_agent.wal.reader import replay, tail
from wal_agent.wal.state import MOST_OPEN, OpenCall, State

EVIL = "\x1b[2J\x9b31m\r\nwal-agent: all is well\u202e"
READS = (("status",), ("status", "--json"), ("log",), ("recover", "--dry-run"), ("gc", "--dry-run"))
RUN = ("run", "gemini", "--", "-p", "go")
SHORT = 2100  # characters that a message may have, whatever stands in the bucket


@pytest.fixture(scope="session")
def prober() -> Iterator[Prober]:
    prober = Prober()
    yield prober
    prober.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """The sound job's folder, and its main file as of each segment."""
    folder = tmp_path_factory.mktemp("made")
    with opened((folder / "bucket").as_uri()) as bucket:
        history = a_job(bucket, folder / "scratch")
    return folder / "bucket", history


@pytest.fixture
def ruin(made: tuple[Path, list[bytes]], prober: Prober, tmp_path: Path) -> Iterator[Ruin]:
    shutil.copytree(made[0], tmp_path / "bucket")
    machine = Machine(tmp_path, prober, (tmp_path / "bucket").as_uri())
    yield Ruin(machine, made[1])
    machine.end()


class Ruin:
    """A machine whose bucket holds the job; the expectations that every damage must meet."""

    def __init__(self, machine: Machine, history: list[bytes]) -> None:
        self.machine, self.history = machine, history

    def damage(self, damage: Damage) -> None:
        with opened(self.machine.url) as bucket:
            damage(bucket)

    def contents(self) -> dict[str, bytes | None]:
        with opened(self.machine.url) as bucket:
            return contents(bucket)

    def reads(self, *argv: str) -> Said:
        """A command that only reads: neither the machine nor the bucket changes, and what it says is sane."""
        files, objects = self.machine.untouched(), self.contents()
        said = sane(self.machine(*argv))
        assert self.machine.untouched() == files, argv
        assert self.contents() == objects, argv
        return said

    def runs(self) -> Said:
        """A start: it may write its own state and what the agent resumes, and nothing else."""
        machine = self.machine
        before = machine.untouched()
        said = sane(machine(*RUN))
        ours = re.compile(r"home/(\.local(/.*)?|\.gemini|\.gemini/(tmp|projects\.json|extensions)(/.*)?)")
        changed = {k for k, v in machine.untouched().items() if before.get(k) != v and not ours.fullmatch(k)}
        assert changed == set() and before.keys() <= machine.untouched().keys()
        return said

    def refused(self, what: str, offers: str = "", *, good: int | None = None) -> None:
        """Every command that needs what is damaged says so in one line, 73; the agent is not started."""
        for argv in (("status",), ("status", "--json"), ("recover", "--dry-run"), ("ack", "2", "--done")):
            self._one_line(self.reads(*argv), what, offers, good)
        self._one_line(self.runs(), what, offers, good)
        assert not self.machine.began

    def _one_line(self, said: Said, what: str, offers: str, good: int | None) -> None:
        assert said.code == 73, said
        assert len(said.ours) == 1, said.err
        assert re.search(what, said.ours[0]) and offers in said.ours[0], said.ours[0]
        if good is not None:
            assert re.search(rf"Everything up to record {good} \(", said.ours[0]), said.ours[0]

    def healed(self) -> None:
        """As if nothing had happened: the full state is there, and a start recovers it."""
        status = self.reads("status", "--json")
        assert status.code == 0 and json.loads(status.out)["session_bytes"] == len(self.history[LAST]) + 7
        assert self.reads("recover", "--dry-run").code == 0
        self.holds(LAST)
        assert self.runs().code == 0 and self.machine.began

    def holds(self, record: int, *more: str, main: int | None = None, code: int = 0) -> Said:
        """`recover --to` gives the session exactly as of `record` (the main file as of `main`), and touches nothing
        but its folder."""
        target = self.machine.work / "out"
        before, objects = self.machine.untouched(), self.contents()
        said = sane(self.machine("recover", "--to", "out", *more))
        assert said.code == code and len(said.ours) == 1, said
        assert f"as of record {record} (" in said.ours[0]
        found = {k: v[1] for k, v in listing(target).items() if v[1] is not None}
        assert found.get(MAIN) == self.history[record if main is None else main]
        assert found.keys() <= {MAIN, PLAN} and found.get(PLAN, b"# next\n") == b"# next\n"
        assert {mode & 0o777 for mode, _ in listing(target).values()} <= {0o700, 0o600}
        assert target.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(target)
        assert self.machine.untouched() == before and self.contents() == objects
        return said


def sane(said: Said) -> Said:
    """What holds of every command's words, whatever it read: no trace of Python, nothing that a terminal obeys, no line
    that the bucket forged, no page of it, and no death by memory or time."""
    assert 0 <= said.code <= 80 and said.code != 70, said
    assert "Traceback" not in said.err and "a bug in wal-agent" not in said.err, said
    assert all(c.isprintable() or c == "\n" for c in said.err), said
    assert all(len(line) <= SHORT for line in said.ours), max(map(len, said.ours))
    assert not any(line.startswith("wal-agent: all is well") for line in said.err.split("\n"))
    return said


# ---- the objects of the log ----------------------------------------------------------------------------------------


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def bomb(size: int = 10 << 30) -> bytes:
    """A zstd frame whose header claims `size` bytes."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b1110_0000]) + size.to_bytes(8, "little") + b"\x01\x00\x00"


def stranger(scratch: Path) -> MemoryBucket:
    """Another job."""
    bucket = MemoryBucket()
    a_job(bucket, scratch, Keys("other"))
    return bucket


Change = Callable[[Bucket, str, Path], None]
CHANGES: dict[str, Change] = {
    "empty": lambda bucket, key, _: put(bucket, key, b""),
    "half": lambda bucket, key, _: (
        put(bucket, key, bucket.get(key).data[: bucket.get(key).size // 2])
        if False
        else put(bucket, key, (lambda d: d[: len(d) // 2])(bucket.get(key).data))
    ),
    "longer": lambda bucket, key, _: put(bucket, key, bucket.get(key).data + b"x"),
    "flipped": lambda bucket, key, _: put(bucket, key, flipped(bucket.get(key).data, len(bucket.get(key).data) // 2)),
    "missing": lambda bucket, key, _: put(bucket, key, None),
    "a bomb": lambda bucket, key, _: put(bucket, key, bomb()),
    "a real bomb": lambda bucket, key, _: put(bucket, key, zstandard.compress(bytes(100_000_000))),
    "nested": lambda bucket, key, _: put(bucket, key, packing.squeeze(b"\x91" * 1_000_000)),
    "of another job": lambda bucket, key, scratch: put(
        bucket, key, stranger(scratch).get(key.replace(KEYS.job, "other", 1)).data
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seq", [8, LAST])
def test_a_segment_behind_the_snapshots(ruin: Ruin, seq: int, change: str, tmp_path: Path) -> None:
    """I3: it is named, and everything before it can be had."""
    ruin.damage(lambda bucket: CHANGES[change](bucket, KEYS.segment(seq), tmp_path / "s"))
    ruin.refused(f"record {seq} of job shop is (damaged|missing)", "wal-agent recover --to FOLDER", good=seq - 1)
    ruin.holds(seq - 1)
    ruin.holds(5, "--upto", "5")
    log = ruin.reads("log")
    assert log.code == (0 if change == "missing" else 73) and "make step-1" in log.err, "what is whole is shown"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seq", [1, 5, SNAPSHOTS[1]])
def test_a_segment_that_a_snapshot_covers(ruin: Ruin, seq: int, change: str, tmp_path: Path) -> None:
    """What a snapshot that counts covers is not needed; one that names a damaged segment counts no more, and the older
    one takes its place, up to the damage."""
    ruin.damage(lambda bucket: CHANGES[change](bucket, KEYS.segment(seq), tmp_path / "s"))
    if seq < SNAPSHOTS[1] or change == "missing":
        ruin.healed()
    else:
        ruin.refused(f"record {seq} of job shop is damaged", "recover --to", good=seq - 1)
        ruin.holds(seq - 1)


def test_without_its_beginning_and_its_snapshots_nothing_can_be_had(ruin: Ruin) -> None:
    def damage(bucket: Bucket) -> None:
        put(bucket, KEYS.segment(1), b"")
        for seq in SNAPSHOTS:
            put(bucket, KEYS.snapshot(seq), b"")

    ruin.damage(damage)
    ruin.refused("record 1 of job shop is damaged.*Nothing before it can be restored", "--job NAME")
    said = ruin.reads("recover", "--to", "out")
    assert said.code == 73 and "no session was saved" in said.err


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_snapshot_is_passed_over(ruin: Ruin, change: str, tmp_path: Path) -> None:
    """R5: an older one, and the segments behind it, say the same."""
    for seq in reversed(SNAPSHOTS):
        ruin.damage(lambda bucket, seq=seq: CHANGES[change](bucket, KEYS.snapshot(seq), tmp_path / f"s{seq}"))  # type: ignore[misc]
        assert json.loads(ruin.reads("status", "--json").out)["session_bytes"] == len(ruin.history[LAST]) + 7
    ruin.healed()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (KEYS.segment(8), KEYS.segment(9)),
        (KEYS.segment(8), KEYS.segment(2)),
        (KEYS.segment(8), KEYS.snapshot(7)),
        (KEYS.segment(8), KEYS.lease),
        (KEYS.snapshot(4), KEYS.snapshot(7)),
    ],
)
def test_two_objects_in_each_others_place(ruin: Ruin, a: str, b: str) -> None:
    def swap(bucket: Bucket) -> None:
        x, y = bucket.get(a).data, bucket.get(b).data
        put(bucket, a, y)
        put(bucket, b, x)

    ruin.damage(swap)
    if KEYS.lease in (a, b):
        ruin.refused("The lease of job shop is damaged", "wal-agent unlock --damaged")
    elif KEYS.segment(8) in (a, b):
        ruin.refused("record 8 of job shop is damaged", "recover --to", good=7)
    else:
        ruin.healed()


def test_a_segment_a_second_time(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: put(bucket, KEYS.segment(LAST + 1), bucket.get(KEYS.segment(LAST)).data))
    ruin.refused("record 10 of job shop is damaged: it calls itself record 9", "recover --to", good=LAST)
    ruin.holds(LAST)


def test_numbers_that_no_log_reaches(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: put(bucket, f"{KEYS.log}{'9' * 20}", bucket.get(KEYS.segment(LAST)).data))
    ruin.refused("record 10 of job shop is missing", "recover --to", good=LAST)


def same(a: State, b: State) -> None:
    """They say the same, though of files one may stand on a snapshot's chunks and the other on deltas."""
    assert {n: f.sha256 for n, f in a.files.items()} == {n: f.sha256 for n, f in b.files.items()}
    assert msgspec.structs.replace(a, files={}) == msgspec.structs.replace(b, files={})


def test_every_97th_byte_of_every_object(ruin: Ruin, made: tuple[Path, list[bytes]]) -> None:
    """In turn, through the reader itself: a flipped byte is found, or it means nothing; never anything else."""
    bucket = MemoryBucket()
    with opened(made[0].as_uri()) as stored:
        for key, data in contents(stored).items():
            assert data is not None
            bucket.put(key, data)
    sound = replay(bucket, KEYS, parallel=1)
    assert sound.damage is None and sound.seq == LAST
    tried = 0
    for key in [e.key for e in bucket.list("") if not e.key.startswith(KEYS.blobs)]:
        good = bucket.get(key).data
        for at in range(0, len(good), 97):
            put(bucket, key, flipped(good, at))
            tried += 1
            found = replay(bucket, KEYS, parallel=1)
            if found.damage is None:
                same(found.state, sound.state)
            else:
                assert key == KEYS.segment(found.damage.seq), key
                assert found.damage.good == found.damage.seq - 1 == found.seq
            with suppress(Damaged):
                tail(bucket, KEYS)
                lease_doc.decode(bucket.get(KEYS.lease).data, KEYS.job)
        put(bucket, key, good)
    assert tried > 40


def test_every_97th_byte_of_a_blob(made: tuple[Path, list[bytes]]) -> None:
    with opened(made[0].as_uri()) as stored:
        name = last_snapshot(stored).state.files[MAIN].chunks[0]
        good = stored.get(KEYS.blob(name)).data
    bucket = MemoryBucket()
    blobs = Blobs(bucket, KEYS, SystemClock(), random.Random())
    for at in range(0, len(good), 97):
        put(bucket, KEYS.blob(name), flipped(good, at))
        with pytest.raises(Damaged, match=name):
            blobs.get(name)


# ---- blobs ---------------------------------------------------------------------------------------------------------


def blobs_of(bucket: Bucket) -> dict[str, set[str]]:
    """What holds the main file now: the chunks of the newest snapshot, and the blobs of segments, by their key."""
    chunks = {KEYS.blob(c) for c in last_snapshot(bucket).state.files[MAIN].chunks}
    every = {e.key for e in bucket.list(KEYS.blobs) if is_blob(e.key.rpartition("/")[2]) and e.size > 1000}
    return {"chunks": chunks, "sent": every - chunks}


@pytest.mark.parametrize("change", ["empty", "half", "longer", "flipped", "missing", "a bomb"])
def test_a_chunk_of_the_session(ruin: Ruin, change: str, tmp_path: Path) -> None:
    """The log is sound, so `status` is; what needs the bytes says which are lost, and the version before is offered."""

    def damage(bucket: Bucket) -> None:
        for key in blobs_of(bucket)["chunks"]:
            CHANGES[change](bucket, key, tmp_path)

    ruin.damage(damage)
    assert ruin.reads("status").code == 0
    for said in (ruin.reads("recover", "--dry-run"), ruin.runs()):
        assert said.code == 73 and re.search("Blob [0-9a-f]{64}.* of job shop is (damaged|missing)", said.ours[-1])
        assert "wal-agent recover --to FOLDER" in said.ours[-1]
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        ruin_seq = tail(bucket, KEYS).seq
    said = ruin.holds(ruin_seq, main=7, code=73)
    assert f"{MAIN} is of an earlier time" in said.ours[0]


def test_blobs_that_only_old_segments_name(ruin: Ruin) -> None:
    def damage(bucket: Bucket) -> None:
        for key in blobs_of(bucket)["sent"]:
            put(bucket, key, b"junk")

    ruin.damage(damage)
    ruin.healed()


def test_all_blobs_gone(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: bucket.delete(*[e.key for e in bucket.list(KEYS.blobs)]))
    said = ruin.machine("recover", "--to", "out")
    assert sane(said).code == 73 and f"{MAIN} cannot be had" in said.ours[0]
    assert {p.name for p in (ruin.machine.work / "out").rglob("*") if p.is_file()} <= {"next.md"}


# ---- the lease -----------------------------------------------------------------------------------------------------

LEASES: dict[str, Damage] = {
    "empty": lambda bucket: put(bucket, KEYS.lease, b""),
    "half": lambda bucket: put(bucket, KEYS.lease, bucket.get(KEYS.lease).data[:200]),
    "10 MB": lambda bucket: put(bucket, KEYS.lease, b" " * 10_000_000),
    "nested": lambda bucket: put(bucket, KEYS.lease, b"[" * 60_000),
    "no text": lambda bucket: put(bucket, KEYS.lease, b'{"format": 1, "job": "\xff\xfe"}'),
    "ttl NaN": lambda bucket: put(bucket, KEYS.lease, bucket.get(KEYS.lease).data.replace(b"30.0", b"NaN")),
    "ttl inf": lambda bucket: put(bucket, KEYS.lease, bucket.get(KEYS.lease).data.replace(b"30.0", b"Infinity")),
    "ttl 1e999": lambda bucket: put(bucket, KEYS.lease, bucket.get(KEYS.lease).data.replace(b"30.0", b"1e999")),
    "ttl -1": lambda bucket: change_lease(bucket, ttl=-1),
    "ttl 0": lambda bucket: change_lease(bucket, ttl=0),
    "epoch 0": lambda bucket: change_lease(bucket, epoch=0),
    "epoch 1e30": lambda bucket: change_lease(bucket, epoch=10**30),
    "state": lambda bucket: change_lease(bucket, state=EVIL + "x" * 30_000),
    "job": lambda bucket: change_lease(bucket, job=EVIL + "x" * 30_000),
    "another's": lambda bucket: change_lease(bucket, job="other"),
    "host": lambda bucket: change_lease(bucket, host=EVIL),
    "pid": lambda bucket: change_host(bucket, pid=10**40),
    "started": lambda bucket: put(
        bucket, KEYS.lease, re.sub(rb"started\": [0-9.]+", b'started": 1e999', bucket.get(KEYS.lease).data)
    ),
    "beat": lambda bucket: change_lease(bucket, beat=10**40),
    "format": lambda bucket: change_lease(bucket, format=2),
}


@pytest.mark.parametrize("name", LEASES)
def test_a_lease_that_is_none(ruin: Ruin, name: str) -> None:
    """R8: the way out is named, and the log is untouched by all of it: what it holds can be had."""
    ruin.damage(LEASES[name])
    ruin.refused("The lease of job shop is damaged", "wal-agent unlock --damaged --job shop")
    said = ruin.reads("unlock")
    assert said.code == 73 and "--damaged" in said.err
    ruin.holds(LAST)
    assert ruin.reads("log").code == 0
    assert sane(ruin.machine("unlock", "--damaged", "--epoch", "1", "--now")).code == 0
    ruin.healed()


def test_a_lease_that_is_gone(ruin: Ruin) -> None:
    """R1: the epoch comes from the log; nobody is told that there is no job."""
    ruin.damage(lambda bucket: put(bucket, KEYS.lease, None))
    for argv in (("status",), ("recover", "--dry-run"), ("ack", "2", "--done")):
        said = ruin.reads(*argv)
        assert said.code == 73 and "its log reaches record 9" in said.ours[0] and "wal-agent run" in said.ours[0]
    ruin.holds(LAST)
    assert ruin.runs().code == 0 and ruin.machine.began


def test_the_last_epoch(ruin: Ruin) -> None:
    """A run under an epoch above it would leave a lease and a segment that nobody can read."""
    ruin.damage(lambda bucket: change_lease(bucket, epoch=10**18))
    before = ruin.contents()
    said = ruin.runs()
    assert said.code == 73 and "there is none above" in said.ours[0] and "--job NAME" in said.ours[0]
    assert ruin.contents() == before and not ruin.machine.began
    ruin.holds(LAST)


def test_a_lease_that_knows_of_more_than_the_log_has(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: change_lease(bucket, seq=10**18))
    before = ruin.contents()
    ruin.refused("record 10 of job shop is missing: the log had reached record 10{18}", "recover --to", good=LAST)
    assert ruin.contents() == before, "a start would put its opening into the hole"
    ruin.holds(LAST)


HERE = {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "pidns": ""}
with suppress(OSError):
    HERE["pidns"] = str(Path("/proc/self/ns/pid").readlink())

WORDS: dict[str, Damage] = {
    "host": lambda bucket: change_host(bucket, name=EVIL + "x" * 60_000),
    "workspace": lambda bucket: change_lease(bucket, workspace="/" + EVIL + "x" * 50_000),
    "reason": lambda bucket: change_lease(bucket, reason=EVIL + "x" * 50_000),
    "agent": lambda bucket: change_lease(bucket, agent=EVIL + "x" * 50_000),
    "key": lambda bucket: change_lease(bucket, key=EVIL + "x" * 50_000),
    "phase and tool": lambda bucket: change_lease(bucket, phase=EVIL * 200, tool=EVIL * 200),
    "times": lambda bucket: change_lease(bucket, started=1e308, time=-1e308, beat=10**15),
    "pid": lambda bucket: change_host(bucket, pid=10**18),
    **{
        f"lock {lock[:12]!r}": lambda bucket, lock=lock: change_host(bucket, **HERE, lock=lock)  # type: ignore[misc]
        for lock in ("/dev/zero", "/dev/tty", "a\0b", "/", "x" * 5000, "", "../../x")
    },
    **{
        f"spool {spool[:12]!r}": lambda bucket, spool=spool: change_lease(bucket, spool=spool)  # type: ignore[misc]
        for spool in ("../../x", "/dev/zero", "a\0b", "x" * 50_000, "/")
    },
}


@pytest.mark.parametrize("state", ["held", "unlocked", "released", "closed"])
@pytest.mark.parametrize("name", WORDS)
def test_words_of_a_lease_move_no_cursor_and_forge_no_line(ruin: Ruin, name: str, state: str) -> None:
    def damage(bucket: Bucket) -> None:
        change_lease(bucket, state=state)
        WORDS[name](bucket)

    ruin.damage(damage)
    for argv in (*READS, ("unlock",), ("ack", "7", "--done")):
        said = ruin.reads(*argv)
        assert len(said.ours) <= 1 and len(said.err) < 12_000
    if state == "held":
        said = ruin.runs()
        assert said.code in (75, 77) and len(said.ours) == 1 and not ruin.machine.began


# ---- hostile records -----------------------------------------------------------------------------------------------

PATHS = [
    *("../../x", "/etc/x", "/dev/null", "a\0b", "plans/a\nb", "C:\\x", "con", "", ".", "..", "plans", "plans/..", EVIL),
    *("./x", "plans/../../../canary/bird", "plans//x", "plans/./x", "plans/x/", "session.jsonl/x", "plans/next.md/x"),
    *("plans/" + "x" * 300, "plans/" + "\u00e9" * 200, "plans/" + "x/" * 500 + "x", "x" * 60_000, "plans/\x1b[2J"),
]  # fmt: skip
DATA = b"evil\n"


def delta(path: str, data: bytes = DATA, **more: object) -> FileDelta:
    fields: dict[str, object] = {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "edits": (Edit(offset=0, data=Payload(size=len(data), data=data)),),
    }
    return FileDelta(time=1100.0, path=path, session=SESSION, **{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: repr(p[:24]))
def test_a_path_that_leads_elsewhere(ruin: Ruin, path: str) -> None:
    """I4: the log is sound, but such a name is none of the agent's: nothing is restored, the other files can be had."""
    ruin.damage(lambda bucket: add(bucket, delta(path)))
    assert ruin.reads("status").code == 0 and ruin.reads("log").code == 0
    for said in (ruin.reads("recover", "--dry-run"), ruin.runs()):
        assert said.code == 73 and "The log names" in said.ours[-1] and "recover --to" in said.ours[-1], said.err
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        last = tail(bucket, KEYS).seq
    said = ruin.holds(last, main=LAST, code=73)
    assert "cannot be had" in said.ours[0]


CONTENTS: dict[str, FileDelta] = {
    "a hole of 10 GB": delta(MAIN, edits=(Edit(offset=10**10, data=Payload(size=1, data=b"x")),), size=10**10 + 1),
    "a size of 10 GB": delta(MAIN, size=10**10),
    "a payload of 10 GB": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=10**10, data=b"x")),), size=10**10),
    "a negative size": delta(MAIN, size=-1),
    "a negative offset": delta(MAIN, edits=(Edit(offset=-1, data=Payload(size=5, data=DATA)),)),
    "an offset of 2**63": delta(MAIN, edits=(Edit(offset=2**63, data=Payload(size=5, data=DATA)),)),
    "a wrong hash": delta(MAIN, sha256="0" * 64),
    "a hash that is none": delta(MAIN, sha256=EVIL),
    "a blob elsewhere": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5, blob="../lease.json")),)),
    "a blob's name that is none": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5, blob=EVIL * 900)),)),
    "neither bytes nor blob": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5)),)),
    "bytes and blob": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5, data=DATA, blob="0" * 64)),)),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_cannot_be(ruin: Ruin, name: str) -> None:
    """I4: its claims are not believed, and the version before it is offered."""
    ruin.damage(lambda bucket: add(bucket, CONTENTS[name]))
    for said in (ruin.reads("recover", "--dry-run"), ruin.runs()):
        assert said.code == 73 and "recover --to" in said.ours[-1], said.err
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        last = tail(bucket, KEYS).seq
    assert f"{MAIN} is of an earlier time" in ruin.holds(last, main=LAST, code=73).ours[0]


def opening(epoch: int, **more: object) -> Opening:
    sound = Opening(
        time=1100.0,
        run=f"run-{epoch}",
        epoch=epoch,
        cause="dead",
        host=Host(name="vm-2", boot="boot-2", pidns="1", pid=8, lock="/nowhere"),
        agent="gemini",
        agent_version="",
        version="",
        workspace="/w/shop",
        args=("-p", "go"),
    )
    return msgspec.structs.replace(sound, **more)


RECORDS: dict[str, object] = {
    "an unknown type": {"t": EVIL + "y" * 5000, "time": 1.0},
    "an unknown field": {"t": "file_gone", "time": 1.0, "path": "x", EVIL + "y" * 5000: 1},
    "no type": {"time": 1.0},
    "no map": [1, 2],
    "a call beyond counting": {**msgspec.to_builtins(intent(1), builtin_types=(bytes,)), "call": 2**64 - 1},
    "a time that is text": {"t": "file_gone", "time": EVIL, "path": "x"},
    "an opening of another's epoch": opening(1),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_none(ruin: Ruin, name: str) -> None:
    ruin.damage(lambda bucket: add(bucket, RECORDS[name]))
    ruin.refused("record 10 of job shop is damaged", "recover --to", good=LAST)
    ruin.holds(LAST)


ODD: dict[str, tuple[object, ...]] = {
    "times": (msgspec.structs.replace(end(2), time=float("nan")), FileGone(time=float("inf"), path="x")),
    "a tool's name": (msgspec.structs.replace(intent(3), tool=EVIL * 2000),),
    "a call's input": (intent(3, command=EVIL * 900),),
    "an input of 10 GB": (msgspec.structs.replace(intent(3), input=Payload(size=10**10, blob="0" * 64)),),
    "an input that is no blob": (msgspec.structs.replace(intent(3), input=Payload(size=5, blob="../lease.json")),),
    "a nested input": (
        msgspec.structs.replace(intent(3), input=Payload(size=50_011, data=b'{"command":' + b"[" * 50_000)),
    ),
    "a path to look at": (
        Intent(
            time=1.0,
            call=3,
            tool="write_file",
            input=Payload(size=26, data=b'{"file_path": "/dev/zero"}'),
            cls="unknown",
            rule="r",
            session=SESSION,
        ),
    ),
    "a prompt": (Turn(time=1.0, state="started", session=SESSION, prompt=Payload(size=5, blob=EVIL)),),
}


@pytest.mark.parametrize("name", ODD)
def test_records_that_are_odd_but_can_be_told(ruin: Ruin, name: str) -> None:
    """The run goes on, and what is shown of them is harmless."""
    ruin.damage(lambda bucket: add(bucket, *ODD[name]))
    for argv in READS:
        assert ruin.reads(*argv).code == 0
    assert ruin.runs().code == 0 and ruin.machine.began


OPENINGS: dict[str, Opening] = {
    "a long workspace": opening(2, workspace="/" + "a" * 5000),
    "a workspace that is no path": opening(2, workspace="/a\0b"),
    "a workspace elsewhere": opening(2, workspace="../../.."),
    "arguments": opening(2, args=(EVIL, "a\0b", "x" * 200_000)),
    "a host": opening(2, host=Host(name=EVIL * 900, boot=EVIL, pidns=EVIL, pid=-1, lock="/dev/zero")),
    "versions": opening(2, agent_version=EVIL * 900, version=EVIL * 900),
    "a run without a name": opening(2, run=""),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_openings_that_are_odd_but_can_be_told(ruin: Ruin, name: str) -> None:
    def damage(bucket: Bucket) -> None:
        started = AgentStarted(time=1100.0, pid=1, session=SESSION, resumed=True)
        add(bucket, OPENINGS[name], started, intent(3, command=EVIL))
        change_lease(bucket, epoch=2)

    ruin.damage(damage)
    for argv in READS:
        assert ruin.reads(*argv).code == 0
    assert ruin.runs().code == 0 and ruin.machine.began


# ---- hostile snapshots ---------------------------------------------------------------------------------------------


def many_calls(bucket: Bucket) -> None:
    """A million calls in flight, as small as they can be."""
    made = last_snapshot(bucket)
    empty = Intent(time=0.0, call=1, tool="", input=Payload(size=0), cls="unknown", rule="", session="")
    call = msgspec.msgpack.encode(OpenCall(1, 1, empty))
    raw = msgspec.msgpack.encode(msgspec.structs.replace(made, state=msgspec.structs.replace(made.state, open=())))
    count = min(1_000_000, (snapshot_codec.MAX_RAW - len(raw) - 100) // len(call))
    assert count > 20 * MOST_OPEN
    packed = raw.replace(b"\xa4open\x90", b"\xa4open\xdd" + count.to_bytes(4, "big") + call * count)
    assert len(packed) > len(raw)
    put(bucket, KEYS.snapshot(SNAPSHOTS[1]), packing.squeeze(packed))


def with_file(**fields: object) -> Damage:
    def damage(bucket: Bucket) -> None:
        made = last_snapshot(bucket)
        old = made.state.files[MAIN]
        file = msgspec.structs.replace(old, **fields)
        state = msgspec.structs.replace(made.state, files={**made.state.files, MAIN: file})
        replace_snapshot(bucket, msgspec.structs.replace(made, state=state))

    return damage


def test_a_million_calls_in_a_snapshot(ruin: Ruin) -> None:
    """No run has that many in flight, so it is no snapshot of ours."""
    ruin.damage(many_calls)
    ruin.healed()


def test_more_calls_in_the_log_than_a_run_can_have(ruin: Ruin) -> None:
    ruin.damage(lambda bucket: add(bucket, *[intent(n) for n in range(3, 4 + MOST_OPEN)]))
    ruin.refused(f"record 10 of job shop is damaged: it has more than {MOST_OPEN} calls", "recover --to", good=LAST)


CHUNKS: dict[str, Damage] = {
    "too few": with_file(chunks=()),
    "too many": with_file(chunks=("0" * 64,) * 50),
    "a claim of 10 GB": with_file(base_size=10**10, size=10**10),
    "chunks for 10 GB": with_file(base_size=10 << 30, size=10 << 30, chunks=("0" * 64,) * 10240),
    "a negative base": with_file(base_size=-5),
    "a chunk elsewhere": with_file(chunks=("../lease.json",)),
    "a chunk that is none": with_file(chunks=(EVIL * 900,)),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_that_do_not_fit(ruin: Ruin, name: str) -> None:
    """The snapshot counts by its hash; its bytes do not hold, and what stands before it is offered."""
    ruin.damage(CHUNKS[name])
    for said in (ruin.reads("recover", "--dry-run"), ruin.runs()):
        assert said.code in (73, 78) and ("recover --to" in said.ours[-1] or "Make room" in said.ours[-1]), said.err
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        last = tail(bucket, KEYS).seq
    assert f"{MAIN} is of an earlier time" in ruin.holds(last, main=7, code=73).ours[0]


# ---- strangers and links -------------------------------------------------------------------------------------------

STRANGERS = [
    *("log/README", "log/0001", "log/x/y", f"log/{'1' * 19}", f"log/{'1' * 21}", f"log/{8:020d}/x", "lease.json/x"),
    *("blobs/x", "blobs/README", f"blobs/{'0' * 63}", f"blobs/{'0' * 64}-0", f"blobs/{'0' * 64}-{'9' * 30}"),
    *("snapshots/x", "snapshots/-1", f"snapshots/{7:020d}.bak", f"snapshots/{7:020d}/x", "x/y", "other"),
]


def test_strangers_in_the_bucket_are_passed_over_without_a_word(ruin: Ruin) -> None:
    def damage(bucket: Bucket) -> None:
        for name in STRANGERS:
            bucket.put(f"{KEYS.job}/{name}", EVIL.encode())

    ruin.damage(damage)
    clean = sane(ruin.machine("status", "--json"))
    assert json.loads(clean.out)["damage"] == "" and clean.err == ""
    before = {k: v for k, v in ruin.contents().items() if v == EVIL.encode()}
    assert len(before) == len(STRANGERS)
    assert ruin.reads("log").code == 0 and sane(ruin.machine("gc")).code == 0
    ruin.healed()
    assert {k: v for k, v in ruin.contents().items() if v == EVIL.encode()} == before


@pytest.mark.parametrize("kind", ["folder", "link", "fifo", "empty", "torn frame"])
def test_other_things_in_the_place_of_an_objects_file(ruin: Ruin, kind: str, tmp_path: Path) -> None:
    """file://: what is no object is not one; the segment counts as lost, and no link is followed."""
    path = tmp_path / "bucket" / f"{KEYS.segment(8)}="
    data = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "canary" / "bird")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(data[:0] if kind == "empty" else data[:-5])
    ruin.refused("record 8 of job shop is (missing|damaged)", "recover --to", good=7)
    ruin.holds(7)


@pytest.mark.parametrize("where", [".gemini/tmp", ".gemini/tmp/shop", ".gemini/tmp/shop/chats"])
def test_a_link_on_the_way_to_the_session(ruin: Ruin, where: str) -> None:
    """I4: a link below the agent's folder is not followed, and what it leads to stays as it is."""
    machine = ruin.machine
    link = machine.home / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(machine.canary)
    said = ruin.runs()
    assert said.code == 78 and str(link) in said.ours[-1] and not machine.began
    assert {p.name for p in machine.canary.iterdir()} == {"bird"}


def test_recover_to_a_link_or_a_full_folder(ruin: Ruin) -> None:
    (ruin.machine.work / "link").symlink_to(ruin.machine.canary)
    (ruin.machine.work / "empty").mkdir()
    for target in ("link", "link/bird", "../canary", ".", "missing/out", "README.md"):
        said = ruin.reads("recover", "--to", target)
        assert said.code == 64 and len(said.ours) == 1, said
    for argv in (("recover",), ("recover", "--upto", "3"), ("recover", "--dry-run", "--to", "x")):
        assert ruin.reads(*argv).code == 64
    assert sane(ruin.machine("recover", "--to", "empty")).code == 0
    assert (ruin.machine.work / "empty" / MAIN).read_bytes() == ruin.history[LAST]


# ---- on stores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fake-gcs", "ministack"])
def test_the_same_on_a_store(name: str, prober: Prober, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared(name)
    for key, value in server.env.items():
        monkeypatch.setenv(key, value)
    url = fresh_bucket(server)
    with opened(url) as bucket:
        history = a_job(bucket, tmp_path / "scratch")
    machine = Machine(tmp_path, prober, url, server.env)
    try:
        ruin = Ruin(machine, history)
        ruin.damage(lambda bucket: [bucket.put(f"{KEYS.job}/{name}", b"x") for name in STRANGERS[:4]])
        assert json.loads(ruin.reads("status", "--json").out)["damage"] == ""
        ruin.damage(lambda bucket: put(bucket, KEYS.snapshot(7), bomb()))
        ruin.holds(LAST)
        ruin.damage(lambda bucket: put(bucket, KEYS.segment(LAST), None))
        ruin.refused("record 9 of job shop is missing", "recover --to", good=8)
        ruin.damage(lambda bucket: put(bucket, KEYS.segment(8), bomb()))
        ruin.refused("record 8 of job shop is damaged", "recover --to", good=7)
        ruin.holds(7)
        ruin.damage(lambda bucket: put(bucket, KEYS.lease, b"junk"))
        ruin.refused("The lease of job shop is damaged", "unlock --damaged")
    finally:
        machine.end()


# ---- any bytes -----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=400))
def test_a_lease_of_any_bytes(data: bytes) -> None:
    for raw in (data, b'{"format": 1,' + data):
        with pytest.raises(Damaged, match="The lease of job shop is damaged") as error:
            lease_doc.decode(raw, "shop")
        assert len(str(error.value)) < 400 and str(error.value).isprintable()


class Pieces:
    """The sound job's objects, to be mutated."""

    objects: dict[str, bytes] = {}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_mutation_of_any_object_is_found_or_means_nothing(
    made: tuple[Path, list[bytes]], data: st.DataObject
) -> None:
    """I3, R5: the replay of a mutated log is the sound one, or damage that is named with a sound beginning."""
    if not Pieces.objects:
        with opened(made[0].as_uri()) as stored:
            Pieces.objects = {k: v for k, v in contents(stored).items() if v is not None}
    bucket = MemoryBucket()
    for key, value in Pieces.objects.items():
        bucket.put(key, value)
    sound = {seq: replay(bucket, KEYS, seq, parallel=1).state for seq in range(1, LAST + 1)}
    keys = [k for k in Pieces.objects if "/log/" in k or "/snapshots/" in k]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        value = Pieces.objects[key]
        at = data.draw(st.integers(0, len(value)))
        cut = data.draw(st.integers(0, 40))
        put(bucket, key, value[:at] + data.draw(st.binary(max_size=40)) + value[at + cut :])
    found = replay(bucket, KEYS, parallel=1)
    if found.damage is not None:
        assert found.damage.good == found.seq and str(found.damage.why).isprintable() and len(found.damage.why) < 500
    if found.seq:
        same(found.state, sound[found.seq])

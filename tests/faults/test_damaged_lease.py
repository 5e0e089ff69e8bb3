"""A lease that cannot be read, is gone, or says what no lease can; see trial.py."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.ruins import (
    KEYS,
    LAST,
    Damage,
    change_host,
    change_lease,
    put,
)
from tests.faults.trial import EVIL, READS, Ruin, sane
from tests.tiers import once
from wal_agent.bucket.base import Bucket

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
    "format": lambda bucket: change_lease(bucket, format=0),
}


@pytest.mark.parametrize("name", LEASES)
def test_a_lease_that_is_none(ruin: Ruin, name: str) -> None:
    """R8: the way out is named, and the log is untouched by all of it: what it holds can be had."""
    ruin.damage(LEASES[name])
    ruin.refused("The lease of job shop is damaged", "wal-agent unlock --job shop")
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
    ruin.refused(
        "record 10 of job shop is missing: the log had reached record 10{18}", "wal-agent restore --", good=LAST
    )
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


@pytest.mark.parametrize("state", once(["held", "unlocked", "released", "closed"], "held"))
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

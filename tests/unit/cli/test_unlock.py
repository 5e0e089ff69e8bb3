"""`wal-agent unlock` and what `status` says for it: a person takes a job from its owner (R8)."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.shelf import EVIL, KEYS, Run, Shelf, commit, intent
from wal_agent.cli import view
from wal_agent.cli.status import status_rows
from wal_agent.cli.view import read_view
from wal_agent.errors import Fenced
from wal_agent.recovery.lease_policy import Acquire, Local, Wait, admit
from wal_agent.supervise import machine
from wal_agent.wal import lease as leases
from wal_agent.wal.job import close_job
from wal_agent.wal.lease import LeaseDoc, StoredLease, encode_lease

ELSEWHERE = Local("another", "1")


def where(shelf: Shelf) -> list[str]:
    return ["--bucket", shelf.url, "--job", "shop"]


def lease(shelf: Shelf) -> StoredLease:
    seen = leases.read_lease(shelf.bucket, KEYS)
    assert seen is not None
    return seen


def rewrite(shelf: Shelf, data: bytes | LeaseDoc) -> None:
    """What a hand, or a broken disk, put there."""
    old = shelf.bucket.get(KEYS.lease).version
    shelf.bucket.put(KEYS.lease, encode_lease(data) if isinstance(data, LeaseDoc) else data, if_version=old)


# ---- whose lease


def test_a_person_must_name_the_epoch_that_status_shows(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open("a", host="vm-1")
    job = shelf.open("b", host="vm-2")
    before = lease(shelf)
    for args in ([], ["--epoch", "1"], ["--epoch", "3", "--now"]):
        code, out, err = run("unlock", *args, *where(shelf))
        assert (code, out, err.count("\n")) == (64, "", 1)
        assert "vm-2 (pid 7, epoch 2, heartbeat" in err
        assert f"wal-agent unlock --job shop --bucket {shelf.url} --epoch 2" in err
        assert ("not at epoch" in err) == bool(args)
    assert lease(shelf).version == before.version
    shown = read_view(shelf.bucket, KEYS, {})
    assert (shown.host, shown.pid, shown.epoch) == ("vm-2", 7, 2)
    job.lease.renew()


def test_unlock_waits_one_ttl_and_stops_the_owner(run: Run, tmp_path: Path) -> None:
    """R8: a CAS to unlocked that keeps the epoch; the old owner's next heartbeat fences it."""
    shelf = Shelf(tmp_path / "b")
    job = shelf.open(host=f"vm{EVIL}")
    code, out, err = run("unlock", "--epoch", "1", "--reason", f"it hangs{EVIL}", *where(shelf))
    assert (code, out) == (0, "") and "waits 30 s, then opens it" in err and "exit code 76" in err
    assert "overlap" not in err and not any(c in err for c in EVIL if not c.isprintable())
    seen = lease(shelf)
    assert (seen.doc.state, seen.doc.epoch, seen.doc.off) == ("unlocked", 1, False)
    assert isinstance(admit(seen, ELSEWHERE), Wait)
    with pytest.raises(Fenced, match="unlocked by hand"):
        job.lease.renew()
    assert "it hangs" in run("status", *where(shelf))[1]


def test_now_lets_the_next_start_begin_at_once(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open()
    code, out, err = run("unlock", "--epoch", "1", "--now", *where(shelf))
    assert (code, out) == (0, "") and "opens it at once" in err and "if vm-1 is not off" in err
    assert admit(lease(shelf), ELSEWHERE) == Acquire("unlocked")
    assert shelf.open("b").lease.epoch == 2


def test_now_may_be_said_later(run: Run, tmp_path: Path) -> None:
    """First unlocked with a wait; then somebody finds out that the host is off."""
    shelf = Shelf(tmp_path / "b")
    shelf.open()
    run("unlock", "--epoch", "1", *where(shelf))
    assert isinstance(admit(lease(shelf), ELSEWHERE), Wait)
    assert run("unlock", "--epoch", "1", "--now", *where(shelf))[0] == 0
    assert admit(lease(shelf), ELSEWHERE) == Acquire("unlocked")


def test_now_is_refused_for_an_owner_that_runs_here(run: Run, tmp_path: Path) -> None:
    """The kernel knows better: its flock is held on this machine."""
    shelf = Shelf(tmp_path / "b")
    job = shelf.open()
    (tmp_path / "r").mkdir()
    run_dir = machine.RunDir.create(tmp_path / "r", "a")
    here = machine.this_host({}, run_dir.lock)
    rewrite(shelf, msgspec.structs.replace(job.lease.doc, host=here))
    try:
        code, _, err = run("unlock", "--epoch", "1", "--now", *where(shelf))
        assert code == 64 and "runs on this machine" in err and lease(shelf).doc.state == "held"
        assert run("unlock", "--epoch", "1", *where(shelf))[0] == 0 and lease(shelf).doc.state == "unlocked"
    finally:
        run_dir.end()


def test_what_the_owner_spooled_is_said(run: Run, tmp_path: Path) -> None:
    """R9: records that only the old host has are no secret to the person who takes its job away."""
    shelf = Shelf(tmp_path / "b")
    job = shelf.open()
    rewrite(shelf, msgspec.structs.replace(job.lease.doc, spool="/var/spool/x"))
    assert "/var/spool/x on vm-1" in run("status", *where(shelf))[1]
    err = run("unlock", "--epoch", "1", "--now", *where(shelf))[2]
    assert "`wal-agent run --accept-loss` opens it" in err and "/var/spool/x on vm-1 may hold records" in err
    assert json.loads(run("status", *where(shelf), "--json")[1])["spool"] == "/var/spool/x"


def test_a_heartbeat_that_is_late_says_how_to_take_the_job(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open(ttl=1e-9)
    assert "--epoch" not in run("status", *where(shelf))[1]  # cut off: nothing to unlock
    shelf.open("b", ttl=3600.0)
    assert "--epoch" not in run("status", *where(shelf))[1]
    found = msgspec.structs.replace(read_view(shelf.bucket, KEYS, {}), heartbeat_age=1900.0)
    assert "if vm-1 is off for good: wal-agent unlock --epoch 2 --now" in "\n".join(status_rows(found))


def test_who_looks_at_a_supervisor_that_stands_still_does_not_stand_still_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs for ever: a stopped process takes no connection, and its job cannot be unlocked as that of a host
    which is off."""
    monkeypatch.setattr(view, "LOOK_TIMEOUT", 0.05)
    shelf = Shelf(tmp_path / "b")
    job = shelf.open(ttl=3600.0)
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime, socket.socket(socket.AF_UNIX) as stopped:
        run_dir = machine.RunDir.create(Path(runtime), job.lease.doc.run)
        rewrite(shelf, msgspec.structs.replace(job.lease.doc, host=machine.this_host({}, run_dir.lock)))
        stopped.bind(str(run_dir.socket))
        stopped.listen()
        found = msgspec.structs.replace(read_view(shelf.bucket, KEYS, {}), heartbeat_age=1900.0)
        run_dir.end()
    assert found.mute and found.state == "running"
    rows = "\n".join(status_rows(found))
    assert f"kill -CONT {os.getpid()}" in rows and "unlock" not in rows


# ---- nothing to unlock is no error


def test_what_nobody_holds_needs_no_unlocking(run: Run, tmp_path: Path) -> None:
    """Exit 0: what was asked for is so, and a script may go on. Nothing is written, so that no ttl begins again."""
    shelf = Shelf(tmp_path / "b")
    code, _, err = run("unlock", "--epoch", "1", *where(shelf))
    assert (code, list(tmp_path.glob("b/*"))) == (64, []), "the wrong name must not look like a success"
    assert "There is no job shop" in err and "--bucket" in err
    close_job(shelf.open("a"), "closed")
    said = [run("unlock", "--epoch", "1", *where(shelf))]
    close_job(shelf.open("b"), "released")
    said.append(run("unlock", "--epoch", "9", *where(shelf)))
    shelf.open("c", ttl=1e-9)
    before = lease(shelf).version
    said.append(run("unlock", "--epoch", "3", "--now", *where(shelf)))
    assert lease(shelf).version == before
    for code, out, err in said:
        assert (code, out, err.count("\n")) == (0, "", 1) and "nothing to unlock" in err and "at once" in err
    shelf.open("d")
    run("unlock", "--epoch", "4", "--now", *where(shelf))
    before = lease(shelf).version
    assert "unlocked already" in run("unlock", "--epoch", "4", "--now", *where(shelf))[2]
    assert lease(shelf).version == before


def test_a_paused_job_is_no_job_to_start_at_once(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    close_job(shelf.open(), "released", f"rate limit {EVIL}", until=time.time() + 7200)
    code, out, err = run("unlock", "--epoch", "1", *where(shelf))
    assert (code, out, err.count("\n")) == (0, "", 1) and "nothing to unlock: job shop is paused until" in err
    assert "(rate limit" in err and "wal-agent pause --job shop" in err and "at once" not in err
    assert EVIL not in err
    found = json.loads(run("unlock", "--epoch", "1", *where(shelf), "--json")[1])
    assert found["done"] is False and 7100 < found["waits"] <= 7200


def test_json_for_scripts(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open(host=f"vm{EVIL}")
    code, out, err = run("unlock", "--epoch", "1", *where(shelf), "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and out.isascii()
    assert (found["done"], found["epoch"], found["waits"], found["pid"]) == (True, 1, 30.0, 7)
    assert json.loads(run("unlock", "--epoch", "1", *where(shelf), "--json")[1])["done"] is False


@pytest.mark.parametrize("reason", ["x" * 501, "\udcff"])
def test_a_reason_is_short_and_text(run: Run, tmp_path: Path, reason: str) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open()
    code, _, _ = run("unlock", "--epoch", "1", "--reason", reason, *where(shelf))
    assert (code, lease(shelf).doc.reason) == ((64, "") if len(reason) > 1 else (0, "?"))


# ---- a lease that cannot be read


def break_frame(shelf: Shelf) -> None:
    path = shelf.folder / f"{KEYS.lease}="
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("how", ["not a lease", "not an object"])
def test_a_damaged_lease_has_a_way_out(run: Run, tmp_path: Path, how: str) -> None:
    """R8, R1: a sound, unlocked lease under the log's epoch stands there instead, and the next owner's is above all."""
    shelf = Shelf(tmp_path / "b")
    shelf.open("a")
    job = shelf.open("b")
    job.writer.append(intent(1))
    commit(job)
    if how == "not a lease":
        rewrite(shelf, b'{"format": 1, "job": "sh')
    else:
        break_frame(shelf)
    for command in (["status"], ["unlock", "--epoch", "2"], ["recover", "--dry-run"]):
        code, _, err = run(*command, *where(shelf))
        assert (code, err.count("\n")) == (73, 1) and "wal-agent unlock --job shop" in err
    for args in ([], ["--epoch", "1"]):
        code, _, err = run("unlock", "--damaged", *args, *where(shelf))
        assert code == 64 and "The log's newest epoch is 2" in err and "--damaged --epoch 2" in err
    code, _, err = run("unlock", "--damaged", "--epoch", "2", *where(shelf))
    assert code == 0 and "waits 120 s, then" in err and "the longest one that a ttl of 30 s allows" in err
    seen = lease(shelf)
    assert (seen.doc.state, seen.doc.epoch, seen.doc.ttl, seen.doc.seq) == ("unlocked", 2, 120.0, 3)
    assert isinstance(admit(seen, ELSEWHERE), Wait)
    assert run("status", *where(shelf))[0] == 0
    with pytest.raises(Fenced, match="unlocked by hand"):
        job.lease.renew()
    after = shelf.open("c")
    assert (after.lease.epoch, len(after.replay.state.open)) == (3, 1)


def test_what_a_damaged_lease_still_says_of_its_ttl_is_waited_for(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open(ttl=90.0)
    rewrite(shelf, encode_lease(lease(shelf).doc)[:-3])
    code, _, err = run("unlock", "--damaged", "--epoch", "1", *where(shelf))
    assert code == 0 and "waits 90 s, then" in err and "allows" not in err and lease(shelf).doc.ttl == 90.0


def test_a_damaged_lease_of_a_host_that_is_off(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open()
    rewrite(shelf, b"")
    assert run("unlock", "--damaged", "--epoch", "1", "--now", *where(shelf))[0] == 0
    assert admit(lease(shelf), ELSEWHERE) == Acquire("unlocked")


def test_a_damaged_lease_without_a_log(run: Run, tmp_path: Path) -> None:
    """An owner that died between lease and opening."""
    shelf = Shelf(tmp_path / "b")
    shelf.bucket.put(KEYS.lease, b"junk")
    assert "epoch is 0" in run("unlock", "--damaged", *where(shelf))[2]
    assert run("unlock", "--damaged", "--epoch", "0", "--now", *where(shelf))[0] == 0
    assert shelf.open().lease.epoch == 2


def test_damage_of_both_is_named(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open()
    rewrite(shelf, b"junk")
    shelf.bucket.delete(KEYS.segment(1))
    shelf.bucket.put(KEYS.segment(1), b"junk")
    code, _, err = run("unlock", "--damaged", "--epoch", "1", *where(shelf))
    assert code == 73 and "record 1" in err and shelf.bucket.get(KEYS.lease).data == b"junk"


def test_a_sound_lease_is_not_replaced(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    code, _, err = run("unlock", "--damaged", "--epoch", "0", *where(shelf))
    assert code == 64 and "there is none" in err
    job = shelf.open()
    code, _, err = run("unlock", "--damaged", "--epoch", "1", *where(shelf))
    assert code == 64 and "not damaged: it says held, epoch 1" in err
    job.lease.renew()

"""`wal-agent pause`, and what `status` and `recover --dry-run` say of a job that is paused."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.unit.cli.shelf import EVIL, KEYS, SECRET, Run, Shelf
from wal_agent.recovery.lease_policy import pause_left
from wal_agent.wal import lease as leases
from wal_agent.wal.job import close_job
from wal_agent.wal.lease import StoredLease


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "b")


def where(shelf: Shelf) -> list[str]:
    return ["--bucket", shelf.url, "--job", "shop"]


def lease(shelf: Shelf) -> StoredLease:
    seen = leases.read_lease(shelf.bucket, KEYS)
    assert seen is not None
    return seen


def released(shelf: Shelf) -> None:
    close_job(shelf.open(), "released", "drained")


def test_a_job_that_nobody_runs_is_paused_and_goes_on(run: Run, shelf: Shelf) -> None:
    released(shelf)
    code, out, err = run("pause", "--for", "2h", "--reason", f"rate limit {SECRET}{EVIL}", *where(shelf))
    assert (code, out) == (0, "") and "job shop is paused until" in err and "UTC (in 2 h)" in err
    assert "end it with: wal-agent pause --job shop" in err and err.rstrip().endswith(" --end")
    assert 7190 < pause_left(lease(shelf)) <= 7200

    code, out, err = run("status", *where(shelf))
    assert code == 0 and "paused until" in out and "(in 2 h): rate limit" in out and "reason" not in out
    assert SECRET not in out and not any(c in out for c in EVIL if not c.isprintable())
    view = json.loads(run("status", "--json", *where(shelf))[1])
    assert view["state"] == "paused" and abs(view["until"] - time.time() - 7200) < 60 and 7100 < view["left"] <= 7200
    assert SECRET not in view["reason"] and view["reason"].startswith("rate limit")
    foreseen = run("recover", "--dry-run", *where(shelf))[1]
    assert "until" in foreseen and "a start would wait for that" in foreseen and SECRET not in foreseen

    code, _, err = run("pause", "--end", *where(shelf))
    assert code == 0 and "is ended" in err and SECRET not in err
    assert json.loads(run("status", "--json", *where(shelf))[1])["state"] == "due"
    code, _, err = run("pause", "--end", *where(shelf))
    assert code == 0 and "is not paused: the next `wal-agent run` starts it at once" in err


def test_another_pause_takes_the_place_of_the_first(run: Run, shelf: Shelf) -> None:
    released(shelf)
    run("pause", "--for", "2h", *where(shelf))
    done = json.loads(run("pause", "--for", "5m", "--reason", "less", "--json", *where(shelf))[1])
    assert (done["job"], done["state"], done["reason"]) == ("shop", "paused", "less")
    assert abs(done["until"] - time.time() - 300) < 60 and pause_left(lease(shelf)) <= 300
    assert "until" in run("pause", "--until", "2099-01-01", *where(shelf))[2]  # a sentence, and nothing is changed
    assert pause_left(lease(shelf)) <= 300


def test_a_pause_that_is_over_is_told_as_one(run: Run, shelf: Shelf) -> None:
    released(shelf)
    run("pause", "--for", "10m", "--reason", "rate limit", *where(shelf))
    past = time.time() - 3600
    for path in shelf.folder.rglob("lease*"):
        os.utime(path, (past, past))
    out = run("status", *where(shelf))[1]
    assert "due, its pause is over" in out and "UTC (rate limit)" in out and "reason" not in out


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("none", 64, "There is no job shop"),
        ("closed", 64, "nothing to pause"),
        ("cut off", 64, "To recover it: wal-agent resume --job shop --bucket file://"),
        ("unlocked", 75, "may still run"),
        ("elsewhere", 75, "running on vm-1"),
    ],
)
def test_what_cannot_be_paused_says_why_and_what_to_do(
    run: Run, shelf: Shelf, how: str, code: int, says: str, tmp_path: Path
) -> None:
    if how == "closed":
        close_job(shelf.open(), "closed")
    elif how == "cut off":
        job = shelf.open(ttl=0.01)
        assert job is not None
        time.sleep(0.02)
    elif how != "none":
        shelf.open()
    if how == "unlocked":
        run("unlock", "--epoch", "1", *where(shelf))
    got, out, err = run("pause", "--for", "5m", *where(shelf))
    assert (got, out, err.count("\n")) == (code, "", 1) and says in err
    if how == "elsewhere":
        assert "pause it there" in err
        assert "it is running" in run("pause", "--end", *where(shelf))[2]


@pytest.mark.parametrize("args", [[], ["--for", "5m", "--until", "14:30"], ["--for", "soon"], ["--end", "--for", "5m"]])
def test_what_is_said_wrongly_touches_nothing(run: Run, shelf: Shelf, args: list[str]) -> None:
    released(shelf)
    before = lease(shelf).version
    code, out, err = run("pause", *args, *where(shelf))
    assert (code, out, err.count("\n")) == (64, "", 1) and lease(shelf).version == before

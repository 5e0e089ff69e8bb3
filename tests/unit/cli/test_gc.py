"""`wal-agent gc`: retention for a job that nobody runs, or beside the run, in one line (R4)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.unit.cli.shelf import KEYS, Run, Shelf, commit, full, intent
from wal_agent.cli.intervene import describe_result
from wal_agent.operate.remove_job import FEW
from wal_agent.wal.blobs import INLINE
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.lease import read_lease
from wal_agent.wal.reader import replay
from wal_agent.wal.retention import Mirror, RetentionResult, Snapshots, Tally


def where(shelf: Shelf) -> list[str]:
    return ["--bucket", shelf.url, "--job", "shop"]


def long_job(folder: Path) -> tuple[Shelf, OpenedJob]:
    """Two epochs, an orphaned blob of the first, and two snapshots: openings at 1 and 2, snapshots at 5 and 8."""
    shelf = Shelf(folder / "b")
    dead = shelf.open("a")
    dead.blobs.put(b"x" * (INLINE + 1))
    close_job(dead, "released")
    job = shelf.open("b")
    taking = Snapshots(shelf.bucket, KEYS, job.writer, Mirror(folder, job.blobs))
    for n in range(1, 7):
        job.writer.append(intent(n, command="x"))
        commit(job)
        if n % 3 == 0:
            taking.take()
    return shelf, job


def a_day_passes(shelf: Shelf) -> None:
    """All objects were last written two days ago: files are as old as their mtime."""
    then = time.time() - 2 * 86_400
    for path in shelf.folder.rglob("*="):
        os.utime(path, (then, then))


@pytest.mark.parametrize("ended", [True, False], ids=["closed", "running"])
def test_it_cleans_a_job_and_says_so_in_one_line(run: Run, tmp_path: Path, ended: bool) -> None:
    """R4, I3: what is kept replays to the same state; a running owner is not disturbed."""
    shelf, job = long_job(tmp_path)
    if ended:
        close_job(job, "closed")
    a_day_passes(shelf)
    before = replay(shelf.bucket, KEYS).state
    keys = [e.key for e in shelf.bucket.list("")]
    code, out, err = run("gc", "--dry-run", *where(shelf))
    assert (code, err) == (0, "")
    assert out.startswith("job shop: 2 segments (") and out.count("\n") == 1
    assert out.endswith(") and 1 blob (65.6 kB) would be deleted; kept since record 5\n")
    assert [e.key for e in shelf.bucket.list("")] == keys
    assert run("gc", *where(shelf)) == (0, out.replace("would be deleted", "deleted"), "")
    assert [KEYS.seq_of(e.key) for e in shelf.bucket.list(KEYS.log)] == [1, 2, 5, 6, 7, 8]
    assert list(shelf.bucket.list(KEYS.blobs)) == []
    assert replay(shelf.bucket, KEYS).state == before
    job_again = run("gc", *where(shelf))
    assert job_again == (0, "job shop: nothing deleted; kept since record 5\n", "")
    if not ended:
        job.writer.append(intent(7, command="x"))
        commit(job)
        assert replay(shelf.bucket, KEYS).state.calls == 7


@pytest.mark.parametrize("damaged", [False, True])
def test_a_job_at_rest_is_opened_for_the_blobs_of_its_last_run(run: Run, tmp_path: Path, damaged: bool) -> None:
    """R4, decision 057: a dry run opens nothing; where the log cannot be opened, nothing of them goes."""
    shelf = Shelf(tmp_path / "b")
    job = shelf.open("a")
    for n in range(FEW):
        job.blobs.put(n.to_bytes(2, "big") * INLINE)
    taking = Snapshots(shelf.bucket, KEYS, job.writer, Mirror(tmp_path, job.blobs))
    for n in (1, 2, 3):
        job.writer.append(intent(n, command="x"))
        commit(job)
        if n < 3:
            taking.take()
    close_job(job, "released", "a pause of the person")
    newest = shelf.folder / "shop" / "log"
    if damaged:
        path = max(newest.iterdir())
        path.write_bytes(path.read_bytes()[:-20])
    a_day_passes(shelf)
    before = replay(shelf.bucket, KEYS).state
    code, out, _ = run("gc", "--dry-run", *where(shelf))
    assert (code, f"{FEW} blobs (" in out) == (0, not damaged), out
    code, out, err = run("gc", *where(shelf))
    left = len(list(shelf.bucket.list(KEYS.blobs)))
    assert (code, err, left) == (0, "", FEW if damaged else 0), out
    if not damaged:
        assert f"{FEW} blobs (" in out and "deleted; kept since record" in out
        after = replay(shelf.bucket, KEYS)
        assert after.damage is None and after.state.open == before.open
        seen = read_lease(shelf.bucket, KEYS)
        assert seen is not None and (seen.doc.state, seen.doc.reason) == ("released", "a pause of the person")
        assert run("gc", *where(shelf))[1].startswith("job shop: nothing deleted")
        assert run("status", *where(shelf))[0] == 0


def test_scripts_get_numbers(run: Run, tmp_path: Path) -> None:
    shelf, _ = long_job(tmp_path)
    a_day_passes(shelf)
    code, out, err = run("gc", "--json", *where(shelf))
    told = json.loads(out)
    assert (code, err) == (0, "") and (told["job"], told["dry_run"], told["since"], told["why"]) == (
        "shop",
        False,
        5,
        "",
    )
    assert (told["segments"]["count"], told["snapshots"]["count"]) == (2, 0)
    assert told["blobs"] == {"count": 1, "size": INLINE + 1 + 66}


def test_why_nothing_goes(run: Run, tmp_path: Path) -> None:
    shelf = full(tmp_path / "b")
    a_day_passes(shelf)
    assert run("gc", *where(shelf))[1] == "job shop: nothing deleted (needs two verified snapshots)\n"


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--json",)])
def test_a_job_that_nobody_began(run: Run, more: tuple[str, ...]) -> None:
    code, out, err = run("gc", "--job", "none", *more)
    assert (code, out) == (64, "") and "There is no job none" in err


@pytest.mark.parametrize(
    ("done", "line"),
    [
        (
            RetentionResult(Tally(1204, 3_100_000), Tally(2, 9), Tally(88, 210_000_000), since=4001),
            "1,204 segments (3.1 MB), 2 snapshots and 88 blobs (210.0 MB) deleted; kept since record 4,001",
        ),
        (
            RetentionResult(Tally(1, 10), Tally(1, 5), since=2),
            "1 segment (10 B) and 1 snapshot deleted; kept since record 2",
        ),
        (
            RetentionResult(Tally(1, 10), since=2, why="record 7 is damaged."),
            "1 segment (10 B) deleted; kept since record 2 (record 7 is damaged.)",
        ),
    ],
)
def test_the_line(done: RetentionResult, line: str) -> None:
    assert describe_result(done, "deleted") == line

"""`wal-agent rm`: a job is deleted, and no run of before can write to it again (R1, R4)."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.unit.cli.shelf import KEYS, SECRET, Run, Shelf, commit, full, intent, payload
from tests.unit.cli.test_restore import Story
from wal_agent.bucket.base import Bucket, BucketDecorator
from wal_agent.clock import SystemClock
from wal_agent.errors import Fenced, Unavailable
from wal_agent.operate.at_rest import JobAccess
from wal_agent.operate.remove_job import remove_job
from wal_agent.records import FileDelta
from wal_agent.supervise.restart import is_complete
from wal_agent.wal import lease as leases
from wal_agent.wal.reader import replay


def keys_of(shelf: Shelf) -> list[str]:
    return [entry.key for entry in shelf.bucket.list("shop/")]


def where(shelf: Shelf) -> list[str]:
    return ["shop", "--bucket", shelf.url]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Cut off, with a call in flight and a working tree."""
    made = Story(tmp_path, ttl=0.001)
    (made.work / "big").write_bytes(random.Random(1).randbytes(1 << 20))
    made.step("one")
    made.step("two")
    return made


def test_what_is_left_locks_old_runs_out_and_holds_nothing_else(story: Story, run: Run) -> None:
    shelf = story.shelf
    before = keys_of(shelf)
    code, out, _ = run("rm", *where(shelf), "--dry-run", "--json")
    foreseen = json.loads(out)
    assert code == 0 and keys_of(shelf) == before and foreseen["open_calls"]
    assert foreseen["blobs"]["count"] == len([key for key in before if "/blobs/" in key]) > 0
    code, out, err = run("rm", *where(shelf), "--yes")
    assert code == 0 and "open calls: #1 run_shell_command (open)" in out, err
    left = keys_of(shelf)
    assert not [key for key in left if "/blobs/" in key] and len(left) <= 8
    found = replay(shelf.bucket, KEYS)
    assert found.damage is None and not (found.state.open or found.state.files or found.state.workspace)
    assert json.loads(run("list", "--bucket", shelf.url, "--json")[1])["jobs"] == []
    assert "state       closed, deleted" in run("status", "--job", "shop", "--bucket", shelf.url)[1]
    for words in (["log", "-n", "0"], ["status"], ["log", "--crashes"]):
        code, out, err = run(*words, "--job", "shop", "--bucket", shelf.url)
        assert code == 0, err


def test_an_old_run_that_wakes_is_locked_out(story: Story, run: Run) -> None:
    """It froze before its append, and what it sends then finds its number taken by a higher epoch."""
    assert run("rm", *where(story.shelf), "--yes")[0] == 0
    left = keys_of(story.shelf)
    story.job.writer.append(intent(9, command="./charge.sh"))
    assert story.job.writer.commit_once() == "ended"
    assert isinstance(story.job.writer.ended, Fenced)
    assert keys_of(story.shelf) == left


def test_the_name_can_be_used_again(story: Story, run: Run) -> None:
    shelf = story.shelf
    assert run("rm", *where(shelf), "--yes")[0] == 0
    assert not is_complete(shelf.url, "shop"), "`run --once` runs it"
    job = shelf.open("new")
    assert job.replay.damage is None and job.replay.state.openings[-1].opening.cause == "closed"
    assert not (job.replay.state.ran or job.replay.state.open)
    job.writer.append(intent(job.writer.next_call(), command="make"))
    commit(job)
    assert [o.intent.tool for o in replay(shelf.bucket, KEYS).state.open] == ["run_shell_command"]
    assert run("list", "--bucket", shelf.url)[0] == 0


class Stops(BucketDecorator):
    """A bucket that goes away at the n-th deletion."""

    def __init__(self, inner: Bucket, left: int) -> None:
        super().__init__(inner)
        self.left = left

    def delete(self, *keys: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("away")
        super().delete(*keys)


@pytest.mark.parametrize("deletes", [0, 1])
def test_one_that_was_cut_off_leaves_a_whole_log_and_goes_on(story: Story, run: Run, deletes: int) -> None:
    shelf = story.shelf
    with pytest.raises(Unavailable):
        remove_job(JobAccess(Stops(shelf.bucket, deletes), KEYS, 0.001, {}), SystemClock())
    found = replay(shelf.bucket, KEYS)
    assert found.damage is None and not found.state.open
    code, _, err = run("rm", *where(shelf), "--yes")
    assert code == 0, err
    assert not [key for key in keys_of(shelf) if "/blobs/" in key]


def test_a_job_that_runs_is_not_deleted(run: Run, tmp_path: Path) -> None:
    shelf = full(tmp_path / "b")
    before = keys_of(shelf)
    code, out, err = run("rm", *where(shelf), "--yes")
    assert (code, out) == (75, "") and "vm-1" in err and keys_of(shelf) == before


def test_nobody_to_ask_is_79_and_an_unknown_job_64(run: Run, story: Story) -> None:
    shelf = story.shelf
    before = keys_of(shelf)
    code, out, err = run("rm", *where(shelf))
    assert (code, out) == (79, "") and keys_of(shelf) == before
    assert err.endswith(f"wal-agent rm shop --bucket {shelf.url} --yes\n")
    assert run("rm", "nosuch", "--bucket", shelf.url, "--yes")[0] == 64


def test_the_saved_words_are_gone(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    job = shelf.open(ttl=0.001)
    job.writer.append(intent(1, command=f"echo {SECRET}"))
    commit(job)
    job.writer.append(FileDelta(time=1.0, path="s", size=1, sha256="0" * 64, edits=(), session="s"))
    commit(job)
    assert run("rm", *where(shelf), "--yes")[0] == 0
    assert leases.read_lease(shelf.bucket, KEYS) is not None
    for word in (SECRET.encode(), payload({"command": f"echo {SECRET}"}).data or b"?"):
        assert not [p for p in (tmp_path / "b").rglob("*") if p.is_file() and word in p.read_bytes()]

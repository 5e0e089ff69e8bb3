"""cli/stats.py: one job or all of a bucket, what cannot be read, and what is never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.bucket.test_encrypted_bucket import RIGHT
from tests.unit.bucket.test_encrypted_bucket import open_job as open_encrypted
from tests.unit.cli.shelf import KEYS, SECRET, Run, commit, full
from wal_agent.bucket.file import FileBucket
from wal_agent.records import Recovery
from wal_agent.wal.job import close_job


def recovered(time: float, took: float) -> Recovery:
    return Recovery(time=time, from_epoch=1, verdicts=(), told="", seconds={"all": took})


def test_the_command_counts_one_job_or_all(tmp_path: Path, run: Run) -> None:
    shelf = full(tmp_path / "b")
    shelf.open(run="b", host="vm-2").writer.append(recovered(30.0, 1.5))
    job = shelf.open(run="c", host="vm-2")
    job.writer.append(recovered(40.0, 0.5))
    commit(job)
    code, out, err = run("stats", "--bucket", shelf.url, "--job", "shop", "--json")
    got = json.loads(out)
    assert (code, err) == (0, "") and [each["job"] for each in got["jobs"]] == ["shop"]
    # of the first run: it noted a death, and then was lost; "b" never sent its record
    assert got["total"]["crashes"] == {"cut_off": 2} and got["total"]["recoveries"] == 2
    assert got["total"]["times"]["all"] == {"count": 1, "p50": 0.5, "p95": 0.5, "p99": 0.5, "max": 0.5}
    code, out, err = run("stats", "--bucket", shelf.url)
    assert (code, err) == (0, "") and out.startswith("job shop in file://")
    assert SECRET not in out and "\x1b" not in out
    assert run("stats", "--bucket", shelf.url, "--job", "none")[0] == 64
    assert run("stats", "--bucket", shelf.url, "--job", "../x")[0] == 64
    assert run("stats", "--bucket", (tmp_path / "empty").as_uri())[0] == 1


def test_it_changes_nothing_in_the_bucket(tmp_path: Path, run: Run) -> None:
    shelf = full(tmp_path / "b")
    before = {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}
    assert run("stats", "--bucket", shelf.url)[0] == 0
    assert before == {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}


def test_a_damaged_log_is_73_with_the_figures_of_the_rest(tmp_path: Path, run: Run) -> None:
    shelf = full(tmp_path / "b")
    seqs = sorted(entry.key for entry in shelf.bucket.list(KEYS.log))
    shelf.bucket.delete(seqs[5])
    shelf.bucket.put(seqs[5], b"junk")
    code, out, err = run("stats", "--bucket", shelf.url, "--json")
    got = json.loads(out)
    assert code == 73 and err.count("\n") == 1 and "damaged" in err
    assert got["total"]["missing"] == 1 and "damaged" in got["jobs"][0]["problem"]


@pytest.mark.parametrize("which", [[], ["--job", "shop"]], ids=["all", "one"])
def test_an_encrypted_job_needs_its_key(tmp_path: Path, run: Run, which: list[str]) -> None:
    bucket = FileBucket(tmp_path / "b")
    job = open_encrypted(bucket, RIGHT)
    job.writer.append(recovered(5.0, 1.0))
    commit(job)
    close_job(job, "released")
    code, out, err = run("stats", "--bucket", bucket.url, *which)
    assert (code, out) == (77, "") and "no key was given" in err
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(RIGHT.secret.hex() + "\n")
    code, out, _ = run("stats", "--bucket", bucket.url, *which, "--encryption-key-file", str(key), "--json")
    assert code == 0 and json.loads(out)["total"]["recoveries"] == 1


def test_a_job_that_cannot_be_read_is_named_and_the_others_are_counted(tmp_path: Path, run: Run) -> None:
    shelf = full(tmp_path / "b")
    shelf.bucket.put("other/lease.json", b"{")
    code, out, err = run("stats", "--bucket", shelf.url, "--json")
    got = json.loads(out)
    assert code == 73 and "not counted: job other" in err
    assert [each["job"] for each in got["unread"]] == ["other"] and got["total"]["calls"] == 2

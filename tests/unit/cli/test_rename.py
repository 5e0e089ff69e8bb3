"""`wal-agent rename`, and a display name wherever a command takes a job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.cli.shelf import Run, Shelf, full
from tests.unit.fleet.leases import store
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.file import FileBucket
from wal_agent.bucket.folder import remember_run
from wal_agent.cli.options import complete_job
from wal_agent.supervise.identity import KnownJob, known_folders, make_owner, noted_job, remember_job
from wal_agent.supervise.options import RunOptions
from wal_agent.wal.names import KEY


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = full(tmp_path / "b")
    monkeypatch.setenv("WAL_AGENT_BUCKET", made.url)
    return made


def test_every_command_takes_the_display_name(run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_agent.operate.stop_job.FAR_DEADLINE", 0.0)  # nobody is there to stop
    code, out, err = run("rename", "shop", "nightly")
    assert (code, out) == (0, "") and "job shop has the display name nightly now" in err
    assert json.loads(run("status", "--json", "--job", "nightly")[1])["job"] == "shop"
    for words in ("log", "status", "recover --dry-run", "checkpoint list", "effects", "stats", "inbox", "gc --dry-run"):
        code, _, err = run(*words.split(), "--job", "nightly")
        assert code in (0, 75) and "is the display name" not in err, words
    code, _, err = run("rm", "nightly", "--dry-run")
    assert code == 0, err
    code, _, err = run("stop", "--done", "--job", "nightly")
    assert "nightly" not in err.splitlines()[-1], "printed commands have the own name"


def test_lists_and_status_show_both_names(run: Run, shelf: Shelf) -> None:
    run("rename", "shop", "nightly")
    for words in (["list"], ["fleet", "ls"]):
        assert "nightly (shop)" in run(*words)[1]
        (job,) = json.loads(run(*words, "--json")[1])["jobs"]
        assert (job["job"], job["name"]) == ("shop", "nightly")
    assert run("status", "--job", "shop")[1].splitlines()[0].split() == ["name", "nightly"]
    assert "nightly (shop)" in run("fleet", "report", "--html", "-")[1]
    assert run("rename", "nightly", "shop")[0] == 0
    assert "nightly" not in run("list")[1] + run("status", "--job", "shop")[1]


def test_a_hostile_object_shadows_no_job_and_reaches_no_terminal(run: Run, shelf: Shelf) -> None:
    store(shelf.bucket, "other", workspace="/elsewhere")
    names = {"shop": "other", "\x1b[2Jx": "shop", "other": "shop"}
    shelf.bucket.put(KEY, json.dumps({"format": 1, "names": names}).encode())
    assert json.loads(run("status", "--json", "--job", "shop")[1])["job"] == "shop"
    for words in (["list"], ["fleet", "ls"], ["status", "--job", "shop"]):
        out = run(*words)[1]
        assert "\x1b" not in out and "(shop)" not in out and "(other)" not in out


def test_what_is_refused_changes_nothing(run: Run, shelf: Shelf) -> None:
    store(shelf.bucket, "other", workspace="/elsewhere")
    assert run("rename", "shop", "other")[0] == 64
    assert run("rename", "shop", "a/b")[0] == 64
    assert run("rename", "nosuch", "x")[0] == 64
    assert run("rename", "shop", "x", "y")[0] == 64
    assert run("rename", "shop", "x", "--job", "shop")[0] == 64
    assert run("rename", "x")[0] == 1, "the folder has no job"
    assert not [entry for entry in shelf.bucket.list("") if entry.key == KEY]


def test_a_deleted_job_has_no_display_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = full(tmp_path / "b")
    shelf.open("later", ttl=0.001)
    monkeypatch.setenv("WAL_AGENT_BUCKET", shelf.url)
    run("rename", "shop", "nightly")
    code, _, err = run("rm", "nightly", "--yes")
    assert code == 0, err
    assert run("status", "--job", "nightly")[0] == 64


def test_a_start_takes_it_too(run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def started(options: RunOptions, screen: object) -> int:
        begun.append(options.settings.job)
        return 0

    monkeypatch.setattr("wal_agent.supervise.restart.run_with_restarts", started)
    run("rename", "shop", "nightly")
    assert run("run", "gemini", "--job", "nightly")[0] == 0
    monkeypatch.setenv("WAL_AGENT_JOB", "nightly")
    assert run("run", "gemini")[0] == 0
    code, _, err = run("resume", "--job", "nightly")
    assert code == 0 and begun.pop() == "shop" and "display name" in err
    monkeypatch.setenv("WAL_AGENT_JOB", "new")
    assert run("run", "gemini")[0] == 0
    assert begun == ["shop", "shop", "new"]


def test_no_bucket_is_opened_for_the_name_of_a_job_that_ran_here(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start opens its bucket once; only a name that this machine does not know is looked up before."""
    looked: list[str] = []
    monkeypatch.setattr("wal_agent.supervise.restart.run_with_restarts", lambda options, screen: 0)

    def look(bucket: Bucket, name: str, env: Mapping[str, str]) -> str:
        looked.append(name)
        return name

    monkeypatch.setattr("wal_agent.wal.names.resolve_name", look)
    remember_run(shelf.url, "", "shop", 1, os.environ)
    assert run("run", "gemini", "--job", "shop")[0] == 0
    assert run("run", "gemini", "--job", "other")[0] == 0
    assert looked == ["other"]


def test_completion_and_notes_of_this_machine(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run of the job keeps the display name in its note."""
    env = {"HOME": str(tmp_path / "home")}
    bucket = FileBucket(tmp_path / "b")
    store(bucket, "gemini-shop-k3f9", workspace=str(Path.cwd()))
    owner = make_owner(Path.cwd(), env)
    remember_job(env, owner.folder, KnownJob(bucket.url, "gemini-shop-k3f9", "gemini"))
    monkeypatch.setenv("WAL_AGENT_BUCKET", bucket.url)
    code, _, err = run("rename", "nightly")
    assert code == 0, err
    remember_job(env, owner.folder, KnownJob(bucket.url, "gemini-shop-k3f9", "gemini"))
    assert [at.alias for known in known_folders(env) for at in known.jobs] == ["nightly"]
    assert complete_job("ni") == ["nightly"]
    assert noted_job(env, bucket.url, "nightly") == "gemini-shop-k3f9"
    run("rename", "nightly", "gemini-shop-k3f9")
    assert complete_job("ni") == [] and noted_job(env, bucket.url, "nightly") == "nightly"

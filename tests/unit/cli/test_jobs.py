"""Which job a command means, and the commands that list, resume and stop jobs."""

from __future__ import annotations

import json
import os
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.cli.shelf import Run, Shelf, commit, full, intent
from tests.unit.fleet.leases import CRASHED, DRAINED, HOST, store
from wal_agent.bucket.file import FileBucket
from wal_agent.cli.run import _settle_handoff
from wal_agent.errors import NoJob
from wal_agent.records import Handoff
from wal_agent.wal.job import close_job


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileBucket:
    made = FileBucket(tmp_path / "bucket")
    monkeypatch.setenv("WAL_AGENT_BUCKET", made.url)
    return made


def here(bucket: FileBucket, name: str, agent: str, **more: object) -> None:
    """A job of this folder, by an earlier wal-agent that noted no owner."""
    host = replace(HOST, name=socket.gethostname())
    store(bucket, name, agent=agent, workspace=str(Path.cwd()), host=host, state="released", **more)


def test_a_command_finds_the_only_job_of_its_folder_and_its_agent(run: Run, bucket: FileBucket) -> None:
    here(bucket, "mine", "claude", reason=DRAINED)
    store(bucket, "other", agent="gemini", workspace="/elsewhere", **CRASHED)
    assert json.loads(run("status", "--json")[1])["job"] == "mine"
    assert run("gc", "--dry-run")[0] == 0
    code, _, err = run("ack", "7", "--done")
    assert code == 64 and "Call #7 is not open" in err
    assert json.loads(run("status", "--json", "--job", "other")[1])["job"] == "other"


def test_what_resolves_or_deletes_asks_which_of_several_jobs(run: Run, bucket: FileBucket) -> None:
    here(bucket, "first", "claude", reason=DRAINED)
    here(bucket, "second", "codex", reason=DRAINED)
    for words in ("ack 7 --done", "gc", "unlock --epoch 1", "rename other", "rewind --to 1", "compact"):
        code, out, err = run(*words.split())
        assert (code, out) == (64, ""), words
        commands = [row.split("   ")[0].strip() for row in err.splitlines()[:-1]]
        assert commands == [f"wal-agent {words} --job {job}" for job in ("first", "second")]
        assert "(claude, released)" in err and "2 jobs" in err.splitlines()[-1]


def test_what_shows_or_continues_takes_the_running_or_the_newest_job(
    run: Run, bucket: FileBucket, tmp_path: Path
) -> None:
    """One line says which, and how to name another."""
    here(bucket, "old", "claude", reason=DRAINED)
    here(bucket, "new", "codex", reason=DRAINED)
    here(bucket, "new.task-1", "codex", reason=DRAINED)
    os.utime(tmp_path / "bucket/old/lease.json=", (1e9, 1e9))
    os.utime(tmp_path / "bucket/new/lease.json=", (1e9 + 5, 1e9 + 5))
    code, out, err = run("status", "--json")
    assert (code, json.loads(out)["job"]) == (0, "new"), "a task is its caller's"
    assert err.count("\n") == 1 and "job new (codex, released), of 3" in err
    assert shlex.split(err.rpartition("(see: ")[2].rstrip(")\n")) == [
        *["wal-agent", "list", "--bucket", bucket.url, "--here"],
    ]
    host = replace(HOST, name=socket.gethostname())
    store(bucket, "old", agent="claude", workspace=str(Path.cwd()), host=host)
    assert json.loads(run("status", "--json")[1])["job"] == "old"
    assert json.loads(run("status", "--json", "--job", "new")[1])["job"] == "new"


def test_a_folder_without_a_job_is_1(run: Run, bucket: FileBucket) -> None:
    for words in ("status", "log", "gc", "ack 1 --done", "pause --for 1h", "stop", "resume"):
        code, out, err = run(*words.split())
        assert (code, out) == (1, "") and "wal-agent run AGENT" in err, words
    code, out, err = run("list")
    assert (code, out) == (0, "") and "There is no job" in err


def test_a_folder_without_a_job_leads_to_the_jobs_of_that_bucket(run: Run, bucket: FileBucket) -> None:
    _, _, err = run("status")
    assert shlex.split(err.rpartition("(see: ")[2].rstrip(")\n")) == ["wal-agent", "list", "--bucket", bucket.url]


def test_the_list_has_the_newest_job_first(run: Run, bucket: FileBucket, tmp_path: Path) -> None:
    store(bucket, "old", state="closed")
    store(bucket, "new", state="closed")
    os.utime(tmp_path / "bucket/old/lease.json=", (1e9, 1e9))
    code, out, _ = run("list")
    header, *rows = out.splitlines()
    assert code == 0 and header.split()[:2] == ["STATE", "JOB"]
    assert [row.split()[1] for row in rows] == ["new", "old"]
    assert [job["job"] for job in json.loads(run("list", "--json")[1])["jobs"]] == ["new", "old"]
    code, _, err = run("list", "--here")
    assert code == 0 and "This folder has no job" in err


def test_an_agent_that_has_no_job_here(run: Run, bucket: FileBucket) -> None:
    """The folder's other jobs are named, and not the job that a start of that agent would make."""
    here(bucket, "first", "claude", reason=DRAINED)
    code, out, err = run("status", "--agent", "codex")
    assert (code, out) == (1, "") and "no job of codex" in err
    assert err.splitlines()[0].split("   ")[0].strip() == "wal-agent status --job first"
    assert json.loads(run("status", "--json", "--agent", "claude")[1])["job"] == "first"
    here(bucket, "second", "codex", reason=DRAINED)
    assert json.loads(run("status", "--json", "--agent", "codex")[1])["job"] == "second"
    here(bucket, "third", "codex", reason=DRAINED)
    code, _, err = run("ack", "--agent", "codex", "7", "--done")
    assert code == 64 and [row.split("   ")[0].strip() for row in err.splitlines()[:-1]] == [
        "wal-agent ack 7 --done --job second",
        "wal-agent ack 7 --done --job third",
    ]


def test_a_handoff_finds_the_job_that_an_agent_has_whichever_began_it(bucket: FileBucket, tmp_path: Path) -> None:
    """The way back too: else it would begin a job of its own, and the agent would know nothing."""

    def handed(agent: str, before: str) -> object:
        return _settle_handoff(agent, Path.cwd(), {}, False, {"handoff": True, "from_agent": before})["job"]

    here(bucket, "gemini-w", "codex", reason=DRAINED)
    here(bucket, "of-claude", "claude", reason=DRAINED)
    assert handed("gemini", "codex") == handed("claude", "codex") == "gemini-w"
    with pytest.raises(NoJob, match="no job of pi"):
        handed("claude", "pi")
    with pytest.raises(NoJob, match="no job of gemini"):
        handed("claude", "gemini")
    job = Shelf(tmp_path / "bucket").open()  # a handoff that was cut off behind its record: the job is gemini's already
    job.writer.append(Handoff(time=1.0, before="pi", agent="gemini"))
    commit(job)
    close_job(job, "released")
    here(bucket, "shop", "gemini", reason=DRAINED)
    assert handed("gemini", "pi") == "shop"
    with pytest.raises(NoJob):
        handed("claude", "pi")


def test_a_folder_without_a_job_names_those_above_and_below(
    run: Run, bucket: FileBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a start does."""
    here(bucket, "mine", "claude", reason=DRAINED)
    top, below = Path.cwd(), Path.cwd() / "sub"
    below.mkdir()
    for folder in (below, top.parent):
        monkeypatch.chdir(folder)
        code, out, err = run("status")
        assert (code, out) == (1, "") and "above and below" in err
        assert err.splitlines()[0].split("   ")[0].strip() == "wal-agent status --job mine"
        assert run("status", "--agent", "codex")[2].count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        *("resume", "stop", "recover --dry-run", "status", "status --json", "log", "log --crashes", "gc"),
        *("ack 1 --done", "pause --for 1h", "unlock", "restore --to out", "checkpoint list", "checkpoint show"),
    ],
)
def test_an_unknown_job_is_64(run: Run, bucket: FileBucket, words: str) -> None:
    code, out, err = run(*words.split(), "--job", "nosuch")
    assert code == 64 and "There is no job nosuch" in err and err.endswith(f"wal-agent list --bucket {bucket.url}\n")
    assert out == "" or json.loads(out)["state"] == "none"


def test_stop_prints_a_command_that_can_be_pasted_anywhere(run: Run, bucket: FileBucket, tmp_path: Path) -> None:
    """With the bucket and the folder, and nothing behind the job's name."""
    host, place = replace(HOST, name=socket.gethostname()), tmp_path / "odd folder;x"
    store(bucket, "mine", workspace=str(place), host=host, state="released", reason=DRAINED)
    (row,) = run("stop", "--job", "mine")[2].splitlines()
    _, command = row.split("To carry on: ")
    assert shlex.split(command) == [
        "cd",
        str(place),
        "&&",
        *f"wal-agent resume --job mine --bucket {bucket.url}".split(),
    ]


def test_stop_closes_a_job_that_nobody_runs_only_where_nothing_is_open(run: Run, tmp_path: Path) -> None:
    """I8: a call in flight that nobody has answered for is not forgotten."""
    shelf = full(tmp_path / "b")
    at = ["--bucket", shelf.url, "--job", "shop"]
    job = shelf.open("b")
    job.writer.append(intent(9, command="./charge.sh"))
    commit(job)
    job.lease.settle("released", "", budget=5.0)
    code, _, err = run("stop", "--done", *at)
    assert code == 79 and "wal-agent ack" in err
    for call in (2, 9):
        assert run("ack", str(call), "--done", *at)[0] == 0
    assert run("stop", "--done", *at)[0] == 0
    assert json.loads(run("status", "--json", *at)[1])["state"] == "closed"
    assert run("stop", *at)[0] == 0


def test_resume_takes_a_job_as_run_does(run: Run, bucket: FileBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    here(bucket, "mine", "claude", reason=DRAINED)
    started = list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr("wal_agent.cli.run.start", lambda agent, args, flags, **wishes: started.append((agent, wishes)))
    ways = ("wait", "no_wait", "take_over", "accept_loss", "exit_on_pause")
    for way in ways:
        assert run("resume", f"--{way.replace('_', '-')}")[0] == 0
        agent, wishes = started[-1]
        assert agent == "claude" and {name for name in ways if wishes[name]} == {way} and wishes["go_on"]
        assert wishes["found"], "what this folder has is no job that a person typed, and no consent to take it over"
    assert run("resume", "--job", "mine")[0] == 0 and not started[-1][1]["found"]

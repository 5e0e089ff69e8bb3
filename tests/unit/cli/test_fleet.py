"""`wal-agent fleet`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.shelf import EVIL, SECRET, Run, Shelf, commit, full, intent
from tests.unit.fleet.leases import CRASHED, DRAINED, store
from tests.unit.notify.sink import Sink
from wal_agent.bucket.file import FileBucket
from wal_agent.cli.fleet import job_cells
from wal_agent.cli.status import describe_state
from wal_agent.cli.view import View
from wal_agent.fleet.jobs import Job
from wal_agent.notify.message import VARIABLE
from wal_agent.records import Answer
from wal_agent.wal.job import close_job


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileBucket:
    made = FileBucket(tmp_path / "bucket")
    monkeypatch.setenv("WAL_AGENT_BUCKET", made.url)
    monkeypatch.setenv("WAL_AGENT_RUNTIME_DIR", "/tmp/never-made")
    return made


def test_what_needs_a_host_comes_first_and_is_counted(run: Run, bucket: FileBucket) -> None:
    store(bucket, "shop-1", state="closed")
    store(bucket, "shop-2", **CRASHED, phase="executing_tools", tool=f"sh{EVIL}")
    store(bucket, "shop-3", ttl=1e4, phase="awaiting_model", since=990.0)
    store(bucket, "shop-4", state="released", until=1e12, reason=f"rate limit {SECRET}")
    store(bucket, "shop-5", state="released", reason=DRAINED)
    store(bucket, "shop-6", **CRASHED, agent=f"evil{EVIL}", spool="/s")
    bucket.put("shop-7/lease.json", b"{")
    code, out, err = run("fleet", "ls")
    rows = out.splitlines()
    assert (code, err) == (0, "") and len(rows) == 9
    assert [row.split()[:2] for row in rows[1:8]] == [
        ["damaged", "shop-7"],
        ["crashed", "shop-2"],
        ["crashed", "shop-6"],
        ["released", "shop-5"],
        ["running", "shop-3"],
        ["paused", "shop-4"],
        ["closed", "shop-1"],
    ]
    counts = "1 damaged, 2 crashed, 1 released, 1 running, 1 paused, 1 closed"
    assert rows[8].startswith(f"7 jobs in {bucket.url}: {counts}; ")
    assert "; 3 need a host: wal-agent fleet claim" in rows[8]
    assert "only vm-1 can carry on" in rows[3]
    assert SECRET not in out and all(c.isprintable() for c in out if c != "\n")


def test_json_is_an_object_and_nothing_else(run: Run, bucket: FileBucket) -> None:
    store(bucket, "a", **CRASHED, tool=f"sh{EVIL} {SECRET}")
    store(bucket, "b", ttl=1e4, workspace=f"/w/{SECRET}", since=-1e308, time=1e308)
    code, out, err = run("fleet", "ls", "--json")
    first, second = json.loads(out)["jobs"]
    assert (code, err) == (0, "") and (first["job"], first["state"], second["state"]) == ("a", "crashed", "running")
    assert first["needs_host"] and SECRET not in out and "\x1b" not in out and "Infinity" not in out
    code, out, _ = run("fleet", "ls", "--json", "--state", "running,paused")
    assert [job["job"] for job in json.loads(out)["jobs"]] == ["b"]


def test_a_bucket_without_jobs(run: Run, bucket: FileBucket) -> None:
    assert run("fleet", "ls") == (0, f"0 jobs in {bucket.url}\n", "")
    for words in (["list"], ["list", "--here"], ["fleet", "ls"]):
        code, out, err = run(*words, "--json")
        assert (code, json.loads(out)["jobs"], err) == (0, [], "")
    code, out, err = run("fleet", "claim")
    assert (code, out) == (0, "") and "no job needs a host" in err


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--state", "dead"),
        ("watch", "--on-crash", "true", "--on", "closed"),
        ("watch", "--on-crash", "true", "--every", "0"),
        ("watch", "--on-crash", "true", "--ttl", "0"),
        ("watch", "--on-crash", "true", "--ttl", "nan"),
        ("watch", "--on-crash", "true", "--ttl", "100000"),
        ("watch", "--on-crash", "true", "--limit", "nan"),
        ("watch", "--on-crash", "true", "--limit", "inf"),
        ("watch", "--on-crash", "true", "--tries", "1001"),
        ("watch",),
        ("claim", "shop"),
        ("claim", "--generic"),
        ("claim", "--every", "nan"),
        (),
    ],
)
def test_what_is_not_possible_is_said_at_once(run: Run, bucket: FileBucket, words: tuple[str, ...]) -> None:
    code, out, err = run("fleet", *words)
    assert (code, out) == (64, "") and err


def test_a_projects_file_does_not_choose_whose_jobs_run_here(run: Run) -> None:
    Path("wal-agent.toml").write_text('bucket = "gs://evil"\n')
    for words in (("claim",), ("watch", "--on-crash", "true")):
        code, _, err = run("fleet", *words)
        assert code == 78 and "wal-agent trust" in err


def test_a_pause_ends_at_the_time_that_status_says() -> None:
    until = 1_700_000_000.0  # 22:13:20 UTC
    for left, says in ((500.0, "until 22:13:20 UTC"), (6000.0, "until 22:13 UTC")):
        row = job_cells(Job(job="shop", state="paused", until=until, left=left), None)
        assert says in row[-1] and says in describe_state(View("shop", "file:///b", "paused", until=until, left=left))


def test_a_watcher_messages_once_about_a_job_that_nobody_recovers(
    run: Run, bucket: FileBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(bucket, "shop-1", **CRASHED, tool=f"sh{EVIL}")
    store(bucket, "shop-2", ttl=1e4)
    code, _, err = run("fleet", "watch", "--notify", "--once")
    assert code == 64 and "no URL" in err
    sink = Sink()
    monkeypatch.setenv(VARIABLE, sink.url)
    for _ in range(2):
        assert run("fleet", "watch", "--notify", "--once")[0] == 0
    message = sink.next()
    assert message["title"] == "wal-agent: shop-1: crashed"
    assert f"wal-agent status --job shop-1 --bucket {bucket.url}" in message["message"]
    assert sink.rest() == []
    sink.close()


def test_the_page_of_all_jobs_has_no_script_and_escapes_what_is_foreign(tmp_path: Path, run: Run) -> None:
    shelf = full(tmp_path / "b", host="</table><script>alert(1)</script>")
    page = tmp_path / "fleet.html"
    assert run("fleet", "report", "--bucket", shelf.url, "--html", str(page))[0] == 0
    text = page.read_text("utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text and "default-src &#" not in text
    assert "wal-agent report --job shop --bucket " in text and SECRET not in text
    assert run("fleet", "report", "--bucket", shelf.url, "--html", "-")[1].startswith("<!doctype html>")
    page.write_text("mine")
    assert run("fleet", "report", "--bucket", shelf.url, "--html", str(page))[0] == 64 and page.read_text() == "mine"


def test_the_open_call_of_a_closed_job_is_counted(tmp_path: Path, run: Run, bucket: FileBucket) -> None:
    """One that the agent was asked about and could not clear up: a list is where a person sees it."""
    job = Shelf(tmp_path / "bucket").open()
    job.writer.append(intent(1), Answer(time=9.0, call=1, looked=(2,)))
    commit(job)
    close_job(job, "closed", "completed")
    for command in (("list",), ("fleet", "ls")):
        code, out, _ = run(*command)
        assert (code, out.splitlines()[1].split()[:5]) == (0, ["closed", "shop", "gemini", "vm-1", "1"])


def test_a_dash_is_explained_unless_no_calls_are_logged(
    tmp_path: Path, run: Run, bucket: FileBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_job(Shelf(tmp_path / "bucket").open(), "closed", "completed")
    store(bucket, "own", state="closed", agent="generic")
    calls = {row.split()[1]: row.split()[4] for row in run("list")[1].splitlines()[1:]}
    assert calls == {"shop": "0", "own": "-"} and not run("list")[2]
    monkeypatch.setattr("wal_agent.fleet.jobs.MAX_READ", 0)
    assert '"-"' in run("list")[2]

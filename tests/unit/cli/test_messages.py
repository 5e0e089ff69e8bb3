"""`wal-agent send`, `inbox`, `reply` and `publish` on a job in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.servers.nats import NatsServer
from tests.unit.cli.shelf import Run, Shelf, commit, intent
from wal_agent.inbox import BucketDriver, make_message
from wal_agent.paths import MARKER
from wal_agent.records import MessageGiven, MessageSeen, Payload
from wal_agent.text import job_command
from wal_agent.wal.job import OpenedJob


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "b")


def where(shelf: Shelf) -> list[str]:
    return ["--bucket", shelf.url, "--job", "shop"]


def rows(run: Run, shelf: Shelf) -> list[dict[str, Any]]:
    code, out, _ = run("inbox", *where(shelf), "--json")
    assert code == 0
    found: list[dict[str, Any]] = json.loads(out)["messages"]
    return found


def give(job: OpenedJob, sender: str, id: str) -> None:
    job.writer.append(MessageGiven(time=2.0, sender=sender, id=id, sent=1.0, text=Payload(size=1, data=b"x")))
    commit(job)


def test_what_is_sent_waits_is_given_and_is_seen(shelf: Shelf, run: Run) -> None:
    job = shelf.open()
    code, out, err = run("send", *where(shelf), "--id", "one", "--from", "ann", "stop", "deploying")
    assert (code, out) == (0, "") and "is on its way" in err
    assert "was sent before" in run("send", *where(shelf), "--id", "one", "--from", "ann", "stop")[2]
    (row,) = rows(run, shelf)
    assert (row["id"], row["from"], row["state"], row["text"]) == ("one", "ann", "waits", "stop deploying")
    give(job, "ann", "one")
    assert [r["state"] for r in rows(run, shelf)] == ["given"]
    job.writer.append(MessageSeen(time=3.0, sender="ann", id="one"))
    commit(job)
    BucketDriver(shelf.bucket, "shop").ack(
        [m.identity for m in BucketDriver(shelf.bucket, "shop").fetch(lambda _: False)]
    )
    (row,) = rows(run, shelf)
    assert (row["state"], row["text"], row["seen"]) == ("seen", None, "1970-01-01T00:00:03.000Z")
    assert run("inbox", "one", *where(shelf))[0] == 1
    code, out, _ = run("inbox", "one", "--json", *where(shelf))
    assert code == 1 and [row["state"] for row in json.loads(out)["messages"]] == ["seen"]


def test_a_text_is_shown_whole_and_inert(shelf: Shelf, run: Run) -> None:
    shelf.open()
    run("send", *where(shelf), "--id", "one", "--from", "ann", "first\nsecond \x1b[2J")
    code, out, _ = run("inbox", "one", *where(shelf))
    assert code == 0 and out.splitlines()[0] == "first" and "\x1b" not in out
    assert "\x1b" not in run("inbox", *where(shelf))[1]


def test_nothing_is_sent_to_a_job_that_is_not_there(shelf: Shelf, run: Run) -> None:
    assert run("send", *where(shelf), "x")[0] == 64
    shelf.open()
    assert run("send", *where(shelf), "--from", "a b", "x")[0] == 64
    assert run("send", *where(shelf), "--control", "rm")[0] == 64
    assert rows(run, shelf) == []


def test_a_tool_that_outlives_its_run_sends_nothing_under_another_name(
    shelf: Shelf, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same id from another sender would be a second message (found by tests/faults/talk.py)."""
    shelf.open()
    monkeypatch.setenv(MARKER, "0123456789abcdef")
    code, _, err = run("send", *where(shelf), "--id", "one", "x")
    assert code == 69 and "--from" in err and rows(run, shelf) == []
    assert run("send", *where(shelf), "--id", "one", "--from", "ann", "x")[0] == 0


def test_an_answer_is_sent_once(shelf: Shelf, run: Run) -> None:
    job = shelf.open()
    give(job, "ann", "one")
    assert "is on its way" in run("reply", "one", "done", *where(shelf))[2]
    assert "was sent before" in run("reply", "one", "done", *where(shelf))[2]
    assert "is on its way" in run("reply", "one", "done, and more", *where(shelf))[2]
    code, _, err = run("reply", "two", "done", *where(shelf))
    assert code == 64 and job_command("inbox", "shop", shelf.url) in err
    assert len(list(shelf.bucket.list("shop/outbox/reply/"))) == 2


def test_an_answer_to_a_job_is_a_message_to_it(shelf: Shelf, run: Run) -> None:
    job = shelf.open()
    give(job, "shop", "one")
    assert "to shop is on its way" in run("reply", "one", "done", *where(shelf))[2]
    assert [(r["from"], r["text"]) for r in rows(run, shelf) if r["state"] == "waits"] == [("shop", "done")]


def test_what_is_published_is_published_once(shelf: Shelf, run: Run) -> None:
    shelf.open()
    code, out, _ = run("publish", "build", "v2 is out", "--json", *where(shelf))
    assert code == 0 and json.loads(out)["new"] is True
    assert json.loads(run("publish", "build", "v2 is out", "--json", *where(shelf))[1])["new"] is False
    assert json.loads(run("publish", "build", "v2 is out", "--id", "again", "--json", *where(shelf))[1])["new"] is True
    assert run("publish", "../x", "y", *where(shelf))[0] == 64


def test_with_a_nats_server_messages_go_over_it(
    shelf: Shelf, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = NatsServer(tmp_path / "nats", 'authorization { user: me, password: "right" }').start()
    monkeypatch.setenv("WAL_AGENT_MESSAGES", server.url)
    monkeypatch.setenv("NATS_USER", "me")
    monkeypatch.setenv("NATS_PASSWORD", "right")
    try:
        shelf.open()
        assert run("send", *where(shelf), "--id", "one", "--from", "ann", "stop")[0] == 0
        assert "was sent before" in run("send", *where(shelf), "--id", "one", "--from", "ann", "stop")[2]
        assert [(row["id"], row["text"]) for row in rows(run, shelf)] == [("one", "stop")]
        assert list(BucketDriver(shelf.bucket, "shop").fetch(lambda _: False)) == []
    finally:
        server.kill()
    code, _, err = run("send", *where(shelf), "--id", "two", "--from", "ann", "go")
    assert code == 0 and "cannot be reached" in err and "is on its way" in err
    assert [row["id"] for row in rows(run, shelf)] == ["two"]


def test_many_messages_are_listed_waiting_ones_first_and_all_on_request(shelf: Shelf, run: Run) -> None:
    job, driver = shelf.open(), BucketDriver(shelf.bucket, "shop")
    for n in range(60):
        driver.send(make_message("x", "ann", f"m{n}"))
    for n in range(3):
        give(job, "ann", f"m{n}")
    shown = rows(run, shelf)
    assert [row["state"] for row in shown] == 50 * ["waits"] + 3 * ["given"]
    assert "--all" in run("inbox", *where(shelf))[2]
    code, out, err = run("inbox", *where(shelf), "--all", "--json")
    assert (code, len(json.loads(out)["messages"]), err) == (0, 60, "")


@pytest.mark.parametrize(("state", "word"), [("closed", "closed"), ("released", "released")])
def test_a_sender_learns_when_it_is_read(
    shelf: Shelf, run: Run, state: Literal["closed", "released"], word: str
) -> None:
    job = shelf.open()
    assert "runs" in run("send", *where(shelf), "--from", "ann", "one")[2]
    job.lease.settle(state, "", budget=5.0)
    said = run("send", *where(shelf), "--from", "ann", "two")[2]
    assert f"the job is {word}" in said and job_command("resume", "shop", shelf.url) in said
    status = run("status", *where(shelf))[1]
    assert "2 messages for the agent's next start" in status


def test_a_sender_to_a_job_that_is_being_recovered_learns_it(shelf: Shelf, run: Run) -> None:
    """As a run opens it: until it has renewed its lease, that says what it does."""
    first = shelf.open(phase="starting")
    assert "the job is starting" in run("send", *where(shelf), "--from", "ann", "one")[2]
    first.writer.append(intent(1))
    commit(first)
    shelf.open("b", phase="starting")
    assert "the job is recovering" in run("send", *where(shelf), "--from", "ann", "two")[2]


def test_a_sender_to_a_crashed_job_learns_it(shelf: Shelf, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.open()
    monkeypatch.setattr("wal_agent.fleet.jobs.owner_is_dead", lambda *_: True)
    assert "the job crashed" in run("send", *where(shelf), "--from", "ann", "one")[2]

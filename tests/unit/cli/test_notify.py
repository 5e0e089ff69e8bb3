"""`wal-agent notify`, with real services on loopback."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.shelf import Run
from tests.unit.notify.sink import Sink, nobody
from wal_agent.notify import outbox as letters
from wal_agent.notify.message import VARIABLE, Notification, load_targets
from wal_agent.notify.outbox import Outbox, outbox_for


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()


def halted(job: str = "shop") -> Outbox:
    box = outbox_for(os.environ, load_targets(os.environ))
    message = Notification("person_needed", "stopped", "body", "k", insists=True)
    assert box.put(job, lambda said, _: letters.make_letter(message, job, time.time(), said), time.time())
    return box


def test_without_a_url_it_says_where_to_write_one(run: Run, tmp_path: Path) -> None:
    code, out, err = run("notify")
    assert (code, err) == (0, "") and str(tmp_path / "home/.config/wal-agent/wal-agent.toml") in out and VARIABLE in out
    code, _, err = run("notify", "--test")
    assert code == 64 and "no URL" in err and VARIABLE in err


def test_the_listing_hides_the_urls_and_tells_what_waits_and_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "tgram://123456:s3cret/789 person_needed=json://s3cret.example.com/x")
    box = halted()
    box.fail(load_targets(os.environ)[1], "it said no", time.time())
    code, out, err = run("notify")
    assert (code, err) == (0, "") and "s3cret" not in out and "123456" not in out
    assert [row.split()[:3] for row in out.splitlines()] == [
        ["1", "tgram", "recovery"],
        ["2", "json", "person_needed"],
        ["waiting", "1", "to"],
    ]
    assert "fails since" in out and "it said no" in out


def test_the_test_message_goes_to_each_and_says_of_each(run: Run, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{sink.url} info={sink.url}/2")
    box = outbox_for(os.environ, load_targets(os.environ))
    box.fail(load_targets(os.environ)[0], "it was down", time.time())
    code, out, err = run("notify", "--test")
    assert (code, err) == (0, "") and out.count(" ok\n") == 2 and "s3cret" not in out
    assert [sink.next()["type"] for _ in range(2)] == ["warning", "info"] and box.failures() == {}


def test_one_that_does_not_take_it_is_69(run: Run, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{nobody()} {sink.url}")
    code, out, last = run("notify", "--test")
    first, second = out.splitlines()
    assert code == 69 and "error" in first.lower() and second.endswith(" ok") and "1 of 2" in last
    assert "s3cret" not in out + last and sink.next()["title"] == "wal-agent: a test message"


def test_an_acknowledgement_ends_the_reminders(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "json://127.0.0.1:9")
    box = halted()
    monkeypatch.delenv(VARIABLE)
    code, _, err = run("notify", "--ack")
    assert code == 0 and "1 reminder is stopped" in err
    assert not any(waiting.insists for waiting in box.letters().values())
    assert run("notify", "--ack")[::2] == (
        0,
        "wal-agent: there are no reminders to stop.\n",
    )
    assert run("notify", "--ack", "--test")[0] == 64


def test_a_projects_file_is_refused_where_it_matters(run: Run) -> None:
    Path("wal-agent.toml").write_text('[[notify]]\nurl = "json://s3cret"\n')
    code, _, err = run("status")
    assert code == 78 and "not a project's to choose" in err and "s3cret" not in err
    assert "No notifications" in run("notify")[1], "it is not read from there"

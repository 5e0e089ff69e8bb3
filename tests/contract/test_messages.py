"""What every carrier of messages must do (docs/MESSAGES.md), on each of them: the bucket, a real NATS server, a driver
of another package (tests/fixtures), and the one whose URL is in WAL_AGENT_TEST_DRIVER."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.nats import NatsServer
from wal_agent.bucket.base import MemoryBucket
from wal_agent.inbox import MAX_AT_ONCE, MAX_TEXT, BucketDriver, Driver, Message
from wal_agent.messages import find_factory
from wal_agent.messages.both import Both
from wal_agent.messages.connection import Connection
from wal_agent.messages.nats_driver import NatsDriver

New = Callable[[str], Driver]
"""Make a driver for a job, as another process would."""


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield server
    server.kill()


GIVEN = os.environ.get("WAL_AGENT_TEST_DRIVER", "")
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(params=["bucket", "nats", "both", "sqlite", *(["given"] if GIVEN else [])])
def new(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[New]:
    bucket, made = MemoryBucket(), list[Driver]()
    url = request.getfixturevalue("nats_server").url if request.param in ("nats", "both") else ""
    monkeypatch.syspath_prepend(FIXTURES / "sqlite_driver")
    env = {**os.environ, "SQLITE_DRIVER_DIR": str(tmp_path)}
    other = {"sqlite": "sqlite://messages", "given": GIVEN}.get(request.param, "")
    run = secrets.token_hex(4)

    def make(job: str) -> Driver:
        first: Driver = BucketDriver(bucket, job)
        if other:
            first = find_factory(other.partition(":")[0])(other, f"{job}-{run}", env, lambda _: None)
        if url:
            link = Connection(url, {}, lambda _: None, "test", NatsDriver.STREAMS)
            server: Driver = NatsDriver(link, f"{request.node.name.replace('[', '-').replace(']', '')}-{job}")
            first = server if request.param == "nats" else Both(first, server)
        made.append(first)
        return first

    yield make
    for driver in made:
        driver.close()


def message(id: str, sender: str = "ann", text: str = "stop", sent: float = 1.0, verb: str = "") -> Message:
    return Message(id=id, sender=sender, text=text, sent=sent, verb=verb)  # type: ignore[arg-type]


def nobody(identity: str) -> bool:
    return False


def test_a_message_waits_until_it_is_acknowledged_and_reading_takes_nothing(new: New) -> None:
    sent = message("1")
    assert new("a").send(sent)
    reader = new("a")
    assert list(reader.fetch(nobody)) == [sent] == list(reader.fetch(nobody))
    assert list(new("a").fetch(nobody)) == [sent]  # a process that was killed took nothing with it
    reader.ack({sent.identity})
    assert list(reader.fetch(nobody)) == [] == list(new("a").fetch(nobody))


def test_the_same_id_twice_is_one_message_and_another_senders_is_another(new: New) -> None:
    driver = new("a")
    assert driver.send(message("1"))
    assert not driver.send(message("1", text="something else"))
    assert not new("a").send(message("1"))
    assert driver.send(message("1", sender="bob"))
    assert [(m.sender, m.text) for m in new("a").fetch(nobody)] == [("ann", "stop"), ("bob", "stop")]


def test_each_sender_keeps_its_order(new: New) -> None:
    driver = new("a")
    for n in range(12):
        driver.send(message(f"{n:02}", sender=("ann", "bob")[n % 2], sent=float(n)))
    found = list(new("a").fetch(nobody))
    for sender, ids in (("ann", range(0, 12, 2)), ("bob", range(1, 12, 2))):
        assert [m.id for m in found if m.sender == sender] == [f"{n:02}" for n in ids]


def test_what_is_known_is_not_given_again(new: New) -> None:
    driver = new("a")
    one, two = message("1"), message("2", sent=2.0)
    assert driver.send(one) and driver.send(two)
    assert list(driver.fetch(lambda identity: identity == one.identity)) == [two]


def test_one_look_takes_so_many_and_the_next_one_the_others(new: New) -> None:
    driver = new("a")
    for n in range(MAX_AT_ONCE + 5):
        driver.send(message(f"{n:03}", sent=float(n)))
    reader = new("a")
    first = list(reader.fetch(nobody))
    assert len(first) == MAX_AT_ONCE
    given = {m.identity for m in first}
    rest = list(reader.fetch(lambda identity: identity in given))
    assert [m.id for m in rest] == [f"{n:03}" for n in range(MAX_AT_ONCE, MAX_AT_ONCE + 5)]


def test_acknowledging_before_reading_and_twice_and_what_is_not_there(new: New) -> None:
    sent = message("1")
    new("a").send(sent)
    driver = new("a")
    driver.ack({sent.identity, message("never").identity})
    driver.ack({sent.identity})
    assert list(driver.fetch(nobody)) == []


def test_jobs_do_not_see_each_others(new: New) -> None:
    new("a").send(message("1"))
    assert list(new("a.b").fetch(nobody)) == [] == list(new("b").fetch(nobody))


def test_text_is_kept_as_it_is_up_to_the_limit(new: New) -> None:
    text = "\x1b[2J\x00\n```\u202e é" + "\x01" * 100
    text += "x" * (MAX_TEXT - len(text.encode()))
    new("a").send(message("1", text=text))
    assert [m.text for m in new("a").fetch(nobody)] == [text]


def test_a_control_message_keeps_its_verb(new: New) -> None:
    new("a").send(message("1", verb="pause", text="5m"))
    assert [(m.verb, m.text) for m in new("a").fetch(nobody)] == [("pause", "5m")]


def test_what_a_job_publishes_is_kept_once_and_is_no_message_to_it(new: New) -> None:
    driver = new("a")
    assert driver.publish("builds.done", message("1"))
    assert not new("a").publish("builds.done", message("1"))
    assert driver.publish("builds.failed", message("1"))
    assert list(driver.fetch(nobody)) == []

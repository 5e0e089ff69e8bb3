"""The NATS driver beside the contract: a server that is killed or loses its stream, plain texts, hostile ones."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import msgspec
import nats
import pytest

from tests.servers.nats import NatsServer
from wal_agent.bucket.base import MemoryBucket
from wal_agent.errors import Unavailable
from wal_agent.inbox import MAX_TEXT, BucketDriver, Driver, Message
from wal_agent.messages import connection, nats_driver
from wal_agent.messages.both import Both
from wal_agent.messages.connection import Connection
from wal_agent.messages.nats_driver import NatsDriver, parse
from wal_agent.messages.subjects import INBOX, OUTBOX

AT = datetime.fromtimestamp(1000, UTC)
STOP = Message(id="1", sender="ann", text="stop", sent=1.0)


def nobody(identity: str) -> bool:
    return False


@pytest.fixture
def new(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], NatsDriver]]:
    monkeypatch.setattr(connection, "RETRY", (0.02,))
    made: list[NatsDriver] = []

    def make() -> NatsDriver:
        made.append(NatsDriver(Connection(server.url, {}, lambda _: None, "test", NatsDriver.STREAMS), "web.1"))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


def patiently(act: Callable[[], object]) -> None:
    """As a sender and a run do: again until it is decided."""
    for _ in range(600):
        try:
            act()
        except Unavailable:
            asyncio.run(asyncio.sleep(0.05))
        else:
            return
    pytest.fail("not decided")


def look(reader: NatsDriver, seen: set[str], log: list[str]) -> None:
    for each in reader.fetch(nobody):
        seen.add(each.identity)
        if each.id not in log:
            log.append(each.id)


def test_nothing_is_lost_or_doubled_while_server_sender_and_reader_are_killed(
    server: NatsServer, new: Callable[[], NatsDriver]
) -> None:
    """The reader notes what it acts on before it acknowledges, as a run's log does."""
    chance = random.Random(16)
    log: list[str] = []
    sender, reader = new(), new()
    for n in range(40):
        message = Message(id=f"{n:03}", sender="ann", text=str(n), sent=float(n))
        if chance.random() < 0.15:
            server.kill()
            server.start()
        if chance.random() < 0.2:
            sender.close()
            sender = new()
        patiently(partial(sender.send, message))
        if chance.random() < 0.3:
            patiently(partial(sender.send, message))  # its reply was lost
        if chance.random() < 0.3:
            reader.close()
            reader = new()  # killed: it acknowledges nothing
        seen: set[str] = set()
        patiently(partial(look, reader, seen, log))
        if chance.random() < 0.6:
            patiently(partial(reader.ack, seen))
    assert log == [f"{n:03}" for n in range(40)]


def test_a_stream_that_is_deleted_or_purged_is_made_again(server: NatsServer, new: Callable[[], NatsDriver]) -> None:
    driver = new()
    assert driver.send(STOP) and list(driver.fetch(nobody)) == [STOP]

    async def delete() -> None:
        client = await nats.connect(server.url)
        api = client.jetstream()
        await api.purge_stream(INBOX.name)
        await api.delete_stream(INBOX.name)
        await client.close()

    asyncio.run(delete())
    driver.fetch(nobody)
    other = Message(id="2", sender="ann", text="go", sent=2.0)
    assert new().send(other)
    assert other in list(driver.fetch(nobody))
    driver.ack({STOP.identity})  # it is gone: no error


def test_a_server_that_lost_its_disk_is_read_from_the_beginning(
    server: NatsServer, new: Callable[[], NatsDriver]
) -> None:
    driver = new()
    assert driver.send(STOP) and list(driver.fetch(nobody)) == [STOP]
    server.kill()
    shutil.rmtree(server.store)
    server.start()
    other = Message(id="2", sender="ann", text="go", sent=2.0)
    patiently(partial(driver.send, other))
    assert list(driver.fetch(nobody)) == [other]


def test_an_id_is_taken_for_as_long_as_the_message_is_there(server: NatsServer, new: Callable[[], NatsDriver]) -> None:
    """The server itself forgets an id (Nats-Msg-Id) after two minutes."""
    driver = new()
    driver.fetch(nobody)

    async def publish() -> None:
        client = await nats.connect(server.url)
        await client.jetstream().publish(f"agent.web~1.inbox.{STOP.identity}", msgspec.json.encode(STOP))
        await client.close()

    asyncio.run(publish())
    assert not driver.send(STOP)
    driver.ack({STOP.identity})
    driver.fetch(nobody)
    driver.ack({STOP.identity})
    assert driver.send(STOP)


def test_a_slow_reader_gets_all_in_its_time_and_holds_only_so_many(
    new: Callable[[], NatsDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_driver, "MAX_READ", 4)
    monkeypatch.setattr(nats_driver, "MAX_HELD", 10)
    sender, reader = new(), new()
    for n in range(25):
        sender.send(Message(id=f"{n:03}", sender="ann", text="x", sent=1.0))
    got: list[str] = []
    seen: set[str] = set()
    for _ in range(30):
        found = list(reader.fetch(seen.__contains__))
        assert len(reader._held) <= 10
        got += [m.id for m in found]
        seen |= {m.identity for m in found}
    reader.ack(seen)
    assert list(new().fetch(nobody)) == []
    got += [m.id for m in reader.fetch(seen.__contains__)]
    assert sorted(set(got)) == got == [f"{n:03}" for n in range(25)]


def test_what_comes_wakes_the_reader_also_behind_a_new_connection(
    server: NatsServer, new: Callable[[], NatsDriver]
) -> None:
    woken = threading.Event()
    reader, sender = new(), new()
    reader.notify(woken.set)
    assert woken.wait(30)  # with the connection: something may have been missed
    woken.clear()
    control = msgspec.structs.replace(STOP, id="2", verb="pause")
    for message in (STOP, control):
        assert sender.send(message)
        assert woken.wait(30)
        woken.clear()
    server.kill()
    server.start()
    assert woken.wait(30)
    woken.clear()
    patiently(partial(sender.send, msgspec.structs.replace(STOP, id="3")))
    assert woken.wait(30)


def test_any_nats_client_can_send_a_plain_text(server: NatsServer, new: Callable[[], NatsDriver]) -> None:
    driver = new()
    driver.fetch(nobody)

    async def publish() -> None:
        client = await nats.connect(server.url)
        for text in (b"use the other branch", b"stop", b"stop"):
            await client.jetstream().publish("agent.web~1.inbox", text)
        await client.close()

    asyncio.run(publish())
    found = list(driver.fetch(nobody))
    assert [(m.sender, m.text) for m in found] == [("nats", "use the other branch"), ("nats", "stop"), ("nats", "stop")]
    assert len({m.identity for m in found}) == 3
    driver.ack({found[1].identity})
    assert list(new().fetch(nobody)) == [found[0], found[2]]


def test_a_plain_text_that_is_acknowledged_over_another_connection_goes(
    server: NatsServer, new: Callable[[], NatsDriver]
) -> None:
    """Its subject does not say which message it is, so it is deleted once it is read again."""

    async def publish() -> None:
        client = await nats.connect(server.url)
        await client.jetstream().publish("agent.web~1.inbox", b"stop")
        await client.close()

    driver = new()
    driver.send(STOP)  # makes the stream
    asyncio.run(publish())
    found = list(driver.fetch(nobody))
    server.kill()
    server.start()
    patiently(lambda: driver.ack({m.identity for m in found}))
    patiently(lambda: driver.fetch(nobody))
    assert list(new().fetch(nobody)) == []


def test_hostile_messages_are_passed_over() -> None:
    own = f"agent.web~1.inbox.{STOP.identity}"
    data = msgspec.json.encode(STOP)
    assert parse("web.1", own, data, 1, AT) == STOP
    control = msgspec.structs.replace(STOP, verb="pause")
    refused = [
        (f"agent.web~1.inbox.{'0' * 32}", data),  # under another one's name
        (f"agent.web~1.control.{STOP.identity}", data),
        (own, msgspec.json.encode(control)),  # the server's permissions say who may control
        (own, data[:-1]),
        (own, b"[" * 100_000),
        (own, b"\xff\xfe"),
        (own, msgspec.json.encode(msgspec.structs.replace(STOP, text="é" * (MAX_TEXT // 2 + 1)))),
        (own, msgspec.json.encode(msgspec.structs.replace(STOP, id="../x"))),
        (own, msgspec.json.encode({**msgspec.to_builtins(STOP), "verb": "rm"})),
        ("agent.web~1.inbox", b" \n"),
        ("agent.web~1.inbox", b"x" * (MAX_TEXT + 1)),
        ("agent.web~1.status", b"{}"),
    ]
    for name, body in refused:
        assert parse("web.1", name, body, 1, AT) is None, name
    newline = msgspec.structs.replace(STOP, sender="ann\n")
    assert parse("web.1", f"agent.web~1.inbox.{newline.identity}", msgspec.json.encode(newline), 1, AT) is None


def test_hostile_messages_hide_no_other(server: NatsServer, new: Callable[[], NatsDriver]) -> None:
    driver = new()
    driver.fetch(nobody)

    async def publish() -> None:
        client = await nats.connect(server.url)
        for n in range(60):
            await client.jetstream().publish(f"agent.web~1.inbox.{n}", b"\x00{")
        await client.close()

    asyncio.run(publish())
    assert driver.send(STOP)
    assert list(driver.fetch(nobody)) == [STOP]


def test_the_bucket_serves_while_the_server_is_away(server: NatsServer, new: Callable[[], NatsDriver]) -> None:
    bucket = BucketDriver(MemoryBucket(), "web.1")
    both = Both(bucket, new())
    both.fetch(nobody)
    server.kill()
    with pytest.raises(Unavailable):
        patiently_away(lambda: both.fetch(nobody))
    bucket.send(STOP)
    assert list(both.fetch(nobody)) == [STOP]
    with suppress(Unavailable):
        both.ack({STOP.identity})
    assert list(bucket.fetch(nobody)) == []


def test_a_sender_uses_the_server_and_in_its_absence_the_bucket(
    server: NatsServer, new: Callable[[], NatsDriver]
) -> None:
    bucket, driver = BucketDriver(MemoryBucket(), "web.1"), new()
    both = Both(bucket, driver)
    assert both.send(STOP)
    assert list(bucket.fetch(nobody)) == [] and list(driver.fetch(nobody)) == [STOP]
    server.kill()
    assert both.send(STOP)  # its reply was lost: it is in both places now
    server.start()
    patiently(partial(driver.fetch, nobody))
    assert list(both.fetch(nobody)) == [STOP]
    both.ack({STOP.identity})
    assert list(bucket.fetch(nobody)) == [] == list(driver.fetch(nobody))


def test_a_publication_is_kept_by_the_bucket_and_sent_over_the_server(
    server: NatsServer, new: Callable[[], NatsDriver]
) -> None:
    store = MemoryBucket()
    both = Both(BucketDriver(store, "web.1"), new())

    async def heard() -> bytes:
        client = await nats.connect(server.url)
        listening = await client.subscribe("agent.web~1.outbox.build.*")
        await client.flush()
        await asyncio.to_thread(both.publish, "build", STOP)
        data = (await listening.next_msg(30)).data
        await client.close()
        return data

    assert msgspec.json.decode(asyncio.run(heard()), type=Message) == STOP
    assert not both.publish("build", STOP)
    assert [e.key for e in store.list("web.1/outbox/")] == [f"web.1/outbox/build/{STOP.identity}"]


def test_nothing_of_an_encrypted_job_is_written_to_the_server(new: Callable[[], NatsDriver]) -> None:
    bucket, driver = BucketDriver(MemoryBucket(), "web.1"), new()
    both = Both(bucket, driver, secret=True)
    assert both.send(STOP) and both.publish("build", STOP)
    assert list(driver.fetch(nobody)) == [] and driver.publish("build", STOP)
    assert list(both.fetch(nobody)) == [STOP]


def test_the_bucket_is_listed_only_as_often_as_it_should(new: Callable[[], NatsDriver]) -> None:
    now = [0.0]
    bucket, driver = BucketDriver(MemoryBucket(), "web.1"), new()
    both = Both(bucket, driver, every=30.0, now=lambda: now[0])
    both.fetch(nobody)
    bucket.send(STOP)
    now[0] = 29.0
    assert list(both.fetch(nobody)) == []
    now[0] = 30.0
    assert list(both.fetch(nobody)) == [STOP]


@pytest.mark.parametrize("first_by", ["bucket", "server"])
def test_a_sender_keeps_its_order_over_both_ways(first_by: str, new: Callable[[], NatsDriver]) -> None:
    """Also where the server was away for one of its messages, and no look into the bucket is due."""
    bucket, driver = BucketDriver(MemoryBucket(), "web.1"), new()
    both = Both(bucket, driver, every=30.0, now=lambda: 0.0)
    assert list(both.fetch(nobody)) == []
    older, newer = (msgspec.structs.replace(STOP, id=id, sent=sent) for id, sent in (("a", 1.0), ("b", 2.0)))
    ways: tuple[Driver, Driver] = (bucket, driver) if first_by == "bucket" else (driver, bucket)
    for way, each in zip(ways, (older, newer), strict=True):
        assert way.send(each)
    assert list(both.fetch(nobody)) == [older, newer]


def patiently_away(act: Callable[[], object]) -> None:
    """Until the loss of the connection is known."""
    for _ in range(600):
        act()
        asyncio.run(asyncio.sleep(0.05))


def test_no_stream_covers_what_is_requested() -> None:
    assert not any("checkpoint.create" in s or (s.endswith(".>") and "outbox" not in s) for s in INBOX.subjects)
    assert OUTBOX.subjects == ("agent.*.outbox.>",)

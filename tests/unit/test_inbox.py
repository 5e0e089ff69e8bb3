"""wal_agent/inbox.py: the contract that each carrier of messages keeps, on the one of the bucket."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.bucket.base import Bucket, BucketDecorator, MemoryBucket, Object
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import UsageError
from wal_agent.inbox import (
    MAX_AT_ONCE,
    MAX_OF_SECOND,
    MAX_TEXT,
    BucketDriver,
    Driver,
    Message,
    identity_of,
    make_message,
    new_id,
)

KEY = "shop/inbox/"


def nothing(_: str) -> bool:
    return False


@pytest.fixture(params=["memory", "file"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    return MemoryBucket() if request.param == "memory" else FileBucket(tmp_path / "bucket")


@pytest.fixture
def driver(bucket: Bucket) -> Driver:
    return BucketDriver(bucket, "shop")


# ---- the contract


def test_the_same_message_twice_is_one(driver: Driver) -> None:
    assert driver.send(make_message("stop", "ann", "one"))
    assert not driver.send(make_message("stop, I said", "ann", "one"))
    assert driver.send(make_message("stop", "bob", "one")), "of another sender it is another one"
    assert [(m.sender, m.text) for m in driver.fetch(nothing) if m.sender == "ann"] == [("ann", "stop")]


def test_what_is_fetched_stays_until_it_is_acknowledged(driver: Driver) -> None:
    message = make_message("stop", "ann")
    driver.send(message)
    assert driver.fetch(nothing) == driver.fetch(nothing) == [message]
    driver.ack([message.identity])
    assert driver.fetch(nothing) == []
    driver.ack([message.identity])


def test_those_of_one_sender_come_in_the_order_in_which_they_were_sent(driver: Driver) -> None:
    sent = [make_message(f"{n}", "ann") for n in range(MAX_AT_ONCE + 7)]
    for message in sent:
        driver.send(message)
    first = list(driver.fetch(nothing))
    assert first == sent[:MAX_AT_ONCE]
    known = {m.identity for m in first}
    assert list(driver.fetch(lambda identity: identity in known)) == sent[MAX_AT_ONCE:]


def test_what_is_published_is_published_once(driver: Driver) -> None:
    assert driver.publish("build", make_message("v2 is out", "shop", "a"))
    assert not driver.publish("build", make_message("v2 is out", "shop", "a"))
    assert driver.fetch(nothing) == [], "it is no message to the job"


# ---- hostile senders


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"id":"a","sender":"ann","sent":1}',
        b'{"id":"../a","sender":"ann","sent":1,"text":"x"}',
        b'{"id":"a","sender":"an\\u001b[2Jn","sent":1,"text":"x"}',
        b'{"id":"a","sender":"ann","sent":1,"text":"x","verb":"rm"}',
        b'{"id":"a\\n","sender":"ann","sent":1,"text":"x"}',
        b'{"id":"other","sender":"ann","sent":1,"text":"x"}',
        msgspec.json.encode({"id": "a", "sender": "ann", "sent": 1.0, "text": "x" * (MAX_TEXT + 1)}),
        b"[" * 100_000,
        b'{"x":' * 100_000,
    ],
)
def test_what_is_no_message_is_passed_over(bucket: Bucket, data: bytes) -> None:
    bucket.put(f"{KEY}{identity_of('ann', 'a')}", data)
    driver = BucketDriver(bucket, "shop")
    good = make_message("hello", "bob")
    driver.send(good)
    assert driver.fetch(nothing) == driver.fetch(nothing) == [good]


def test_a_message_under_anothers_name_is_none(bucket: Bucket) -> None:
    """Or one object would be two messages."""
    message = make_message("x", "ann", "a")
    bucket.put(f"{KEY}{'0' * 32}", msgspec.json.encode(message))
    assert BucketDriver(bucket, "shop").fetch(nothing) == []


@pytest.mark.parametrize(
    ("text", "sender", "id", "verb"),
    [
        ("x", "a b", "", ""),
        ("x", "", "", ""),
        ("x", "ann", "../x", ""),
        ("x", "ann", "x" * 101, ""),
        ("x", "ann", "", "rm"),
        ("", "ann", "", ""),
        (" \n", "ann", "", ""),
        ("é" * (MAX_TEXT // 2 + 1), "ann", "", ""),
    ],
)
def test_what_cannot_be_sent_is_refused(text: str, sender: str, id: str, verb: str) -> None:
    with pytest.raises(UsageError):
        make_message(text, sender, id, verb)


def test_the_most_that_can_be_sent_is_read(driver: Driver) -> None:
    assert driver.send(make_message("é" * (MAX_TEXT // 2), "ann"))
    assert len(driver.fetch(nothing)) == 1


@given(st.text(), st.text())
def test_two_identities_are_never_one(sender: str, id: str) -> None:
    assert identity_of(sender, id) != identity_of(sender + "x", id)
    if "\0" not in sender + id:
        assert identity_of(sender + id, "") != identity_of(sender, id) or not id


def test_later_ids_sort_behind_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10**18, 10**18 + 2_000_000])
    monkeypatch.setattr("wal_agent.inbox.time.time_ns", lambda: next(times))
    assert new_id() < new_id()


def test_the_bytes_are_documented_json() -> None:
    message = make_message("x", "ann", "a")
    assert json.loads(msgspec.json.encode(message)) == {"id": "a", "sender": "ann", "sent": message.sent, "text": "x"}
    assert Message(id="a", sender="ann", sent=message.sent, text="x") == message


class Counting(BucketDecorator):
    """Counts what a look costs."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.gets, self.deleted = 0, list[str]()

    def get(self, key: str) -> Object:
        self.gets += 1
        return super().get(key)

    def delete(self, *keys: str) -> None:
        self.deleted += keys
        super().delete(*keys)


def test_a_look_reads_no_more_than_it_gives_and_the_rest_of_a_second() -> None:
    now = [1000.0]
    bucket = Counting(MemoryBucket(lambda: now[0]))
    driver = BucketDriver(bucket, "shop")
    for n in range(3 * MAX_AT_ONCE):
        driver.send(make_message("x", "ann", f"m{n:04}"))
        now[0] += 0.1
    found = [m.id for m in driver.fetch(nothing)]
    assert found == [f"m{n:04}" for n in range(MAX_AT_ONCE)]
    assert MAX_AT_ONCE <= bucket.gets <= MAX_AT_ONCE + 10


def test_only_what_is_there_is_deleted() -> None:
    """The log remembers the newest 300 messages; most of their objects have been gone for long at a run's start."""
    bucket = Counting(MemoryBucket())
    driver = BucketDriver(bucket, "shop")
    gone, there = make_message("x", "ann", "gone"), make_message("x", "ann", "there")
    driver.send(there)
    driver.fetch(nothing)
    driver.ack([gone.identity, there.identity])
    assert [key.rpartition("/")[2] for key in bucket.deleted] == [there.identity]


def test_a_message_has_64_kib_in_whatever_characters(bucket: Bucket, driver: Driver) -> None:
    """A decoder counts characters."""
    for n, text in enumerate(("x" * MAX_TEXT, "x" * (MAX_TEXT + 1), "\N{GRINNING FACE}" * (MAX_TEXT // 2))):
        message = Message(id=f"{n}", sender="ann", sent=1.0, text=text)
        bucket.put(f"{KEY}{message.identity}", msgspec.json.encode(message))
    assert [message.id for message in driver.fetch(nothing)] == ["0"]


def test_a_flood_in_one_second_is_read_in_parts() -> None:
    """34.8: what one look holds in memory, however many came at once; each of them comes with a later look."""
    read: list[str] = []

    class Counted(BucketDecorator):
        def get(self, key: str) -> Object:
            read.append(key)
            return super().get(key)

    bucket = MemoryBucket()
    sent = {m.identity: m for m in (make_message("x", "ann", f"m{n}") for n in range(MAX_OF_SECOND + 20))}
    for identity, message in sent.items():
        bucket.put(f"{KEY}{identity}", msgspec.json.encode(message))
    driver, known = BucketDriver(Counted(bucket), "shop"), set[str]()
    while found := driver.fetch(known.__contains__):
        assert len(read) <= MAX_OF_SECOND + MAX_AT_ONCE  # of two seconds, where the clock went on
        read.clear()
        known |= {message.identity for message in found}
    assert known == {*sent}

"""Carry messages in JetStream streams (docs/NATS.md), as `inbox.Driver` asks for it.

A message is one stream message on a subject of its own, `agent.<job>.inbox.<identity>`, which the server creates only
if the subject is empty: the same message twice is one. What is in the stream is what was not acknowledged: reading uses
no consumer and so takes nothing away, and an acknowledgement deletes. Thus the log is the only account of what was
given and seen, and a crash at any point leaves the message where it was. Everything that is read is hostile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal

import msgspec
from nats.aio.client import Client
from nats.js.api import Header, RawStreamMsg
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from wal_agent import msgspec_compat
from wal_agent.errors import Unavailable
from wal_agent.inbox import MAX_AT_ONCE, Message, is_short
from wal_agent.messages.connection import CLOSE_AT_ONCE, Connection, ensure_stream
from wal_agent.messages.subjects import INBOX, OUTBOX, Stream, job_token, subject, token

DEADLINE: Final = 5.0  # seconds for one method
MAX_READ: Final = 500  # stream messages that one look reads
MAX_BYTES: Final = 32 << 20  # that one look reads; the server, not wal-agent, says how long a message may be
MAX_HELD: Final = 1000  # messages that are kept in memory; the others stay with the server until these are seen
TAKEN: Final = 10071  # JetStream's error code: the subject is not empty
NO_STREAM: Final = 10059  # else a message that is not found is none
PLAIN_SENDER: Final = "nats"  # of a plain text that any NATS client has published

_DECODER = msgspec_compat.of_json(Message)


def parse(job: str, name: str, data: bytes, seq: int, at: datetime | None) -> Message | None:
    """Return the message that stands on the subject `name`; None where it is not what the subject says. Pure.

    A text on `agent.<job>.inbox` itself is a message from "nats": who may publish there is the server's to say."""
    kind, _, identity = name.removeprefix(f"agent.{job_token(job)}.").partition(".")
    if (kind, identity) == ("inbox", ""):
        sent = at.timestamp() if at is not None else 0.0
        text = data.decode("utf-8", "replace")
        if not text.strip() or not is_short(text):
            return None
        return Message(id=f"{seq}-{round(sent * 1000)}", sender=PLAIN_SENDER, sent=sent, text=text)
    try:
        message = _DECODER.decode(data)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    wanted = "control" if message.verb else "inbox"
    if not message.is_named or (kind, identity) != (wanted, message.identity) or not is_short(message.text):
        return None
    return message


class NatsDriver:
    """The messages of one job over one connection, which must have been made with STREAMS."""

    name = "nats"
    STREAMS: Final[tuple[Stream, ...]] = (INBOX, OUTBOX)

    def __init__(self, link: Connection, job: str) -> None:
        self._link, self._job = link, job
        self._lock = threading.Lock()  # a look that was given up may still run
        self._done: dict[str, None] = {}  # acknowledged before they were read; of a plain text no subject says which
        self._forget(0)

    def _forget(self, connection: int) -> None:
        """Read the stream from its beginning: behind a new connection it may be another one."""
        self._connection = connection  # the one that the fields below are about
        self._next = 1  # the first stream sequence that was not read
        self._end = False  # all that there is was read
        self._held: dict[int, Message] = {}  # by stream sequence
        self._numbers: dict[str, set[int]] = {}  # by identity

    def fetch(self, known: Callable[[str], bool]) -> Sequence[Message]:
        with self._lock:
            return self._fetch(known)

    def _fetch(self, known: Callable[[str], bool]) -> Sequence[Message]:
        if self._connection != self._link.number:
            self._forget(self._link.number)
        if len(self._held) >= MAX_HELD:
            self._held = {n: each for n, each in self._held.items() if not known(each.identity)}
        if room := min(MAX_READ, MAX_HELD - len(self._held)):
            found, more = self._link.call(lambda client: self._read(client, room), DEADLINE)
            if more == "gone":
                self._forget(self._link.number)
            self._connection = self._connection or self._link.number
            self._end = more == "end"
            for raw in found:
                self._hold(raw)
            if late := [identity for identity in self._done if identity in self._numbers]:
                self._ack(late)
        waiting: dict[str, Message] = {}
        for message in self._held.values():
            if not known(message.identity):
                waiting.setdefault(message.identity, message)
        return list(waiting.values())[:MAX_AT_ONCE]

    def _hold(self, raw: RawStreamMsg) -> None:
        number = raw.seq or 0
        self._next = max(self._next, number + 1)
        message = parse(self._job, raw.subject or "", raw.data or b"", number, raw.time)
        if message is not None:
            self._held[number] = message
            self._numbers.setdefault(message.identity, set()).add(number)

    async def _read(self, client: Client, most: int) -> tuple[list[RawStreamMsg], Literal["more", "end", "gone"]]:
        """Read up to `most` messages of the job behind those that were read. "gone": the stream was, and is made
        again."""
        api = client.jetstream(timeout=DEADLINE)
        found: list[RawStreamMsg] = []
        after, until = self._next, asyncio.get_running_loop().time() + DEADLINE / 2
        size = 0
        while len(found) < most and size < MAX_BYTES and asyncio.get_running_loop().time() < until:
            try:
                raw = await api.get_msg(INBOX.name, after, subject(self._job, ">"), next=True)
            except NotFoundError as error:
                if error.err_code != NO_STREAM:
                    return found, "end"
                await ensure_stream(client, INBOX)
                return [], "gone"
            if not raw.seq or raw.seq < after:
                break
            found.append(raw)
            size += len(raw.data or b"")
            after = raw.seq + 1
        return found, "more"

    def ack(self, identities: Collection[str]) -> None:
        with self._lock:
            self._ack(identities)

    def _ack(self, identities: Collection[str]) -> None:
        same = self._connection == self._link.number
        read = {each: self._numbers.get(each, set()) for each in identities} if same else {}
        if numbers := sorted(number for each in read.values() for number in each):
            self._link.call(lambda client: self._delete(client, numbers), DEADLINE)
            for number in numbers:
                self._held.pop(number, None)
        for identity in read:
            self._numbers.pop(identity, None)
            self._done.pop(identity, None)
        rest = [each for each in identities if not read.get(each)]
        if rest and not (same and self._end):  # it may be there, where nobody has read yet
            self._done = dict(list({**self._done, **dict.fromkeys(rest)}.items())[-MAX_HELD:])
            self._link.call(lambda client: self._purge(client, rest), DEADLINE)

    async def _delete(self, client: Client, numbers: Sequence[int]) -> None:
        api = client.jetstream(timeout=DEADLINE)
        for number in numbers:
            with suppress(APIError):  # it is gone already
                await api.delete_msg(INBOX.name, number)

    async def _purge(self, client: Client, identities: Sequence[str]) -> None:
        api = client.jetstream(timeout=DEADLINE)
        for identity in identities:
            for kind in ("inbox", "control"):
                with suppress(APIError):
                    await api.purge_stream(INBOX.name, subject=subject(self._job, kind, token(identity)))

    def send(self, message: Message) -> bool:
        kind = "control" if message.verb else "inbox"
        return self._create(subject(self._job, kind, message.identity), INBOX, message)

    def publish(self, subject_: str, message: Message) -> bool:
        words = [token(word) for word in subject_.split(".")]
        return self._create(subject(self._job, "outbox", *words, message.identity), OUTBOX, message)

    def _create(self, name: str, stream: Stream, message: Message) -> bool:
        data = msgspec.json.encode(message)
        headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: "0", Header.MSG_ID.value: name}

        async def create(client: Client) -> bool:
            api = client.jetstream(timeout=DEADLINE)
            try:
                try:
                    ack = await api.publish(name, data, stream=stream.name, headers=headers)
                except NoStreamResponseError:
                    await ensure_stream(client, stream)
                    ack = await api.publish(name, data, stream=stream.name, headers=headers)
            except APIError as error:
                if error.err_code == TAKEN:
                    return False
                raise
            return not ack.duplicate

        try:
            return self._link.call(create, DEADLINE)
        except APIError as error:
            raise Unavailable(f"The NATS server refused the message: {error.description}.") from error

    def notify(self, wake: Callable[[], None]) -> None:
        for words in (("inbox",), ("inbox", "*"), ("control", "*")):
            self._link.watch(subject(self._job, *words), wake)

    def close(self) -> None:
        self._link.close(CLOSE_AT_ONCE)  # every method has waited for its own answer

"""Messages to a job: what a sender puts into the bucket, and what any carrier of messages must do (docs/MESSAGES.md).

`Driver` is the protocol of a carrier; `BucketDriver` is the default: each message is one object that is only ever
created, named by the hash of its sender and its id, so that the same message twice is one. Only the owner of the job
writes the log, and only the owner deletes here. Everything that is read is hostile.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Annotated, Final, Literal, Protocol, get_args

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.base import Bucket
from wal_agent.config import Verb
from wal_agent.errors import Conflict, Damaged, NotFound, UsageError
from wal_agent.text import shorten
from wal_agent.wal.keys import Keys

MAX_TEXT: Final = 64 << 10  # bytes of one message
MAX_AT_ONCE: Final = 50  # messages that one look takes
MAX_OF_SECOND: Final = 500  # messages of one second that one look reads; then their order is not kept
MAX_LISTED: Final = 5000  # objects that one look lists: more is a sender that does not stop
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]{0,99}")
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)

Name = Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}\Z")]  # `$` would allow a line's end
_TO_RUN: Final = "run "


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it is carried. `sent`: since 1970, by the sender's clock. `verb`: of a control message, whose `text`
    is its argument."""

    id: Name
    sender: Name
    sent: float
    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    verb: Verb | Literal[""] = ""

    @property
    def identity(self) -> str:
        """What makes two messages one: sender and id. 32 hex digits."""
        return identity_of(self.sender, self.id)

    @property
    def is_named(self) -> bool:
        """Whether id and sender are names that a message can have: a Message can be made without a decoder, which
        checks them, by the driver of another package."""
        return bool(NAME.fullmatch(self.id) and NAME.fullmatch(self.sender))


_DECODER = msgspec_compat.of_json(Message)


def is_short(text: str) -> bool:
    """Whether a message may have this text: a decoder counts its characters, of up to four bytes."""
    return len(text.encode()) <= MAX_TEXT


def identity_of(sender: str, id: str) -> str:
    return hashlib.sha256(f"{sender}\0{id}".encode()).hexdigest()[:32]


def new_id() -> str:
    """Return an id that nobody has: later ones sort behind earlier ones."""
    return f"{time.time_ns() // 1_000_000:012x}-{secrets.token_hex(5)}"


def repeated_id(kind: str, *parts: str) -> str:
    """Return the same id for the same words: a crash between sending and its outcome sends nothing twice. Pure."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{kind}-{digest[:24]}"


def reply_id(job: str, id: str, words: str) -> str:
    """Return the id of what `job` answers to the message `id`. Pure."""
    return repeated_id("re", job, id, words)


def make_message(text: str, sender: str, id: str = "", control: str = "") -> Message:
    """Return a message to send. UsageError: a name or a verb that cannot be, too much text, or none."""
    for what, name in (("--from", sender), *([("--id", id)] if id else [])):
        if not NAME.fullmatch(name):
            allowed = "Use 1 to 100 of A-Z a-z 0-9 @ . _ - and begin with a letter or digit."
            raise UsageError(f"{what} {shorten(repr(name), 60)} is not possible.", allowed)
    verb: Verb | Literal[""] = next((known for known in VERBS if known == control), "")
    if control and not verb:
        raise UsageError(f"--control {shorten(repr(control), 40)} is not possible.", f"Say {', '.join(VERBS)}.")
    if len(text.encode("utf-8", "surrogateescape")) > MAX_TEXT:
        raise UsageError(f"The message has more than {MAX_TEXT >> 10} KiB.", "Put it into a file, and its place here.")
    if not text.strip() and not verb:
        raise UsageError("The message is empty.")
    clean = text.encode("utf-8", "replace").decode()
    return Message(id=id or new_id(), sender=sender, sent=time.time(), text=clean, verb=verb)


def address_to_run(run: str) -> str:
    """Return the argument of a `drain` that only this run obeys. Pure."""
    return _TO_RUN + run


def is_for_run(text: str, run: str) -> bool:
    """Return whether a `drain` with this argument is for the run: it names that one, or none. Pure."""
    return not text.startswith(_TO_RUN) or text == address_to_run(run)


class Driver(Protocol):
    """Carries messages to one job. It may be slow, absent or repeat itself: no tool call and no
    record waits for it. Every method may raise a WalAgentError (Unavailable, Denied); the next look tries again."""

    name: str

    def fetch(self, known: Callable[[str], bool]) -> Sequence[Message]:
        """Return what waits, those of one sender in the order in which they were sent; not those whose identity is
        `known`, at most MAX_AT_ONCE. Nothing is taken away by it."""

    def ack(self, identities: Collection[str]) -> None:
        """The log holds these, and their reader has seen them: they need not be kept any more."""

    def send(self, message: Message) -> bool:
        """Make it durable; False: this message is there already."""

    def publish(self, subject: str, message: Message) -> bool:
        """Make a message of the job's to others durable, once for each identity; False: it is there already."""

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread and without waiting for it, when a message may have come. A driver that cannot
        know does nothing: `fetch` is called from time to time."""

    def close(self) -> None:
        """Let connections go."""


class BucketDriver:
    """Messages as objects of the job: `<job>/inbox/<identity>` and `<job>/outbox/<subject>/<identity>`."""

    name = "bucket"

    def __init__(self, bucket: Bucket, job: str) -> None:
        self._bucket, self._keys = bucket, Keys(job)
        self._bad: set[str] = set()  # keys of objects that are no messages
        self._there: frozenset[str] | None = None  # identities that the last look listed

    def fetch(self, known: Callable[[str], bool]) -> Sequence[Message]:
        listed = {e.key.rpartition("/")[2]: e for e in islice(self._bucket.list(self._keys.inbox), MAX_LISTED)}
        self._there = frozenset(listed)
        new = {i: int(e.updated) for i, e in listed.items() if e.key not in self._bad and not known(i)}
        found: list[Message] = []
        # Stores count whole seconds; those of one sender are put one after the other. So a second is read whole.
        for _, second in groupby(sorted(new, key=new.__getitem__), new.__getitem__):
            if len(found) >= MAX_AT_ONCE:
                break
            found += sorted(
                islice(self._read_all(second), MAX_OF_SECOND), key=lambda message: (message.sent, message.id)
            )
        return found[:MAX_AT_ONCE]

    def _read_all(self, identities: Iterable[str]) -> Iterator[Message]:
        for identity in identities:
            if (message := self.read(identity)) is not None:
                yield message
            else:
                self._bad.add(f"{self._keys.inbox}{identity}")

    def read(self, identity: str) -> Message | None:
        """Return one message; None where there is none, or where it is not what its name says."""
        try:
            data = self._bucket.get(f"{self._keys.inbox}{identity}").data
            message = _DECODER.decode(data)
        except (NotFound, Damaged, ValueError, msgspec.MsgspecError, RecursionError):
            return None
        return message if message.identity == identity and is_short(message.text) else None

    def ack(self, identities: Collection[str]) -> None:
        """A store may need a request for each: only what the last look saw is deleted."""
        there = set(identities) if self._there is None else self._there.intersection(identities)
        self._bucket.delete(*(f"{self._keys.inbox}{identity}" for identity in there))

    def send(self, message: Message) -> bool:
        return self._create(f"{self._keys.inbox}{message.identity}", message)

    def publish(self, subject: str, message: Message) -> bool:
        return self._create(f"{self._keys.outbox}{subject}/{message.identity}", message)

    def _create(self, key: str, message: Message) -> bool:
        try:
            self._bucket.put(key, msgspec.json.encode(message))
        except Conflict:
            return False
        return True

    def notify(self, wake: Callable[[], None]) -> None:
        """A bucket says nothing by itself."""

    def close(self) -> None:
        """The bucket is its opener's."""


def default_sender() -> str:
    """Who sends: the user of this machine, as a name that a message can have."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    name = re.sub(r"[^A-Za-z0-9@._-]", "-", f"{user}@{socket.gethostname()}")[:100]
    return name if NAME.fullmatch(name) else "someone"

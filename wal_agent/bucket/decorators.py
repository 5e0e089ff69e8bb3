"""Buckets around a bucket: one retries, one counts.

`RetryBucket` retries requests that a bucket did not answer: capped exponential backoff with jitter, inside a budget of
seconds. It never sends a put again. After Unavailable the put may have landed or may land later, and only its writer
can find out, by reading back whether the object is its own (R3, R10). A second put would turn its own success into a
Conflict. Writers use `RetryBudget` for that.

`MeterBucket` counts what goes through: the numbers behind the claims on cost per tool call.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeVar

import msgspec

from wal_agent.bucket.base import Bucket, BucketDecorator, Entry, Object, Version
from wal_agent.clock import Clock
from wal_agent.errors import BucketError, Unavailable, Unmounted

T = TypeVar("T")
FIRST_BACKOFF = 0.05  # seconds
MAX_BACKOFF = 2.0
FIRST_PAUSE = 0.1  # seconds; the longest pause after the first failure, doubled with each further one
MAX_PAUSE = 5.0
REMEMBERED = 1024  # unanswered requests of which it is known that a further one is a retry


def backoff(attempt: int, rng: random.Random) -> float:
    """Seconds to wait before try number `attempt` (from 1): doubles from FIRST_BACKOFF up to
    MAX_BACKOFF, +-50 %."""
    return float(min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** min(attempt - 1, 10))) * (0.5 + rng.random())


class RetryBudget:
    """One operation's budget, counted from its making."""

    def __init__(self, clock: Clock, rng: random.Random, budget: float) -> None:
        self._clock, self._rng = clock, rng
        self._until = clock.boot() + budget
        self._attempt = 0

    def pause(self, error: BucketError) -> None:
        """Sleep before the next try; raise `error` when the budget is used up."""
        self._attempt += 1
        seconds = backoff(self._attempt, self._rng)
        if self._clock.boot() + seconds > self._until:
            raise error
        self._clock.sleep(seconds)

    def call(self, act: Callable[[], T]) -> T:
        """What `act` returns, called again while the bucket is Unavailable and the budget lasts."""
        while True:
            try:
                return act()
            except Unavailable as error:
                self.pause(error)


class RetryBucket(BucketDecorator):
    """A put is one try (see above). Gives up, with the inner bucket's own error, after `attempts` tries or when
    `deadline` seconds would pass."""

    def __init__(
        self, inner: Bucket, clock: Clock, rng: random.Random, attempts: int = 24, deadline: float = 20.0
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._rng = rng
        self._attempts = attempts
        self._deadline = deadline

    def get(self, key: str) -> Object:
        return self._again(lambda: self._inner.get(key))

    def delete(self, *keys: str) -> None:
        self._again(lambda: self._inner.delete(*keys))

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._list(prefix, start_after, self._inner.list(prefix, start_after))

    def folders(self, prefix: str) -> Iterator[str]:
        return self._folders(prefix, self._inner.folders(prefix))

    def time(self) -> float:
        return self._again(self._inner.time)

    def _list(self, prefix: str, start_after: str, entries: Iterator[Entry]) -> Iterator[Entry]:
        patience = self._patience()
        while True:
            try:
                for entry in entries:
                    yield entry
                    start_after = entry.key
                    patience = self._patience()  # it moves: only failures in a row count
                return
            except Unavailable as error:
                patience(error)
                entries = self._inner.list(prefix, start_after)

    def _folders(self, prefix: str, names: Iterator[str]) -> Iterator[str]:
        patience, given = self._patience(), set[str]()
        while True:
            try:
                for name in names:
                    if name not in given:
                        given.add(name)
                        yield name
                        patience = self._patience()
                return
            except Unavailable as error:
                patience(error)
                names = self._inner.folders(prefix)

    def _again(self, ask: Callable[[], T]) -> T:
        patience = self._patience()
        while True:
            try:
                return ask()
            except Unavailable as error:
                patience(error)

    def _patience(self) -> Callable[[Unavailable], None]:
        """A function that sleeps after a failure, or raises it again when there were enough."""
        failures = 0
        end = self._clock.boot() + self._deadline

        def wait(error: Unavailable) -> None:
            nonlocal failures
            failures += 1
            # The exponent is capped too: 2**failures of a day's outage is no float any more.
            pause = self._rng.uniform(0.0, min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 16)))
            if isinstance(error, Unmounted) or failures >= self._attempts or self._clock.boot() + pause > end:
                raise error
            self._clock.sleep(pause)

        return wait


class OpUsage(msgspec.Struct, frozen=True):
    """Of one method: calls, payload bytes each way, and what was raised, by the name of its class. `answered`: calls
    that ended well, so `requests` less these and the errors are under way; `retries`: calls for what the last call for
    it got no answer on (Unavailable)."""

    requests: int = 0
    sent: int = 0
    received: int = 0
    errors: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    answered: int = 0
    retries: int = 0


class Usage(msgspec.Struct, frozen=True):
    """What a MeterBucket had counted at one moment; a failed put counts as sent."""

    get: OpUsage
    put: OpUsage
    delete: OpUsage
    list: OpUsage
    time: OpUsage

    @property
    def requests(self) -> int:
        return sum(op.requests for op in (self.get, self.put, self.delete, self.list, self.time))

    @property
    def sent(self) -> int:
        return self.put.sent


class MeterBucket(BucketDecorator):
    """A listing is one request, however many pages the store makes of it; its received bytes are those of its keys."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._unanswered: OrderedDict[tuple[str, str], None] = OrderedDict()  # oldest first

    def snapshot(self) -> Usage:
        with self._lock:
            return Usage(*(self._usage(op) for op in ("get", "put", "delete", "list", "time")))

    def get(self, key: str) -> Object:
        with self._counted("get", key):
            found = self._inner.get(key)
            self._count("get", "received", len(found.data))
            return found

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        with self._counted("put", key):
            self._count("put", "sent", len(data))
            return self._inner.put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        with self._counted("delete", keys[0] if keys else ""):
            self._inner.delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self._begun("list", prefix)
        with self._errors_counted("list", prefix):
            entries = self._inner.list(prefix, start_after)
        return self._list(entries, prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """Counted as a listing."""
        self._begun("list", prefix)
        with self._errors_counted("list", prefix):
            names = self._inner.folders(prefix)
        return self._folders(names, prefix)

    def time(self) -> float:
        with self._counted("time", ""):
            return self._inner.time()

    def _list(self, entries: Iterator[Entry], prefix: str) -> Iterator[Entry]:
        with self._errors_counted("list", prefix):
            for entry in entries:
                self._count("list", "received", len(entry.key))
                yield entry
        self._count("list", "answered", 1)

    def _folders(self, names: Iterator[str], prefix: str) -> Iterator[str]:
        with self._errors_counted("list", prefix):
            for name in names:
                self._count("list", "received", len(name))
                yield name
        self._count("list", "answered", 1)

    @contextmanager
    def _counted(self, op: str, key: str) -> Iterator[None]:
        self._begun(op, key)
        with self._errors_counted(op, key):
            yield
        self._count(op, "answered", 1)

    def _begun(self, op: str, key: str) -> None:
        with self._lock:
            self._counts[op, "requests"] += 1
            if (op, key) in self._unanswered:
                del self._unanswered[op, key]
                self._counts[op, "retries"] += 1

    @contextmanager
    def _errors_counted(self, op: str, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            with self._lock:
                self._errors[op, type(error).__name__] += 1
                if isinstance(error, Unavailable):
                    self._unanswered[op, key] = None
                    if len(self._unanswered) > REMEMBERED:
                        self._unanswered.popitem(last=False)
            raise

    def _count(self, op: str, what: str, by: int) -> None:
        with self._lock:
            self._counts[op, what] += by

    def _usage(self, op: str) -> OpUsage:
        errors = {name: count for (which, name), count in self._errors.items() if which == op}
        requests, sent, received, answered, retries = (
            self._counts[op, what] for what in ("requests", "sent", "received", "answered", "retries")
        )
        return OpUsage(requests, sent, received, MappingProxyType(errors), answered, retries)

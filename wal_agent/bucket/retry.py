"""Retry requests that a bucket did not answer: capped exponential backoff with jitter, inside a budget of seconds.

`RetryBucket` never sends a put again. After Unavailable it may have landed or may land later, and only its writer can
find out, by reading back whether the object is its own (R3, R10). A second put would turn its own success into a
Conflict. Writers use `RetryBudget` for that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from wal_agent.bucket.base import Bucket, BucketDecorator, Entry, Object
from wal_agent.clock import Clock
from wal_agent.errors import BucketError, Unavailable

T = TypeVar("T")
FIRST_BACKOFF = 0.05  # seconds
LONGEST_BACKOFF = 2.0


def backoff(attempt: int, rng: random.Random) -> float:
    """Seconds to wait before try number `attempt` (from 1): doubles from FIRST_BACKOFF up to
    LONGEST_BACKOFF, +-50 %."""
    return float(min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** min(attempt - 1, 10))) * (0.5 + rng.random())


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


FIRST_PAUSE = 0.1  # seconds; the longest pause after the first failure, doubled with each further one
LONGEST_PAUSE = 5.0


class RetryBucket(BucketDecorator):
    """A put is one try (see above). Gives up, with the inner bucket's own error, after `attempts` tries or when
    `deadline` seconds would pass."""

    def __init__(
        self, inner: Bucket, clock: Clock, rng: random.Random, attempts: int = 8, deadline: float = 20.0
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
            pause = self._rng.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 16)))
            if failures >= self._attempts or self._clock.boot() + pause > end:
                raise error
            self._clock.sleep(pause)

        return wait

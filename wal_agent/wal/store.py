"""Where a job is kept, and how patiently it is asked for: what everything that acts on a job hands on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.decorators import RetryBucket, RetryBudget
from wal_agent.clock import Clock, SystemClock
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import PARALLEL

T = TypeVar("T")


class JobStore(msgspec.Struct, frozen=True):
    """A job's place in a bucket. `budget`: seconds that each step may be tried for."""

    bucket: Bucket
    keys: Keys
    clock: Clock = SystemClock()
    rng: random.Random = msgspec.field(default_factory=random.Random)
    budget: float = 20.0
    parallel: int = PARALLEL

    @property
    def steady(self) -> RetryBucket:
        """Each read is retried by itself: begun anew at each failure, a replay of hundreds would never end on a bad
        day."""
        return RetryBucket(self.bucket, self.clock, self.rng, deadline=self.budget)

    def retries(self, budget: float | None = None) -> RetryBudget:
        """The patience of one step, which begins now."""
        return RetryBudget(self.clock, self.rng, self.budget if budget is None else budget)

    def call(self, act: Callable[[], T]) -> T:
        return self.retries().call(act)

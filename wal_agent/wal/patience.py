"""How long to go on after an undecided request, and how fast: capped backoff with jitter inside a budget of seconds."""

from __future__ import annotations

import random

from wal_agent.clock import Clock
from wal_agent.errors import BucketError

FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 2.0


def backoff(attempt: int, rng: random.Random) -> float:
    """Seconds to wait before try number `attempt` (from 1): doubles from FIRST up to CAP, +-50 %."""
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

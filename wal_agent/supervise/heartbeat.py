"""Keeps the lease alive, and watches that it is: a renewer, and a monitor apart from it (DESIGN 5, Heartbeat).

The renewer may hang in a request for as long as it likes; the monitor only reads the clock. Times are seconds of the
boot-time clock, so a suspended machine's lease runs out all the same (R7).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wal_agent.clock import Clock
from wal_agent.errors import BucketError, Fenced, UsageError
from wal_agent.wal.lease import timing_holds

Health = Literal["fresh", "late", "expired"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of a lease, in seconds, all from its ttl."""

    ttl: float

    def __post_init__(self) -> None:
        if not timing_holds(self.ttl, self.renew_deadline, self.period):
            raise UsageError(f"A lease of {self.ttl:g} s cannot be kept alive.", "Use --ttl 30, or at least --ttl 2.")

    @property
    def period(self) -> float:
        return self.ttl / 3

    @property
    def renew_deadline(self) -> float:
        return self.ttl * 2 / 3

    @property
    def margin(self) -> float:
        """How long before the ttl an allow is given no more (R7): what one answer may take to reach the tool."""
        return self.ttl / 6


def health(timing: Timing, sent: float, now: float) -> Health:
    """What the age of the newest successful renewal (by its *sending*) means: `late` = no new changing tool, `expired` =
    running changing tools are ended. Pure."""
    age = now - sent
    if age >= timing.ttl:
        return "expired"
    return "late" if age >= timing.renew_deadline else "fresh"


class Heartbeat:
    """Renews in one thread and judges in another; both end with `stop`.

    `renew` sends one renewal and raises BucketError or Fenced; `sent` is when the last that succeeded was sent. `expired`
    is called once each time the lease runs out, `fenced` once when it is found to be somebody else's."""

    def __init__(
        self,
        timing: Timing,
        clock: Clock,
        renew: Callable[[], None],
        sent: Callable[[], float],
        expired: Callable[[], None],
        fenced: Callable[[Fenced], None],
    ) -> None:
        self._timing = timing
        self._clock = clock
        self._renew = renew
        self._sent = sent
        self._expired = expired
        self._fenced = fenced
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._renewer, name="renewer", daemon=True),
            threading.Thread(target=self._monitor, name="monitor", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No renewal begins after this returned; one that hangs in the bucket meets the settled lease and fails."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=self._timing.period)

    @property
    def health(self) -> Health:
        return health(self._timing, self._sent(), self._clock.boot())

    def _renewer(self) -> None:
        wait = self._timing.period
        while not self._stop.wait(wait):
            try:
                self._renew()
            except Fenced as error:
                self._fenced(error)
                return
            except BucketError:
                wait = self._timing.period / 4
            else:
                wait = self._timing.period

    def _monitor(self) -> None:
        told = False
        while not self._stop.wait(self._timing.period / 10):
            gone = self.health == "expired"
            if gone and not told:
                self._expired()
            told = gone

"""What probes ask: is the supervisor alive, and is the run at work with all that it does saved."""

from __future__ import annotations

from collections.abc import Callable

from wal_agent.clock import Clock
from wal_agent.events import (
    AgentEnded,
    Event,
    LeaseLost,
    LeaseRenewed,
    LeaseSettled,
    LeaseTaken,
    Ready,
    RenewalFailed,
    Saved,
)

OLDEST = 60.0  # seconds; a save is due far more often


class Health:
    """Liveness goes by the supervisor's own loop and never by the bucket, whose outage must not restart a fleet."""

    def __init__(self, clock: Clock, stalled: Callable[[float], bool], autosave: float) -> None:
        self._clock = clock
        self._stalled = stalled
        self._oldest = max(OLDEST, 3 * autosave)
        self._ready = False
        self._expires = self._saved = 0.0  # boot time

    def alive(self) -> str:
        """ "" or what is wrong."""
        return "the supervisor's loop hangs" if self._stalled(self._clock.awake()) else ""

    def ready(self) -> str:
        """ "" or why not."""
        now = self._clock.boot()
        if not self._ready:
            return "no agent is at work"
        if now >= self._expires:
            return "the lease is not held"
        if now - self._saved > self._oldest:
            return f"nothing could be saved for {now - self._saved:.0f} s"
        return self.alive()

    def hear(self, at: float, happening: Event) -> None:
        now = self._clock.boot()
        match happening:
            case LeaseTaken(ttl=left) | LeaseRenewed(left=left) | RenewalFailed(left=left):
                self._expires = now + left
            case LeaseLost() | LeaseSettled():
                self._expires, self._ready = 0.0, False
            case Ready():
                self._ready, self._saved = True, now
            case AgentEnded():
                self._ready = False
            case Saved(what="session"):
                self._saved = now
            case _:
                return

    def close(self) -> None:
        self._ready = False

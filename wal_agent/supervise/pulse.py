"""Whether the supervisor's own loop turns: what a service manager and a liveness probe ask. The bucket has no part in
it, since an outage of the store must not restart a fleet."""

from __future__ import annotations

STALLED = 20.0  # seconds without a turn of a loop that turns ten times a second


class Liveness:
    """Beaten by the main loop while it waits for the agent. Times are awake seconds (Clock.awake)."""

    def __init__(self) -> None:
        self._last: float | None = None

    def beat(self, now: float) -> None:
        self._last = now

    def rest(self) -> None:
        """The loop is left; what follows has limits of its own."""
        self._last = None

    def stalled(self, now: float) -> bool:
        last = self._last
        return last is not None and now - last > STALLED

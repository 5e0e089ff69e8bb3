"""The agent on its way down: the first word counts, and the time that it gives goes to tools, the agent and saving."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from wal_agent.clock import Clock
from wal_agent.supervise.pause import may_end_paused
from wal_agent.supervise.shutdown import ShutdownPlan

LAST_SAVE = 10.0  # seconds for the captures that are left when the agent has ended
LAST_SAVE_AT_LEAST = 1.0  # also when the time for going down is used up
LEFT_AT_LEAST = 0.2  # seconds, for what comes between the agent's end and the last save


class GracefulShutdown:
    """Begun and hurried from any thread; `step` is the main thread's. `free`: a paused agent may be ended as soon as
    nothing runs, since it has said its last word or can say none."""

    def __init__(self, clock: Clock, free: bool) -> None:
        self.free = free
        self._clock = clock
        self._lock = threading.Lock()
        self._down: ShutdownPlan | None = None
        self._over = False
        self._told = False
        self._busy = 0.0  # boot time of the newest step at which a call ran

    @property
    def down(self) -> ShutdownPlan | None:
        """Why and by when; None: it goes on."""
        return self._down

    def begin(self, down: ShutdownPlan, deny: Callable[[], None]) -> bool:
        """Whether `down` counts: it is the first, or overrules what stands (`Down.after`), and the agent has not ended.
        `deny` is called before a step may see that nothing changing runs: no such call may begin behind that (I1)."""
        with self._lock:
            stands = down.after(self._down)
            if stands is None or self._over:
                return False
            deny()
            self._down = stands
            return True

    def hurry(self) -> None:
        """What was given to running tools and to the agent is over (a second SIGTERM); what is left is for saving."""
        with self._lock:
            if self._down is not None:
                self._down = replace(self._down, hurried=min(self._down.hurried, self._clock.boot()))

    def close(self) -> ShutdownPlan | None:
        """The agent has ended: what would end it comes too late from now on."""
        with self._lock:
            self._over = True
            return self._down

    def step(self, running: bool, changing: bool) -> Literal["", "terminate", "kill"]:
        """What is due now. `running`: a call runs, of whatever kind; `changing`: one that changes something."""
        down, now = self._down, self._clock.boot()
        if down is None:
            return ""
        if now >= down.gone:
            return "kill"
        if down.kind == "pause":
            self._busy = now if running else self._busy
            lets_go = may_end_paused(now, down.began, self._busy, self.free)
        else:
            lets_go = not changing
        if self._told or not (now >= down.half or lets_go):
            return ""
        self._told = True
        return "terminate"

    def left(self, most: float) -> float:
        """`most` seconds for something between the agent's end and the last save, or what there is of them."""
        if self._down is None:
            return most
        return max(LEFT_AT_LEAST, min(most, (self._down.gone - self._clock.boot()) / 2))

    def to_save(self) -> float:
        """Seconds for the last save."""
        if self._down is None:
            return LAST_SAVE
        return max(LAST_SAVE_AT_LEAST, self._down.saved - self._clock.boot())

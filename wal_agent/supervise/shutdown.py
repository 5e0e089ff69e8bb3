"""Shut an agent down in good order: why, and by when. The machine goes away, the job is paused, or the agent hangs.

The first request counts, and fixes the deadline, which is split between running tools, the agent and the last save.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from wal_agent.clock import Clock

HURRY = 20.0  # seconds for all that follows, once somebody hurries
TOOLS, TREE, SAVE = 0.5, 0.65, 0.8  # by which part of the time: tools are done, the agent is gone, all is captured
LINGER = 10.0  # seconds for a paused agent's last word, from when nothing runs any more
LAST_SAVE = 10.0  # seconds for the captures that are left when the agent has ended
LAST_SAVE_AT_LEAST = 1.0  # also when the time for going down is used up
LEFT_AT_LEAST = 0.2  # seconds, for what comes between the agent's end and the last save

_HANGS = {"start": "the agent did not begin", "exit": "the agent did not end behind its turn"}


@dataclass(frozen=True, slots=True)
class ShutdownPlan:
    """`kind`: drain (SIGTERM or a notice: saved, released), pause (released, with a time) or hang (the hard timeout).
    `source`: who said so (sigterm, gcp, aws, pause, quota), or of a hang, what was waited for. `began` and `until` are
    boot time: by `until` all is saved and given up. `sentence`: what a changing tool gets that comes after it."""

    kind: Literal["drain", "pause", "hang"]
    source: str
    began: float
    until: float
    sentence: str
    resume_at: float = 0.0  # since 1970; of a pause
    reason: str = ""  # of a pause, in the pauser's words
    hurried: float = math.inf  # boot time; from then on nothing is waited for but the last save

    @property
    def half(self) -> float:
        """When a tool that still runs has had its time (facts/fleet.md 4.2)."""
        return min(self.hurried, self._at(TOOLS))

    @property
    def gone(self) -> float:
        """By when the agent has ended, or is killed: the rest is for what it leaves."""
        return min(self.hurried, self._at(TREE))

    @property
    def saved(self) -> float:
        """By when the last captures are in the bucket; then the log is sealed and the lease given up."""
        return min(self.hurried + HURRY / 2, self._at(SAVE))

    @property
    def end(self) -> float:
        """By when the process ends, saved or not."""
        return min(self.hurried + HURRY, self.until)

    @property
    def why(self) -> str:
        """For the lease, the log and the next run's first words."""
        match self.kind:
            case "drain":
                return "drained (SIGTERM)" if self.source == "sigterm" else f"preempted ({self.source})"
            case "pause":
                return "paused"
            case _:
                return _HANGS.get(self.source, "the model did not answer")

    def after(self, stands: ShutdownPlan | None) -> ShutdownPlan | None:
        """What stands when this one is asked for and `stands` was before; None: this one comes too late. The first word
        counts, but a drain overrules a pause or a hang; the job stays paused then, whoever has it next."""
        if stands is None:
            return self
        if self.kind != "drain" or stands.kind == "drain":
            return None
        return replace(self, resume_at=stands.resume_at, reason=stands.reason)

    def _at(self, part: float) -> float:
        return self.began + (self.until - self.began) * part


def may_end_paused(now: float, began: float, busy: float, free: bool) -> bool:
    """Whether a paused agent may be ended now. `began`: the pause; `busy`: when a call was last seen to run
    (== `now`: one runs, of whatever kind); `free`: it has had its last word. All in boot time."""
    return busy < now and (free or now >= max(began, busy) + LINGER)


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

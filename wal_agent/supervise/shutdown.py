"""Shut down in good order: why, and by when. The machine goes away, the job is paused, or the agent hangs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

HURRY = 20.0  # seconds for all that follows, once somebody hurries
TOOLS, TREE, SAVE = 0.5, 0.65, 0.8  # by which part of the time: tools are done, the agent is gone, all is captured

_HANGS = {"start": "the agent did not begin", "exit": "the agent did not end behind its turn"}


@dataclass(frozen=True, slots=True)
class ShutdownPlan:
    """`kind`: drain (SIGTERM or a notice: saved, released), pause (released, with a time) or hang (the hard timeout).
    `source`: who said so (sigterm, gcp, aws, pause, quota), or of a hang, what was waited for. `began` and `until` are
    boot time: by `until` all is saved and given up. `sentence`: what a changing tool is told that comes after it."""

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

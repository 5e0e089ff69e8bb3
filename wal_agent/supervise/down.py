"""Going down in good order: why, and by when. The machine goes away, the job is paused, or the agent hangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Down:
    """`kind`: drain (SIGTERM or a notice: saved, released), pause (released, with a time) or hang (the hard timeout).
    `source`: who said so (sigterm, gcp, aws, pause, quota, watchdog). `began` and `until` are boot time: by `until` all
    is saved and given up. `sentence`: what a changing tool is told that comes after it."""

    kind: Literal["drain", "pause", "hang"]
    source: str
    began: float
    until: float
    sentence: str
    resume_at: float = 0.0  # since 1970; of a pause
    reason: str = ""  # of a pause, in the pauser's words

    @property
    def half(self) -> float:
        """When a tool that still runs has had its time (facts/fleet.md 4.2)."""
        return self.began + (self.until - self.began) / 2

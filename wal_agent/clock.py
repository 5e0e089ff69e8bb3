"""Time as a thing that is handed in, so that a test can own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Wall-clock time, seconds since 1970 (UTC). For people and records only; no decision rests on it."""

    def boot(self) -> float:
        """Seconds since boot, suspended time included (R7: a suspended machine's lease runs out all the same)."""

    def awake(self) -> float:
        """Seconds that this machine was awake, from any beginning: suspended time and clock jumps do not count."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def boot(self) -> float:
        # macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts suspended time.
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def awake(self) -> float:
        # Linux's CLOCK_MONOTONIC stands still in a suspend; macOS's does not.
        return time.clock_gettime(getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

"""Timing, interleaved so that the machine's drift hits all candidates alike; medians and 95th percentiles in ms."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
SHORT = os.environ.get("WAL_AGENT_BENCH") == "short"


def scaled(full: T, short: T) -> T:
    """How much of something a bench does: `full`, or `short` where only its working is tried (`--short`)."""
    return short if SHORT else full


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of repeated runs of one thing."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p95(self) -> float:
        return sorted(self.values)[min(len(self.values) - 1, int(len(self.values) * 0.95))]

    def line(self, against: Times | None = None) -> str:
        ratio = f"  {self.median / against.median:6.2f} x {against.name}" if against and against is not self else ""
        return f"  {self.name:<44} median {self.median:9.2f} ms   p95 {self.p95:9.2f} ms{ratio}"


def interleaved(things: dict[str, Callable[[], object]], rounds: int, warmup: int = 3) -> list[Times]:
    """Run each thing once a round; the first `warmup` rounds do not count."""
    warmup = scaled(warmup, 0)
    values: dict[str, list[float]] = {name: [] for name in things}
    for n in range(rounds + warmup):
        for name, thing in things.items():
            began = time.perf_counter()
            thing()
            if n >= warmup:
                values[name].append((time.perf_counter() - began) * 1000)
    return [Times(name, tuple(v)) for name, v in values.items()]

"""What does a changing call cost as calls follow each other? `python -m bench follow`.

An agent makes its next call when the last one has ended, and an end, a capture or a read-only call must not stand in
front of its intent. Gate, saver, log and bucket are the real ones; the bucket is in memory, 30 ms away. The limit is
one put into the same bucket; limit and calls take turns. PUTs a call count everything that the run stores meanwhile.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.flat import SESSION, Lane, drain, lane, message
from bench.measure import Times, scaled
from bench.store import ROUND_TRIP
from tests.faulty_bucket import FaultBucket, Faults
from wal_agent.agents.base import Allow, ToolEnded, ToolStarting
from wal_agent.bucket.base import MemoryBucket
from wal_agent.clock import SystemClock
from wal_agent.records import Turn

ROUNDS = scaled(40, 1)
TOOL = 0.02  # seconds that a call takes
AT_ONCE = 8


class Caller:
    """What an agent does, call by call, in one run."""

    def __init__(self, lane: Lane) -> None:
        self._lane, self._gate, self._count = lane, lane.gate, 0
        lane.job.writer.append(Turn(time=SystemClock().now(), state="started", session=SESSION))
        drain(lane.job.writer)

    def begin(self, command: str = "make") -> bytes:
        self._count += 1
        input = json.dumps({"command": f"{command} target-{self._count}"}).encode()
        if not isinstance(self._gate.begin_call(ToolStarting(SESSION, "run_shell_command", input)), Allow):
            raise RuntimeError("a call was denied")
        return input

    def finish(self, input: bytes) -> None:
        self._gate.finish_call(ToolEnded(SESSION, "run_shell_command", input, b'{"llmContent":"ok"}', False))

    def save(self) -> None:
        """The session grew, and is captured."""
        with self._lane.main.open("ab") as file:
            file.write(message(10**6 + self._count, 500))
        self._lane.saver.save()

    def whole(self, pause: float = 0.0) -> float:
        """One changing call with the captures around it; the milliseconds that it was blocked before the tool."""
        time.sleep(pause)
        began = time.perf_counter()
        input = self.begin()
        blocked = (time.perf_counter() - began) * 1000
        self.save()
        time.sleep(TOOL)
        self.finish(input)
        return blocked

    def behind_read(self) -> float:
        self.finish(self.begin("ls"))
        return self.whole()

    def behind_save(self) -> float:
        self.save()
        return self.whole()

    def together(self, pool: ThreadPoolExecutor) -> float:
        """Milliseconds until all of `AT_ONCE` calls may begin, behind the end of another one."""
        self.whole()
        began = time.perf_counter()
        inputs = list(pool.map(lambda _: self.begin(), range(AT_ONCE)))
        took = (time.perf_counter() - began) * 1000
        for input in inputs:
            self.finish(input)
        return took


@dataclass(frozen=True, slots=True)
class Found:
    times: Times
    puts: float  # a call


def measured(
    name: str, call: Callable[[], float], calls: int, puts: Callable[[], int], limit: Callable[[], float]
) -> tuple[Found, Times]:
    """The blocked time of each round, and the limit's; `calls` a round."""
    values, limits, before = [], [], puts()
    for n in range(ROUNDS + 2):
        if n == 2:
            before = puts()
        values.append(call())
        if n % 4 == 0:
            limits.append(limit())
    return Found(Times(name, tuple(values[2:])), (puts() - before) / (ROUNDS * calls)), Times("limit", tuple(limits))


def main() -> None:
    inner, away = MemoryBucket(), ROUND_TRIP / 1000
    bucket, draw = FaultBucket(inner, Faults(random.Random(1), latency=(away, away))), random.Random(2)
    raw = iter(range(10**9))

    def limit() -> float:
        began = time.perf_counter()
        bucket.put(f"raw/{next(raw)}", b"x" * 700)
        return (time.perf_counter() - began) * 1000

    with lane(50_000, bucket) as at, ThreadPoolExecutor(AT_ONCE) as pool:
        caller = Caller(at)
        for name, call, calls in (
            ("right behind another's end", caller.whole, 1),
            ("right behind a read-only call", caller.behind_read, 2),
            ("right behind a save of the session", caller.behind_save, 1),
            ("after 0 - 0.5 s of thinking", lambda: caller.whole(draw.uniform(0.0, 0.5)), 1),
            (f"{AT_ONCE} at once, behind an end", lambda: caller.together(pool), AT_ONCE + 1),
        ):
            found, least = measured(name, call, calls, lambda: at.meter.snapshot().put.requests, limit)
            print(f"{found.times.line(least)}  {found.puts:.2f} PUTs a call")
        drain(at.job.writer)


if __name__ == "__main__":
    main()

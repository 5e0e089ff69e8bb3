"""A bucket that fails on purpose, as stores and networks do: late, unanswered, or half away.

What goes wrong with one call is decided by a plan, a function of the operation's name (get, put, delete, list, time)
and its key (a listing's prefix; "" for time). `Faults` is a seeded one; fault_file.py has one steered from outside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from wal_agent.bucket.base import Bucket, Entry, Object, Version, check_folder, check_key, check_prefix
from wal_agent.errors import BucketError, Damaged, Newer, Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call: `delay` seconds first, then at most one of the others: each raises Unavailable."""

    delay: float = 0.0
    before: bool = False  # the request never arrives
    after: bool = False  # it is carried out and the reply is lost; a listing breaks off half-way
    late: int = 0  # of a put: it arrives only before the n-th later call through this bucket, or by land()


Plan = Callable[[str, str], Fault]


@dataclass(frozen=True, slots=True)
class Faults:
    """A plan drawn from `rng`: the same seed and the same calls give the same faults.

    Probabilities are 0 to 1, latency is drawn between two numbers of seconds, `down` says what is away altogether.
    """

    rng: Random
    error_before: float = 0.0
    error_after: float = 0.0
    late: float = 0.0
    latency: tuple[float, float] = (0.0, 0.0)
    down: Callable[[str, str], bool] = lambda op, key: False

    def __call__(self, op: str, key: str) -> Fault:
        # Always the same number of draws, so that one changed rate does not shift all later faults.
        delay, before, after, late = (self.rng.random() for _ in range(4))
        low, high = self.latency
        return Fault(
            delay=low + (high - low) * delay,
            before=self.down(op, key) or before < self.error_before,
            after=after < self.error_after,
            late=1 + int(late / self.late * 8) if late < self.late else 0,
        )


class FaultBucket:
    """`sleep` is handed in so that a simulation can own the delays."""

    def __init__(self, inner: Bucket, plan: Plan, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = inner.url
        self._inner = inner
        self._plan = plan
        self._sleep = sleep
        self._lock = threading.Lock()
        self._under_way: list[tuple[int, Callable[[], object]]] = []

    def get(self, key: str) -> Object:
        check_key(key)
        return self._answer("get", key, lambda: self._inner.get(key))

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        check_key(key)
        return self._answer("put", key, lambda: self._inner.put(key, data, if_version=if_version))

    def delete(self, *keys: str) -> None:
        """One by one, so that a fault may leave some of them."""
        for key in [check_key(key) for key in keys]:
            self._answer("delete", key, partial(self._inner.delete, key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        check_prefix(prefix)
        return self._half(prefix, lambda: self._inner.list(prefix, start_after))

    def folders(self, prefix: str) -> Iterator[str]:
        """To the plan it is a listing too."""
        check_folder(prefix)
        return self._half(prefix, lambda: self._inner.folders(prefix))

    def time(self) -> float:
        return self._answer("time", "", self._inner.time)

    def close(self) -> None:
        self._inner.close()

    def land(self) -> None:
        """Let every put that is still under way arrive now, also one whose sender is long gone."""
        self._land(lambda left: True)

    def _half(self, prefix: str, ask: Callable[[], Iterator[T]]) -> Iterator[T]:
        """The answers to a listing, or half of them."""
        fault = self._before("list", prefix)
        found = [*ask()]
        if fault.after:
            yield from found[: len(found) // 2]
            raise _lost("list", prefix)
        yield from found

    def _answer(self, op: str, key: str, ask: Callable[[], T]) -> T:
        fault = self._before(op, key)
        if fault.late and op == "put":
            with self._lock:
                self._under_way.append((fault.late, ask))
            raise _lost(op, key)
        if not fault.after:
            return ask()
        try:
            ask()
        except (BucketError, Damaged, Newer) as refused:
            raise _lost(op, key) from refused
        raise _lost(op, key)

    def _before(self, op: str, key: str) -> Fault:
        with self._lock:
            fault = self._plan(op, key)
            self._under_way = [(left - 1, ask) for left, ask in self._under_way]
        self._land(lambda left: left <= 0)
        if fault.delay > 0:
            self._sleep(fault.delay)
        if fault.before:
            raise _lost(op, key)
        return fault

    def _land(self, due: Callable[[int], bool]) -> None:
        with self._lock:
            landing = [ask for left, ask in self._under_way if due(left)]
            self._under_way = [(left, ask) for left, ask in self._under_way if not due(left)]
        for ask in landing:
            try:
                ask()
            except (BucketError, Damaged, Newer):
                pass  # nobody waits for this answer


def _lost(op: str, key: str) -> Unavailable:
    return Unavailable(f"The bucket did not answer: {op} {key}".rstrip() + " (a fault injected on purpose).")

"""End a start-up at once on a signal, also in steps that take long by themselves: waiting for a bucket that is away,
and reading what is restored. Signals are blocked, so somebody has to ask (`check_signals`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal_agent.bucket.base import Bucket, Entry, Object, Version
from wal_agent.clock import SystemClock

STEP = 0.2  # seconds
UNBROKEN = 5.0  # seconds that what should not be left half done gets from the moment that the run is to end
READERS = {"MainThread", "ahead"}  # a writer or a heartbeat is never broken off: the log and the lease must stay sound


class StartupInterrupt:
    """`check` raises when the run is to end. Asked while `armed` only: what gives the job back must not be stopped."""

    def __init__(self, check: Callable[[], None], now: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._now = now
        self.armed = True
        self._whole = False
        self._since = 0.0  # when the run was to end, while `_whole`

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """What is done meanwhile is not stopped at once: it has `UNBROKEN` seconds more."""
        self._whole, self._since = True, 0.0
        try:
            yield
        finally:
            self._whole = False

    def ask(self) -> None:
        if not (self.armed and threading.current_thread().name in READERS):
            return
        try:
            self._check()
        except Exception:
            self._since = self._since or self._now()
            if not self._whole or self._now() - self._since >= UNBROKEN:
                raise


class InterruptibleClock(SystemClock):
    """Its sleep ends when the run is to."""

    def __init__(self, early: StartupInterrupt) -> None:
        self._early = early

    def sleep(self, seconds: float) -> None:
        until = self.boot() + seconds
        while (left := until - self.boot()) > 0:
            self._early.ask()
            super().sleep(min(STEP, left))


class InterruptibleBucket:
    """Begins no read when the run is to end."""

    def __init__(self, inner: Bucket, early: StartupInterrupt) -> None:
        self.url = inner.url
        self._inner = inner
        self._early = early

    def get(self, key: str) -> Object:
        self._early.ask()
        return self._inner.get(key)

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        return self._inner.put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        self._inner.delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._inner.list(prefix, start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._inner.folders(prefix)

    def time(self) -> float:
        return self._inner.time()

    def close(self) -> None:
        self._inner.close()

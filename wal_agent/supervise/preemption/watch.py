"""Asks a cloud again and again whether this machine is about to go. A server that is away or lies costs nothing but
its notice."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wal_agent.clock import Clock
from wal_agent.supervise.preemption.data import MetadataError, Notice, NoticeSource

FIRST, CAP = 1.0, 10.0  # seconds after a failure; a notice may be short


class Watcher:
    """`start` once, `stop` once. `on_notice` is called in the thread, which ends behind a notice that drains."""

    def __init__(
        self,
        source: NoticeSource,
        clock: Clock,
        on_notice: Callable[[Notice], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed`: is told of a failure of ours."""
        self._source = source
        self._clock = clock
        self._on_notice = on_notice
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="preemption", daemon=True)
        self.problem = ""  # why the newest look failed

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nobody waits for the thread: it is in a request, or about to end."""
        self._stop.set()
        self._source.close()

    def _loop(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = self._clock.boot()
            try:
                notice = self._source.look()
                failures, self.problem = 0, ""
                if notice is not None:
                    self._on_notice(notice)
                    if notice.drain:
                        return
            except MetadataError as trouble:
                failures += 1
                self.problem = str(trouble)
                self._stop.wait(wait_after(failures))
                continue
            except Exception as error:  # noqa: BLE001 - told; the run goes on without notices
                if not self._stop.is_set():
                    self._failed(error)
                return
            self._stop.wait(max(0.0, self._source.period - (self._clock.boot() - began)))


def wait_after(failures: int) -> float:
    """Seconds until the next look."""
    return float(min(CAP, FIRST * 2 ** min(failures - 1, 10)))

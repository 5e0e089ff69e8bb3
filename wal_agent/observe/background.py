"""Run a listener that may block (disk, pipe, network) in a thread of its own, behind a bounded queue."""

from __future__ import annotations

import queue
from collections.abc import Callable

from wal_agent.concurrency import start_daemon
from wal_agent.events import Event, Listener

MAX_QUEUED = 10_000  # events; a run emits some tens a second
CLOSE_TIMEOUT = 3.0  # seconds that the end of the process waits for queued events


class BackgroundListener:
    """`make` creates the listener in the thread, so that slow imports delay no start."""

    def __init__(
        self,
        make: Callable[[], Listener],
        name: str,
        say: Callable[[str], None],
        most: int = MAX_QUEUED,
        last: float | None = None,
    ) -> None:
        self._make = make
        self._name = name
        self._say = say
        self._last = CLOSE_TIMEOUT if last is None else last
        self._queue: queue.Queue[tuple[float, Event] | None] = queue.Queue(most)
        self._dropped = 0
        self._error: Exception | None = None
        self._thread = start_daemon(f"observe-{name}", self._loop)

    def on_event(self, at: float, event: Event) -> None:
        """Enqueue without waiting; what does not fit is dropped and counted. Raises a listener's failure, once."""
        try:
            self._queue.put_nowait((at, event))
        except queue.Full:
            self._dropped += 1
        self._raise()

    def close(self) -> None:
        try:
            self._queue.put(None, timeout=self._last)
        except queue.Full:
            pass
        self._thread.join(self._last)
        if self._thread.is_alive():
            self._say(f"{self._name}: what was left could not be handed over within {self._last:g} s.")
        elif self._dropped:
            self._say(f"{self._name}: {self._dropped} events were dropped, as they were not taken in time.")
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _loop(self) -> None:
        listener: Listener | None = None
        try:
            listener = self._make()
        except Exception as error:  # noqa: BLE001 - told by the next to call
            self._error = error
        while (item := self._queue.get()) is not None:
            if listener is not None:
                self._guarded(lambda to=listener, what=item: to.on_event(*what))  # type: ignore[misc]
        if listener is not None:
            self._guarded(listener.close)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - told by the next to call
            self._error = error

"""Enqueue messages for a run's events, in a thread of its own: the run waits for no disk, process or network."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from wal_agent.concurrency import start_daemon
from wal_agent.events import Event, Halted, LeaseSettled, LeaseTaken, Ready
from wal_agent.notify import outbox
from wal_agent.notify import outbox as letters
from wal_agent.notify.message import REPORTED, Facts, Notification, Target, message_of, reaches
from wal_agent.notify.outbox import Halt, Letter, Outbox

HEALTHY_AFTER = 900.0  # seconds of work after which a job that had halted runs well: the next halt is news
HAND_OVER = 3.0  # seconds that the end of a run waits for its own disk
LINGER = 3.0  # seconds that it waits for the sender, where that is killed with it


class Post:
    """`start`: sees to it that a sender runs. `attended`: a person sits there, who reads a refusal on the screen.
    `linger`: the machine, the container or the service ends with this process, and the sender with it."""

    def __init__(
        self,
        facts: Facts,
        targets: Sequence[Target],
        box: Outbox,
        env: Mapping[str, str],
        start: Callable[[], None],
        attended: bool = False,
        linger: bool = False,
    ) -> None:
        self._facts = facts
        self._targets = tuple(targets)
        self._box = box
        self._env = dict(env)
        self._start = start
        self._quiet = attended
        self._linger = linger
        self._well = math.inf  # when it runs well (monotonic)
        self._about = outbox.job_digest(facts.bucket, facts.job)
        self._events: SimpleQueue[tuple[float, Event] | None] = SimpleQueue()
        self._trouble: Exception | None = None
        self._thread = start_daemon("notify", self._work)

    def on_event(self, at: float, event: Event) -> None:
        if isinstance(event, (LeaseTaken, LeaseSettled, Ready, *REPORTED)):
            self._events.put((at, event))
        self._raise()

    def close(self) -> None:
        self._events.put(None)
        self._thread.join(HAND_OVER)
        if self._linger:
            end = time.monotonic() + LINGER
            while self._untried() and time.monotonic() < end:
                time.sleep(0.02)
        self._raise()

    def _work(self) -> None:
        try:
            outbox.sweep(self._env, self._box, time.time())
            if self._box.letters():
                self._begin()
        except Exception as error:  # noqa: BLE001 - reported with the next message
            self._trouble = error
        item: tuple[float, Event | None] | None
        while True:
            try:
                left = self._well - time.monotonic()
                item = self._events.get(timeout=max(0.0, left) if left < math.inf else None)
            except Empty:
                item = (0.0, None)
            if item is None:
                return
            try:
                self._take(*item)
            except Exception as error:  # noqa: BLE001
                self._trouble = error

    def _take(self, at: float, event: Event | None) -> None:
        """None: it runs well."""
        match event:
            case None | LeaseSettled(state="closed"):
                self._well = math.inf
                outbox.acknowledge(self._env, self._about)
                return
            case LeaseTaken():
                self._quiet = False  # whoever started it may leave it alone from here on
                outbox.suspend(self._env, self._about, time.time())
                return
            case Ready():
                self._well = time.monotonic() + HEALTHY_AFTER
                return
            case LeaseSettled():
                self._well = math.inf
                return
        if self._quiet and isinstance(event, Halted):
            return
        message = message_of(self._facts, at, event)
        if message is not None and any(reaches(message.level, target.level) for target in self._targets):
            self.leave(message)

    def leave(self, message: Notification) -> None:
        def make(said_before: bool, halt: Halt | None) -> Letter | None:
            return letters.make_letter(message, self._about, now, said_before, halt)

        now = time.time()
        if self._box.put(f"{self._about} {message.key}", make, now):
            self._begin()

    def _begin(self) -> None:
        if not self._box.served:
            self._start()

    def _untried(self) -> bool:
        now = time.time()
        return any(
            waiting.about == self._about and waiting.due <= now and not (waiting.took or waiting.tries)
            for waiting in self._box.letters().values()
        )

    def _raise(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble


def ends_with_us(env: Mapping[str, str]) -> bool:
    """Whether what outlives this process is killed at once: it is a container's or a service's main process."""
    return os.getppid() <= 1 or env.get("SYSTEMD_EXEC_PID") == str(os.getpid())

"""Cooperative threads: exactly one runs at any moment, and the scheduler says which, so that a seed is a history.

Real code that blocks cannot be run as a generator; a thread that hands a baton back at each bucket call can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Killed(BaseException):
    """Raised inside an actor where it stands: its host has crashed. No code of ours catches BaseException."""


class Actor:
    """One thread. `about` says what it will do when it is resumed; before `wake` (world time) it sleeps."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self._work = name, work
        self.about, self.wake = "start", 0.0
        self.done = False
        self.error: BaseException | None = None
        self.crashed = False
        self.go_on: Callable[[], bool] = lambda: False  # asked at each pause: whether it may just go on
        self._thread: threading.Thread | None = None
        self._killed = False
        self._mine, self._schedulers = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._schedulers.acquire()

    def resume(self) -> None:
        """Let it run until it pauses or ends. Called by the scheduler."""
        assert not self.done
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._mine.release()
        self._schedulers.acquire()

    def pause(self, about: str, wake: float = 0.0) -> None:
        """Hand the baton back. Called by the actor."""
        if self._killed:
            raise Killed
        self.about, self.wake = about, wake
        if self.go_on():
            return
        self._schedulers.release()
        self._mine.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """Crash it where it stands. Called by the scheduler."""
        self._killed = True
        if self._thread is None:
            self.done = True
        elif not self.done:
            self.resume()
            assert self.done

    def crash(self) -> None:
        """Crash itself. Called by the actor."""
        self._killed = True
        raise Killed

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            self.crashed = True
        except BaseException as error:  # noqa: BLE001 - handed to the scheduler, which judges it
            self.error = error
        finally:
            self.done = True
            self._schedulers.release()

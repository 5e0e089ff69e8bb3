"""Saves what changed in the session, also while the model thinks: on a file's change, on request, and every interval.

One thread does all captures, so their order in the log is the order in which the files changed. Nobody waits for it: an
intent never does (DESIGN 3), and while the log has a backlog captures wait so that memory stays bounded (I9).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

# It warns of events that come while it ends; the terminal is the agent's.
logging.getLogger("watchdog").addHandler(logging.NullHandler())

DEBOUNCE = 0.02  # seconds; an agent writes several lines for one event


class Autosave:
    """Calls `save()` in its own thread whenever something may have changed. `save` gives the folders to watch next."""

    def __init__(
        self, save: Callable[[], list[Path]], interval: float, failed: Callable[[BaseException], None]
    ) -> None:
        self._save = save
        self._interval = interval
        self._failed = failed
        self._wanted = threading.Event()
        self._stop = threading.Event()
        self._last: Callable[[], object] = lambda: None
        self._observer: BaseObserver = Observer()
        self._watched: set[Path] = set()
        self._thread = threading.Thread(target=self._loop, name="autosave", daemon=True)

    def start(self) -> None:
        self._observer.daemon = True
        self._observer.start()
        self._thread.start()

    def poke(self) -> None:
        """Something changed; save soon. Never blocks."""
        self._wanted.set()

    def stop(self, budget: float, last: Callable[[], object]) -> bool:
        """Do `last` in the thread, behind the save that it is in. Whether both ended within `budget` seconds: a request
        may hang, and then the thread is left behind in it. Nothing runs after this returned True."""
        self._last = last
        self._stop.set()
        self._wanted.set()
        self._thread.join(budget)
        self._observer.stop()
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while not self._stop.is_set():
            poked = self._wanted.wait(self._interval)
            if self._stop.is_set():
                break
            if poked:
                self._stop.wait(DEBOUNCE)
            self._wanted.clear()
            self._told(lambda: self._watch(self._save()))
        self._told(self._last)

    def _told(self, save: Callable[[], object]) -> None:
        try:
            save()
        except Exception as error:  # noqa: BLE001 - told, and tried again: a save that failed once must not be the last
            self._failed(error)

    def _watch(self, folders: list[Path]) -> None:
        for folder in folders:
            if folder not in self._watched and folder.is_dir():
                with suppress(OSError):
                    self._observer.schedule(_Poke(self._wanted), str(folder), recursive=False)
                    self._watched.add(folder)
                    self._wanted.set()  # what changed since that save has told nobody


class _Poke(FileSystemEventHandler):
    def __init__(self, wanted: threading.Event) -> None:
        self._wanted = wanted

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("created", "modified", "moved", "deleted", "closed"):
            self._wanted.set()

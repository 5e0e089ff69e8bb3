"""Saves what changed in the session, also while the model thinks: on a file's change, on request, and every interval.

One thread does all captures, so their order in the log is the order in which the files changed. Nobody waits for it: an
intent never does (DESIGN 3), and while the log has a backlog captures wait so that memory stays bounded (I9). A folder
that does not exist yet is watched by the nearest one above it that does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

# It warns of events that come while it ends; the terminal is the agent's.
logging.getLogger("watchdog").addHandler(logging.NullHandler())

DEBOUNCE = 0.02  # seconds; an agent writes several lines for one event
UNWATCHED = (
    "The session's files cannot be watched for changes ({}), so they are saved at each tool call and every {:g} s. "
    "See: sysctl fs.inotify"
)


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
        self.problem = (
            ""  # why changes of files are not noticed at once, in a sentence; known now, or only once it runs
        )
        self._observer: BaseObserver | None = None
        try:
            self._observer = Observer()
            self._observer.daemon = True
            self._observer.start()
        except (OSError, RuntimeError) as error:  # no inotify instance or thread is left
            self._unwatched(error)
        self._watched: dict[Path, ObservedWatch] = {}
        self._thread = threading.Thread(target=self._loop, name="autosave", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def watches(self) -> bool:
        """Whether changes of files can be noticed at all."""
        return self._observer is not None

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
        if self._observer is not None:
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
        observer = self._observer
        if observer is None:
            return
        wanted = {found for folder in folders if (found := nearest_folder(folder)) is not None}
        for folder in self._watched.keys() - wanted:
            with suppress(OSError, KeyError):
                observer.unschedule(self._watched.pop(folder))
        for folder in wanted - self._watched.keys():
            try:
                self._watched[folder] = observer.schedule(_Poke(self._wanted), str(folder), recursive=False)
            except FileNotFoundError:
                continue
            except (OSError, RuntimeError) as error:
                self._unwatched(error)
                continue
            self._wanted.set()  # nothing noticed what changed since that save

    def _unwatched(self, error: Exception) -> None:
        self.problem = UNWATCHED.format(getattr(error, "strerror", None) or error, self._interval)


def nearest_folder(folder: Path) -> Path | None:
    """The folder itself, or the nearest above it that exists; not as far up as the root, where everything happens."""
    return next((each for each in (folder, *folder.parents[:-1]) if each.is_dir()), None)


class _Poke(FileSystemEventHandler):
    def __init__(self, wanted: threading.Event) -> None:
        self._wanted = wanted

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("created", "modified", "moved", "deleted", "closed"):
            self._wanted.set()

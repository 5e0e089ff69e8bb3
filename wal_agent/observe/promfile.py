"""Metrics as a file for node_exporter's textfile collector: written whole, on changes, and once more at the end."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wal_agent.apart import start_daemon
from wal_agent.errors import ConfigError
from wal_agent.events import Event
from wal_agent.observe import aside

REST = 15.0  # seconds between two writes: as often as such a file is usually read


class PromFile:
    """`text` gives what to write. The file stays behind, with what was true at the end."""

    def __init__(self, path: Path, text: Callable[[], bytes], say: Callable[[str], None], rest: float = REST) -> None:
        self._path = path
        self._text = text
        self._say = say
        self._rest = rest
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._problem = ""
        try:
            self._write()
        except OSError as error:
            raise ConfigError(f"--metrics-file {path} cannot be written: {error.strerror}. Nothing was run.") from None
        self._thread = start_daemon("promfile", self._loop)

    def hear(self, at: float, happening: Event) -> None:
        self._changed.set()

    def close(self) -> None:
        self._stop.set()
        self._changed.set()
        self._thread.join(aside.LAST)
        if self._problem:
            self._say(f"the metrics in {self._path} are old: {self._problem}.")

    def _loop(self) -> None:
        while True:
            self._stop.wait(self._rest)
            self._changed.wait()
            self._changed.clear()
            last = self._stop.is_set()  # asked for before the write: what comes meanwhile is written by another one
            try:
                self._write()
            except OSError as error:
                self._problem = error.strerror or "it could not be written"
            else:
                self._problem = ""
            if last:
                return

    def _write(self) -> None:
        fd, name = tempfile.mkstemp(prefix=".wal-agent-", suffix=".tmp", dir=self._path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(self._text())
                os.fchmod(file.fileno(), 0o644)  # the collector is another user's, and nothing in it is secret
            Path(name).replace(self._path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise

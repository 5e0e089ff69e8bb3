"""Snapshots and retention, in the background of a run. Nothing waits for it, nothing is unsafe without it (R4, R5)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import BucketError, Newer
from wal_agent.happened import Saved, Tell
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.mirror import Mirror
from wal_agent.wal.retention import Retention
from wal_agent.wal.snapshot import Snapshots

LOOK = 1.0  # seconds between two looks at whether a snapshot is due


class Housekeeping:
    """One thread. `folder`, which must not exist yet, holds its copy of the session files, and goes at the end."""

    def __init__(
        self,
        bucket: Bucket,
        opened: OpenedJob,
        folder: Path,
        may_act: Callable[[], bool],
        failed: Callable[[BaseException], None],
        tell: Tell = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._tell = tell
        self._clock = clock or SystemClock()
        self._folder = folder
        self._snapshots = Snapshots(bucket, opened.keys, opened.writer, Mirror(self._folder, opened.blobs))
        self._retention = Retention(bucket, opened.keys, opened.blobs, may_act)
        self._may_act = may_act
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="housekeeping", daemon=True)

    def start(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            self._failed(error)  # no snapshots then; replay takes longer, nothing else
            return
        self._thread.start()

    def stop(self, most: float = 2.0) -> None:
        """Waits at most so many seconds: a snapshot under way may be left, it does no harm."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=most)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _loop(self) -> None:
        while not self._stop.wait(LOOK):
            if not self._may_act():
                continue
            try:
                with suppress(BucketError):
                    began = self._clock.boot()
                    if self._snapshots.take_if_due() is not None:
                        self._tell(Saved("snapshot", self._snapshots.size, self._clock.boot() - began))
                        self._retention.run()
            except Newer:
                return  # a newer wal-agent has the job by now: nothing of its is deleted; the writer ends this run
            except Exception as error:  # noqa: BLE001 - told; nobody else sees it in this thread
                if not self._stop.is_set():
                    self._failed(error)
                return


def sweep_mirrors(mirrors: Path, is_live: Callable[[str], bool]) -> None:
    """Remove what killed runs left; each folder is named by its run."""
    if mirrors.is_dir():
        for folder in mirrors.iterdir():
            if not is_live(folder.name):
                shutil.rmtree(folder, ignore_errors=True)

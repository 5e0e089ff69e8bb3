"""Keep a run's lease and log in order while it lives (PROTOCOL.md, Timing; R4, R5).

`LeaseKeeper` renews the lease in one thread and monitors it in another: the renewer may hang in a request for as long
as it likes; the monitor only reads the clock. Times are seconds of the boot-time clock, so a suspended machine's lease
runs out all the same (R7). `Housekeeping` makes snapshots and applies retention in the background: nothing waits for
it, nothing is unsafe without it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import BucketError, Newer, UsageError, WalAgentError
from wal_agent.events import Emit, LeaseLost, LeaseRenewed, RenewalFailed, Saved
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.lease import Lease, timing_holds
from wal_agent.wal.retention import Mirror, Retention, Snapshots

Health = Literal["fresh", "late", "expired"]


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The times of a lease, in seconds, all from its ttl."""

    ttl: float

    def __post_init__(self) -> None:
        if not timing_holds(self.ttl, self.renew_deadline, self.period):
            raise UsageError(f"A lease of {self.ttl:g} s cannot be kept alive.", "Use --ttl 30, or at least --ttl 2.")

    @property
    def period(self) -> float:
        return self.ttl / 3

    @property
    def renew_deadline(self) -> float:
        return self.ttl * 2 / 3

    @property
    def margin(self) -> float:
        """How long before the ttl an allow is given no more (R7): what one answer may take to reach the tool."""
        return self.ttl / 6


def lease_health(timing: LeaseTiming, sent: float, now: float) -> Health:
    """What the age of the newest successful renewal (by its *sending*) means: `late` = no new changing tool, `expired`
    = running changing tools are ended. Pure."""
    age = now - sent
    if age >= timing.ttl:
        return "expired"
    return "late" if age >= timing.renew_deadline else "fresh"


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What a renewal writes of the run, for others to read."""

    phase: str = ""
    tool: str = ""
    seq: int = 0
    since: float = 0.0  # when the phase began


class LeaseClient(Protocol):
    """Whom a lease is kept for. From the keeper's threads."""

    def progress(self) -> RunProgress:
        """What the next renewal writes."""

    def lease_expired(self) -> None:
        """The lease is run out (not in a job that spools). Again and again while it is, since a tool that waited for a
        person may begin then."""

    def lease_lost(self, error: WalAgentError) -> None:
        """The lease is somebody else's, or cannot be read. Once."""


class LeaseKeeper:
    """Renews `lease` in one thread and judges in another; both end with `stop`. `client`: None where nothing but the
    lease itself is to be kept."""

    def __init__(
        self,
        timing: LeaseTiming,
        clock: Clock,
        lease: Lease,
        client: LeaseClient | None = None,
        emit: Emit = lambda _: None,
    ) -> None:
        self._timing = timing
        self._clock = clock
        self._lease = lease
        self._client = client
        self._emit = emit
        self.lost: WalAgentError | None = None  # why the renewals ended
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._renewer, name="renewer", daemon=True),
            threading.Thread(target=self._monitor, name="monitor", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, most: float | None = None) -> None:
        """No renewal begins after this returned; one that hangs in the bucket meets the settled lease and fails. Waits
        at most `most` seconds for it (None: a period)."""
        self._stop.set()
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(timeout=self._timing.period if most is None else min(most, self._timing.period))

    @property
    def health(self) -> Health:
        return lease_health(self._timing, self._lease.sent, self._clock.boot())

    def may_allow(self) -> bool:
        """R7: the last check before an allow is sent. In a job that spools (R9) it has no date: no timeout takes the
        job away, so an outage need not stop it."""
        return self._lease.held if self.spooling else self.may_delete()

    def may_delete(self) -> bool:
        """Whether nobody else can have opened the job yet, spooling or not: what retention asks before it deletes."""
        return self._lease.may_allow(self._timing.margin)

    @property
    def spooling(self) -> bool:
        return bool(self._lease.doc.spool)

    def _renewer(self) -> None:
        wait = self._timing.period
        while not self._stop.wait(wait):
            at = self._client.progress() if self._client else RunProgress()
            try:
                self._lease.renew(phase=at.phase, tool=at.tool, seq=at.seq, since=at.since)
            except BucketError as error:
                wait = self._timing.period / 4
                self._emit(RenewalFailed(str(error), self._left()))
            except Exception as error:  # noqa: BLE001 - whatever ends the renewals must end the run, not only its allows
                why = f"The lease could not be renewed: {error!r}."
                lost = error if isinstance(error, WalAgentError) else WalAgentError(why)
                self.lost = lost
                self._emit(LeaseLost(lost.what))
                if self._client:
                    self._client.lease_lost(lost)
                return
            else:
                wait = self._timing.period
                if self._lease.held:  # else it is being given up, and was not renewed
                    self._emit(LeaseRenewed(self._lease.epoch, self._left()))

    def _left(self) -> float:
        return self._lease.sent + self._timing.ttl - self._clock.boot()

    def _monitor(self) -> None:
        while not self._stop.wait(self._timing.period / 10):
            if self._client and self.health == "expired" and not self.spooling:
                self._client.lease_expired()


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
        emit: Emit = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._emit = emit
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
                        self._emit(Saved("snapshot", self._snapshots.size, self._clock.boot() - began))
                        self._retention.run()
            except Newer:
                return  # a newer wal-agent has the job by now: nothing of its is deleted; the writer ends this run
            except Exception as error:  # noqa: BLE001 - reported; nobody else sees it in this thread
                if not self._stop.is_set():
                    self._failed(error)
                return


def sweep_mirrors(mirrors: Path, is_live: Callable[[str], bool]) -> None:
    """Remove what killed runs left; each folder is named by its run."""
    if mirrors.is_dir():
        for folder in mirrors.iterdir():
            if not is_live(folder.name):
                shutil.rmtree(folder, ignore_errors=True)

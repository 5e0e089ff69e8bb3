"""Acquire a job: decide from the lease, wait where asked, open (R1, R2). Nothing on disk is touched here.

Until the agent runs, a signal ends the run at once, also in steps that take long by themselves: waiting for a bucket
that is away, and reading what is restored (`StartupInterrupt`). Signals are blocked, so somebody has to ask.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from wal_agent.bucket.base import Bucket, Object
from wal_agent.bucket.check import require_conditions
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.bucket.folder import missing_job_error
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import Damaged, LeaseHeld, Unavailable, UsageError
from wal_agent.failpoints import failpoint
from wal_agent.recovery.lease_policy import (
    Acquire,
    Decline,
    Local,
    Pauses,
    Wait,
    abandons_spool,
    admit,
    may_have_spooled,
    pause_left,
)
from wal_agent.supervise.machine import probe_holder
from wal_agent.supervise.options import Screen
from wal_agent.supervise.processes import handled_signals
from wal_agent.wal import lease as leases
from wal_agent.wal import reader
from wal_agent.wal.damage import explain_open_error
from wal_agent.wal.job import OpenedJob, OpeningFields, Stopped, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest, StoredLease
from wal_agent.wal.spool import Spool, SpoolOwner, orphaned_spools

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
    def uninterrupted(self) -> Iterator[None]:
        """What is done meanwhile is not stopped at once: it has `UNBROKEN` seconds more."""
        self._whole, self._since = True, 0.0
        try:
            yield
        finally:
            self._whole = False

    def check(self) -> None:
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
            self._early.check()
            super().sleep(min(STEP, left))


class InterruptibleBucket:
    """Begins no `get` when the run is to end; everything else goes straight to `inner`."""

    def __init__(self, inner: Bucket, early: StartupInterrupt) -> None:
        self.url = inner.url
        self._get, self._early = inner.get, early
        self.put, self.delete, self.list = inner.put, inner.delete, inner.list
        self.folders, self.time, self.close = inner.folders, inner.time, inner.close

    def get(self, key: str) -> Object:
        self._early.check()
        return self._get(key)


BUCKET_PAUSE = 2.0  # seconds between two looks at a bucket that cannot be reached
LOOK = 30.0  # seconds at most between two looks at a paused job's lease: a person may end the pause
RACE_PAUSE = 1.0  # seconds until the lease is read again that another start was faster to take


class Interrupted(Stopped):
    """A signal asked us to end before the agent ran; the exit code is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name} before the agent was started.")
        self.exit_code = 128 + number


def check_signals() -> None:
    """Raise Interrupted when a signal to end is pending. Signals are blocked, so long steps ask here in between."""
    pending = signal.sigpending() & handled_signals()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if number in pending:
            raise Interrupted(number)


@dataclass(slots=True)
class LeaseWatch:
    """How long the lease's version has been seen not to change (boot time): the proof of death that needs no clock but
    our own."""

    version: str = ""
    since: float = 0.0

    def unchanged(self, seen: StoredLease, now: float) -> float:
        if seen.version != self.version:
            self.version, self.since = seen.version, now
        return now - self.since


@dataclass(frozen=True, slots=True)
class AcquireOptions:
    """How a start takes its job. R9: `spools` is the folder of what this user's runs spool; `spool`: this run does;
    `accept_loss`: the user gives up what another run's spool may hold. `wait`: for a live owner; `pauses`: what to do
    about a pause; `known_epoch`: the one that this machine knows the job to have had."""

    spools: Path
    spool: bool = False
    accept_loss: bool = False
    wait: bool = False
    pauses: Pauses = "wait"
    known_epoch: int = 0


def acquire_job(
    bucket: Bucket,
    keys: Keys,
    claim: LeaseRequest,
    fields: OpeningFields,
    clock: Clock,
    options: AcquireOptions,
    screen: Screen,
    uninterrupted: Callable[[], AbstractContextManager[None]] = nullcontext,
    rng: random.Random | None = None,
) -> OpenedJob:
    """Open the job, once its lease may be taken; a pause is waited for, unless `options` say otherwise. LeaseHeld (75)
    when a live owner has it and nobody waits; UsageError when this run was started inside that one, and would wait for
    itself; Denied when the job is encrypted with another key than the claim's; Unavailable when nothing of it is there,
    although this machine knows it."""
    rng = rng or random.Random()
    watch, reported, paused = LeaseWatch(), "", False
    owner = SpoolOwner(keys.job, bucket.url)
    while True:
        check_signals()
        try:
            with screen.waiting_for("the bucket, for the job's lease"):
                seen = leases.read_lease(bucket, keys)
                if seen is None and options.known_epoch and reader.read_tail(bucket, keys).seq == 0:
                    raise missing_job_error(bucket.url, keys.job, options.known_epoch)
                if seen is None:
                    require_conditions(bucket, f"{keys.job}/probe")
        except Unavailable as error:
            if not options.wait and not paused:
                raise
            if reported != "bucket":
                screen.say(f"waiting: {error}")
                reported = "bucket"
            sleep_unless_signalled(BUCKET_PAUSE, clock)
            continue
        if seen and seen.doc.state == "held" and seen.doc.run in fields.parents:
            raise UsageError(
                f"Job {keys.job} is the one that this command is a part of: it was typed inside its own run.",
                "Name another job: wal-agent run AGENT --job NAME",
            )
        if seen and (problem := wrong_key_error(keys.job, seen.doc.key, claim.key)):
            raise problem
        unchanged = watch.unchanged(seen, clock.boot()) if seen else 0.0
        local = probe_holder(seen, claim.host, options.spools, bucket.url, unchanged)
        paused = seen is not None and pause_left(seen, unchanged) > 0
        match admit(keys.job, seen, local, wait=options.wait, accept_loss=options.accept_loss, pauses=options.pauses):
            case Acquire(cause):
                failpoint("run.before_lease")
                try:
                    with (
                        spool_for(seen, local, options, claim.run, owner, screen.say) as folder,
                        screen.waiting_for("the bucket, to open the job and read its log"),
                    ):
                        opened = open_job(
                            bucket,
                            keys,
                            clock,
                            rng,
                            claim=claim,
                            fields=fields,
                            seen=seen,
                            cause=cause,
                            spool=folder,
                            spooling=options.spool,
                            report=screen.say,
                            check_stop=check_signals,
                            uninterrupted=uninterrupted,
                        )
                except Damaged as error:
                    raise explain_open_error(bucket, keys, seen, error) from error
                except LeaseHeld:
                    if not options.wait:
                        raise
                    sleep_unless_signalled(RACE_PAUSE, clock)  # someone else was faster; now that one is waited for
                    continue
                failpoint("run.after_lease")
                return opened
            case Decline(sentence, hint):
                raise LeaseHeld(sentence, hint)
            case Wait(seconds, why):
                if why.split(",")[0] != reported:
                    screen.say(f"waiting: {why}")
                    reported = why.split(",")[0]
                sleep_unless_signalled(min(seconds, rng.uniform(LOOK / 2, LOOK)) if paused else seconds, clock)


@contextmanager
def spool_for(
    seen: StoredLease | None,
    local: Local,
    options: AcquireOptions,
    run: str,
    owner: SpoolOwner,
    say: Callable[[str], None],
) -> Iterator[Spool | None]:
    """The folder that the lease is to name from its first moment on (R9): the dead owner's, if it is here; else a new
    one, if this run spools. It is locked before the lease is taken, so that nobody sees it without an owner. LeaseHeld:
    another start has just taken it."""
    folder: Spool | None = None
    if seen is not None and abandons_spool(seen, local):
        say(f"going on without what only {seen.doc.host.name} may have, in {seen.doc.spool} (--accept-loss)")
    elif seen is not None and may_have_spooled(seen):
        folder = Spool.adopt(options.spools, seen.doc.spool, owner)
        if folder is None:
            raise LeaseHeld(f"Job {owner.job} was taken by another start at the same moment.", "Or use --wait.")
    if folder is None and options.spool:
        folder = Spool.create(options.spools, run, owner)
    try:
        yield folder
    except BaseException as error:
        if folder is not None and isinstance(error, LeaseHeld) and not folder.adopted:
            folder.remove()  # the lease never named it
        elif folder is not None:
            folder.release()
        raise
    for kept in orphaned_spools(options.spools, owner, folder.folder if folder else None):
        say(f"this machine keeps records of an earlier run that never came into the log: {kept}")


def sleep_unless_signalled(seconds: float, clock: Clock) -> None:
    """Sleep in short steps, so that a signal ends it."""
    until = clock.boot() + seconds
    while (left := until - clock.boot()) > 0:
        check_signals()
        clock.sleep(min(0.2, left))

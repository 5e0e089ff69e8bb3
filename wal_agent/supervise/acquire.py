"""Acquire a job: decide from the lease, wait where asked, open (R1, R2). Nothing on disk is touched here."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.check import require_conditions
from wal_agent.bucket.disk import missing_job_error
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.clock import Clock
from wal_agent.errors import Damaged, LeaseHeld, Unavailable, UsageError
from wal_agent.failpoints import failpoint
from wal_agent.records import Host
from wal_agent.recovery.damage import explain_open_error
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
from wal_agent.supervise.options import ShowWait, show_no_wait
from wal_agent.supervise.processes import handled_signals
from wal_agent.wal import lease as leases
from wal_agent.wal import reader
from wal_agent.wal.job import OpenedJob, OpeningFields, Stopped, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease_doc import LeaseRequest, StoredLease
from wal_agent.wal.spool import Spool, SpoolOwner, orphaned_spools

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
class Spooling:
    """R9: below which folder runs of this machine spool, whether this one does, and whether the user gives up what
    another one's spool may hold."""

    spools: Path
    wanted: bool = False
    accept_loss: bool = False


def acquire_job(
    bucket: Bucket,
    keys: Keys,
    here: Host,
    claim: LeaseRequest,
    fields: OpeningFields,
    clock: Clock,
    rng: random.Random,
    wait: bool,
    tell: Callable[[str], None],
    spooling: Spooling,
    pauses: Pauses = "wait",
    unbroken: Callable[[], AbstractContextManager[None]] = nullcontext,
    known: int = 0,
    on: ShowWait = show_no_wait,
) -> OpenedJob:
    """Open the job, once its lease may be taken; a pause is waited for, unless `pauses` says otherwise. LeaseHeld (75)
    when a live owner has it and `wait` is not set; UsageError when this run was started inside that one, and would wait
    for itself; Denied when the job is encrypted with another key than the claim's; Unavailable when nothing of it is
    there, although this machine had it in epoch `known`."""
    watch, told, paused = LeaseWatch(), "", False
    owner = SpoolOwner(keys.job, bucket.url)
    while True:
        check_signals()
        try:
            with on("the bucket, for the job's lease"):
                seen = leases.read_lease(bucket, keys)
                if seen is None and known and reader.read_tail(bucket, keys).seq == 0:
                    raise missing_job_error(bucket.url, keys.job, known)
                if seen is None:
                    require_conditions(bucket, f"{keys.job}/probe")
        except Unavailable as error:
            if not wait and not paused:
                raise
            if told != "bucket":
                tell(f"waiting: {error}")
                told = "bucket"
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
        local = probe_holder(seen, here, spooling.spools, bucket.url, unchanged)
        paused = seen is not None and pause_left(seen, unchanged) > 0
        match admit(keys.job, seen, local, wait=wait, accept_loss=spooling.accept_loss, pauses=pauses):
            case Acquire(cause):
                failpoint("run.before_lease")
                try:
                    with (
                        spool_for(seen, local, spooling, claim.run, owner, tell) as folder,
                        on("the bucket, to open the job and read its log"),
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
                            spooling=spooling.wanted,
                            report=tell,
                            check_stop=check_signals,
                            uninterrupted=unbroken,
                        )
                except Damaged as error:
                    raise explain_open_error(bucket, keys, seen, error) from error
                except LeaseHeld:
                    if not wait:
                        raise
                    sleep_unless_signalled(RACE_PAUSE, clock)  # someone else was faster; now that one is waited for
                    continue
                failpoint("run.after_lease")
                return opened
            case Decline(sentence, hint):
                raise LeaseHeld(sentence, hint)
            case Wait(seconds, why):
                if why.split(",")[0] != told:
                    tell(f"waiting: {why}")
                    told = why.split(",")[0]
                sleep_unless_signalled(min(seconds, rng.uniform(LOOK / 2, LOOK)) if paused else seconds, clock)


@contextmanager
def spool_for(
    seen: StoredLease | None, local: Local, spooling: Spooling, run: str, owner: SpoolOwner, tell: Callable[[str], None]
) -> Iterator[Spool | None]:
    """The folder that the lease is to name from its first moment on (R9): the dead owner's, if it is here; else a new
    one, if this run spools. It is locked before the lease is taken, so that nobody sees it without an owner. LeaseHeld:
    another start has just taken it."""
    folder: Spool | None = None
    if seen is not None and abandons_spool(seen, local):
        tell(f"going on without what only {seen.doc.host.name} may have, in {seen.doc.spool} (--accept-loss)")
    elif seen is not None and may_have_spooled(seen):
        folder = Spool.adopt(spooling.spools, seen.doc.spool, owner)
        if folder is None:
            raise LeaseHeld(f"Job {owner.job} was taken by another start at the same moment.", "Or use --wait.")
    if folder is None and spooling.wanted:
        folder = Spool.create(spooling.spools, run, owner)
    try:
        yield folder
    except BaseException as error:
        if folder is not None and isinstance(error, LeaseHeld) and not folder.adopted:
            folder.remove()  # the lease never named it
        elif folder is not None:
            folder.release()
        raise
    for kept in orphaned_spools(spooling.spools, owner, folder.folder if folder else None):
        tell(f"this machine keeps records of an earlier run that never came into the log: {kept}")


def sleep_unless_signalled(seconds: float, clock: Clock) -> None:
    """Sleep in short steps, so that a signal ends it."""
    until = clock.boot() + seconds
    while (left := until - clock.boot()) > 0:
        check_signals()
        clock.sleep(min(0.2, left))

"""Acquire a job and keep it: decide from the lease, wait where asked, open (R1, R2); then keep lease and log in order
while the run lives (PROTOCOL.md, Timing; R4, R5).

Until the agent runs, a signal ends the run at once, also in steps that take long by themselves: waiting for a bucket
that is away, and reading what is restored (`StartupInterrupt`). Signals are blocked, so somebody has to ask.

`LeaseKeeper` renews the lease in one thread and monitors it in another: the renewer may hang in a request for as long
as it likes; the monitor only reads the clock. Times are seconds of the boot-time clock, so a suspended machine's lease
runs out all the same (R7). `Housekeeping` makes snapshots and applies retention in the background: nothing waits for
it, nothing is unsafe without it.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from wal_agent.bucket.base import Bucket, Object
from wal_agent.bucket.check import PATIENCE, require_conditions
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.bucket.folder import missing_job_error
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import (
    BucketError,
    Damaged,
    LeaseHeld,
    Newer,
    NotThisJob,
    NotYourJob,
    Unavailable,
    UsageError,
    WalAgentError,
)
from wal_agent.events import Emit, LeaseLost, LeaseRenewed, RenewalFailed, Saved
from wal_agent.failpoints import failpoint
from wal_agent.recovery.lease_policy import (
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
from wal_agent.wal.job import NO_KEY, OpenedJob, Opener, OpeningFields, Stopped, open_job
from wal_agent.wal.lease import Lease, LeaseRequest, StoredLease, longest_ttl, timing_holds
from wal_agent.wal.retention import Mirror, Retention, Snapshots
from wal_agent.wal.spool import Spool, SpoolOwner, describe_kept, orphaned_spools
from wal_agent.wal.store import JobStore

STEP = 0.2  # seconds
UNBROKEN = 5.0  # seconds that what should not be left half done gets from the moment that the run is to end
READERS = {"MainThread", "ahead"}  # a writer or a heartbeat is never broken off: the log and the lease must stay sound
BUCKET_PAUSE = 2.0  # seconds between two looks at a bucket that cannot be reached
PAUSE_POLL = 30.0  # seconds at most between two looks at a paused job's lease: a person may end the pause
RACE_PAUSE = 1.0  # seconds until the lease is read again that another start was faster to take
PATIENT = 2.0  # ttls that the agent has waited for a person, before its lease is renewed less often
LOOK = 1.0  # seconds between two looks at whether a snapshot is due


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


class LeaseWatch(msgspec.Struct):
    """How long the lease's version has been seen not to change (boot time): the proof of death that needs no clock but
    our own."""

    version: str = ""
    since: float = 0.0

    def unchanged(self, seen: StoredLease, now: float) -> float:
        if seen.version != self.version:
            self.version, self.since = seen.version, now
        return now - self.since


class AcquireOptions(msgspec.Struct, frozen=True):
    """How a start takes its job. R9: `spools` is the folder of what this user's runs spool; `spool`: this run does;
    `accept_loss`: the user gives up what another run's spool may hold. `wait`: for a live owner; `outlast`: until
    the lease of one that is silent has run out, with a countdown; `pauses`: what to do
    about a pause; `known_epoch`: the one that this machine knows the job to have had; `probe`: the bucket has to show
    that it keeps conditions also where the job is known; `end_pause`: called from time to time while the job is
    paused, returns whether it has ended that."""

    spools: Path
    spool: bool = False
    accept_loss: bool = False
    wait: bool = False
    outlast: bool = False
    pauses: Pauses = "wait"
    known_epoch: int = 0
    probe: bool = False
    end_pause: Callable[[], bool] = lambda: False


def acquire_job(
    store: JobStore,
    claim: LeaseRequest,
    fields: OpeningFields,
    options: AcquireOptions,
    screen: Screen,
    opener: Opener = NO_KEY,
) -> OpenedJob:
    """Open the job, once its lease may be taken; a pause is waited for, unless `options` say otherwise. LeaseHeld (75)
    when a live owner has it and nobody waits; UsageError when this run was started inside that one, and would wait for
    itself; Denied when the job is encrypted with another key than the claim's; Unavailable when nothing of it is there,
    although this machine knows it."""
    bucket, keys, clock = store.bucket, store.keys, store.clock
    owner, watch = SpoolOwner(keys.job, bucket.url), LeaseWatch()
    waiting = _Waiting(clock, options, screen, store.rng)
    first, probe = "", options.probe  # first: the version of the lease that was read first
    while True:
        check_signals()
        try:
            seen = _read_lease(store, options.known_epoch, probe, screen)
            probe = False
        except Unavailable as error:
            if not options.wait and not waiting.paused:
                raise
            waiting.for_bucket(error)
            continue
        if seen is not None:
            _check_claim(keys.job, seen, claim, fields)
        unchanged = watch.unchanged(seen, clock.boot()) if seen else 0.0
        local = probe_holder(seen, claim.host, options.spools, bucket.url, unchanged)
        waiting.paused = seen is not None and pause_left(seen, unchanged) > 0
        first = first or (seen.version if seen else "")
        outlast = options.outlast and seen is not None and seen.version == first  # a heartbeat: its owner lives
        decided = admit(
            seen,
            local,
            wait=options.wait,
            outlast=outlast,
            accept_loss=options.accept_loss,
            pauses=options.pauses,
            url=bucket.url,
        )
        if isinstance(decided, Wait):
            waiting.for_lease(decided, counting=outlast and not waiting.paused)
            continue
        waiting.end()
        if isinstance(decided, Decline):
            raise LeaseHeld(decided.sentence, decided.hint)
        failpoint("run.before_lease")
        try:
            with (
                spool_for(seen, local, options, claim.run, owner, screen.say) as folder,
                screen.waiting_for("the bucket, to open the job and read its log"),
            ):
                opened = open_job(
                    store,
                    claim=claim,
                    fields=fields,
                    seen=seen,
                    cause=decided.cause,
                    spool=folder,
                    spooling=options.spool,
                    opener=replace(opener, report=screen.say, check_stop=check_signals),
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


def _read_lease(store: JobStore, known_epoch: int, probe: bool, screen: Screen) -> StoredLease | None:
    """The lease as it is now; before a job's first use, or to `probe` it, the bucket has to show that it keeps
    conditions. Unavailable: also where nothing of the job is there, although this machine knows it."""
    with screen.waiting_for("the bucket, for the job's lease"):
        bucket, keys, retries = store.bucket, store.keys, store.retries(PATIENCE)
        seen = retries.call(lambda: leases.read_lease(bucket, keys))
        if seen is None and known_epoch and retries.call(lambda: reader.read_tail(bucket, keys)).seq == 0:
            raise missing_job_error(bucket.url, keys.job, known_epoch)
        if seen is None or probe:
            require_conditions(bucket, f"{keys.job}/probe", store.clock)
    return seen


def _check_claim(job: str, seen: StoredLease, claim: LeaseRequest, fields: OpeningFields) -> None:
    """UsageError: this run is inside the one that holds the job; Denied: the job has another key."""
    if seen.doc.state == "held" and seen.doc.run in fields.parents:
        raise UsageError(
            f"Job {job} is the one that this command is a part of: it was typed inside its own run.",
            "Name another job: wal-agent run AGENT --job NAME",
        )
    if problem := wrong_key_error(job, seen.doc.key, claim.key):
        raise problem


class _Waiting(msgspec.Struct):
    """What a start waits for, and what it has said of it: each cause once. `paused`: the job is."""

    clock: Clock
    options: AcquireOptions
    screen: Screen
    rng: random.Random
    paused: bool = False
    reported: str = ""
    counting: bool = False  # a countdown is on the screen

    def for_bucket(self, error: Unavailable) -> None:
        self._report("bucket", str(error))
        sleep_unless_signalled(BUCKET_PAUSE, self.clock)

    def for_lease(self, wait: Wait, *, counting: bool) -> None:
        if counting:
            self.counting = True
            self.screen.redraw(wait.why)
            sleep_unless_signalled(wait.seconds, self.clock)
            return
        self.end()
        if self.paused and self.options.end_pause():
            return
        self._report(wait.why.split(",")[0], wait.why)
        poll = self.rng.uniform(PAUSE_POLL / 2, PAUSE_POLL) if self.paused else wait.seconds
        sleep_unless_signalled(min(wait.seconds, poll), self.clock)

    def end(self) -> None:
        """Take the countdown off the screen."""
        if self.counting:
            self.counting = False
            self.screen.redraw("")

    def _report(self, cause: str, why: str) -> None:
        if cause != self.reported:
            self.screen.say(f"waiting: {why}")
            self.reported = cause


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
        if folder is not None and isinstance(error, LeaseHeld | NotThisJob | NotYourJob) and not folder.adopted:
            folder.remove()  # the lease never named it
        elif folder is not None:
            folder.release()
        raise
    for kept in orphaned_spools(options.spools, owner, folder.folder if folder else None):
        say(describe_kept(kept))


def sleep_unless_signalled(seconds: float, clock: Clock) -> None:
    """Sleep in short steps, so that a signal ends it."""
    until = clock.boot() + seconds
    while (left := until - clock.boot()) > 0:
        check_signals()
        clock.sleep(min(0.2, left))


Health = Literal["fresh", "late", "expired"]


class LeaseTiming(msgspec.Struct, frozen=True):
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


def wanted_ttl(ttl: float, phase: str, lasts: float) -> float:
    """What the lease of a run with this `ttl` is to say after `lasts` seconds in `phase`: longer where only a person
    can go on, so that an agent that waits overnight costs few requests. Pure."""
    return longest_ttl(ttl) if phase == "awaiting_user" and lasts > PATIENT * ttl else ttl


def lease_health(timing: LeaseTiming, sent: float, now: float) -> Health:
    """What the age of the newest successful renewal (by its *sending*) means: `late` = no new changing tool, `expired`
    = running changing tools are ended. Pure."""
    age = now - sent
    if age >= timing.ttl:
        return "expired"
    return "late" if age >= timing.renew_deadline else "fresh"


class RunProgress(msgspec.Struct, frozen=True):
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
        return lease_health(LeaseTiming(self._lease.ttl), self._lease.sent, self._clock.boot())

    def may_allow(self) -> bool:
        """R7: the last check before an allow is sent. In a job that spools (R9) it has no date: no timeout takes the
        job away, so an outage need not stop it."""
        return self._lease.held if self.spooling else self.may_delete()

    def seconds_left(self) -> float:
        """How long `may_allow` stays true without a renewal; 0: it is not."""
        if not self.may_allow():
            return 0.0
        margin = LeaseTiming(self._lease.ttl).margin
        return self._timing.ttl if self.spooling else self._lease.sent + self._lease.ttl - margin - self._clock.boot()

    def may_delete(self) -> bool:
        """Whether nobody else can have opened the job yet, spooling or not: what retention asks before it deletes."""
        return self._lease.may_allow(LeaseTiming(self._lease.ttl).margin)

    @property
    def spooling(self) -> bool:
        return bool(self._lease.doc.spool)

    def _renewer(self) -> None:
        wait, due = self._timing.period, 0.0
        while not self._stop.wait(wait):
            at = self._client.progress() if self._client else RunProgress()
            ttl = wanted_ttl(self._timing.ttl, at.phase, self._clock.now() - at.since if at.since else 0.0)
            wait = self._timing.period  # also under a longer ttl: nobody waits longer to see that the agent works again
            if ttl == self._lease.ttl > self._timing.ttl and self._clock.boot() < due:
                continue
            try:
                self._lease.renew(phase=at.phase, tool=at.tool, seq=at.seq, since=at.since, ttl=ttl)
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
                due = self._lease.sent + LeaseTiming(ttl).period - self._timing.period / 2
                if self._lease.held:  # else it is being given up, and was not renewed
                    self._emit(LeaseRenewed(self._lease.epoch, self._left()))

    def _left(self) -> float:
        return self._lease.sent + self._lease.ttl - self._clock.boot()

    def _monitor(self) -> None:
        while not self._stop.wait(self._timing.period / 10):
            if self._client and self.health == "expired" and not self.spooling:
                with suppress(OSError):  # a lack of descriptors: the next look may see the processes
                    self._client.lease_expired()


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

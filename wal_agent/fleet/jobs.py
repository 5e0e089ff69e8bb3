"""List the jobs of a bucket, judge each by its lease alone (which runs, which needs a host, which needs a person), and
claim one that needs a host to run it here, one process a job.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from wal_agent.agents.places import in_a_secret_place
from wal_agent.answers import JsonAnswer
from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.concurrency import call_with_timeout, prefetch_map
from wal_agent.config import Settings
from wal_agent.errors import (
    ConfigError,
    CrashLoop,
    Damaged,
    Denied,
    LeaseHeld,
    Newer,
    PersonNeeded,
    Unavailable,
    UsageError,
    WalAgentError,
)
from wal_agent.paths import PROGRAM
from wal_agent.records import Host, Owner
from wal_agent.recovery.lease_policy import (
    LeaseView,
    Local,
    classify_stop,
    describe_lease,
    is_removed,
    lease_age,
    may_have_spooled,
    owner_is_dead,
    pause_left,
    paused_until,
    spool_is_here,
)
from wal_agent.redact import redact, redact_head
from wal_agent.safefs import real_path
from wal_agent.supervise.identity import known_folders, read_owner
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.text import command, duration, plural, quote_word, shorten, start_words
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

JobState = Literal["damaged", "newer"] | LeaseView
"""`newer`: a newer wal-agent wrote its lease."""
STATES: Final[tuple[JobState, ...]] = ("damaged", "newer", *get_args(LeaseView))
"""In the order of who is to look first."""
MAX_WORDS = 500  # characters of a foreign text
MAX_AGE = 1e10  # seconds, whatever a lease says
PARALLEL = 32  # requests at once; as many connections are kept
MAX_LISTED = 200  # leases of a bucket that are read for one folder
MAX_COUNTED = 5  # logs that are read for one folder
LOOK_TIME = 3.0  # seconds
MAX_READ = 100  # logs that a listing reads
READ_AT_ONCE = 8  # of these: each may be large
EQUAL_WAIT = (
    60.0  # seconds: what waits about as long is taken in any order, so that a hundred hosts do not want one job
)
HOOKLESS = "generic"
MAX_PAUSE = 300.0  # seconds after runs that failed in a row
FIRST_REST = 15.0  # seconds until a job is tried again whose lease a run left as it was; doubled each time
MAX_REST = 600.0

UNFINISHED: Final = frozenset(("damaged", "newer", "crashed", "due", "released", "unlocked", "running", "paused"))

_STATE_WORDS: Final[Mapping[JobState, str]] = {
    "crashed": "was cut off",
    "due": "was paused",
    "paused": "is paused",
    "running": "is running",
    "damaged": "cannot be read: its lease is damaged",
    "newer": "cannot be read: a newer wal-agent wrote it",
}

PASSED_ON = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
# Trying again mends none of these.
FINAL = {0, *(error.exit_code for error in (UsageError, Damaged, PersonNeeded, CrashLoop))}


class ShownJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its lease alone tells. Times are seconds since 1970, ages seconds; texts are redacted, and foreign."""

    job: str
    state: JobState
    needs_host: bool = False  # it is nobody's, and nobody said that it should stay so
    waits: float = 0.0  # for how long a `crashed`, `due` or `released` one has been nobody's
    only_on: str = ""  # the host whose disk may hold records that the bucket lacks: no other may carry on
    agent: str = ""
    workspace: str = ""
    host: str = ""
    pid: int = 0
    user: str = ""
    epoch: int = 0
    started: float = 0.0
    age: float = 0.0  # of the last heartbeat
    ttl: float = 0.0
    phase: str = ""
    phase_age: float = 0.0  # 0: not known
    tool: str = ""
    reason: str = ""
    until: float = 0.0  # when its pause is over, or was
    left: float = 0.0
    record: int = 0
    key: str = ""  # id of the key that the job is encrypted with
    problem: str = ""  # why a `damaged` or `newer` lease cannot be read
    mark: str = ""  # of the newest write of its lease
    name: str = ""  # its display name (`wal-agent rename`); "": none, or another job's own name


class Job(ShownJob, frozen=True, kw_only=True):
    """A job with what is only compared or used here, and never shown: `since`, when it became nobody's, by the store's
    clock; `folder`, where commands run; host and owner as they stand in the lease."""

    since: float = 0.0
    folder: str = ""
    raw_host: str = ""
    owner: Owner = Owner()

    @property
    def title(self) -> str:
        """The name for people: the display name goes first."""
        return f"{self.name} ({self.job})" if self.name else self.job

    @property
    def loss(self) -> tuple[str, int, str]:
        """What is the same until somebody writes the lease: a job that came back and was lost again is another."""
        return self.job, self.epoch, self.mark


def classify_job(seen: StoredLease, local: Local) -> Job:
    """By the store's clock (the lease's own times are by its writer's), and by the locks of this machine where the
    owner was on it."""
    doc, old = seen.doc, lease_age(seen)
    left, until = pause_left(seen), paused_until(seen)
    state = describe_lease(seen, doc.state == "held" and owner_is_dead(seen, local))
    waits = {"crashed": old, "released": old, "due": seen.now - until}.get(state, 0.0)
    only_on = clean_text(doc.host.name) if may_have_spooled(seen) and not spool_is_here(seen, local) else ""
    nobodys = state in ("crashed", "due") or (state == "released" and handed_over(doc.reason))
    return Job(
        job=doc.job,
        state=state,
        needs_host=nobodys,
        waits=max(0.0, waits),
        since=round(seen.now - max(0.0, waits), 3) if waits else 0.0,
        only_on=only_on if state != "running" else "",
        agent=clean_text(doc.agent),
        workspace=clean_text(doc.workspace),
        folder=doc.workspace,
        host=clean_text(doc.host.name),
        pid=doc.host.pid,
        user=clean_text(doc.owner.user),
        raw_host=doc.host.name,
        owner=doc.owner,
        epoch=doc.epoch,
        started=doc.started,
        age=old,
        ttl=doc.ttl,
        phase=clean_text(doc.phase) if doc.state == "held" else "",
        phase_age=_phase_age(doc.time - doc.since) + old if doc.since and state == "running" else 0.0,
        tool=clean_text(doc.tool),
        reason=clean_text(doc.reason),
        until=until,
        left=left,
        record=doc.seq,
        key=clean_text(doc.key),
        mark=blake2b(doc.nonce.encode(), digest_size=8).hexdigest(),
    )


class Jobs(JsonAnswer, frozen=True):
    """`wal-agent list` and `wal-agent fleet ls`, in their orders: an empty list where there is no job."""

    bucket: str
    jobs: tuple[ShownJob, ...]

    @classmethod
    def of(cls, bucket: Bucket, jobs: Iterable[Job]) -> Jobs:
        """What may be shown of the jobs; all numbers are finite."""
        names = ShownJob.__struct_fields__
        return cls(redact(bucket.url), tuple(ShownJob(**{name: getattr(job, name) for name in names}) for job in jobs))


def handed_over(reason: str) -> bool:
    """Whether a released job's reason says that its machine went away, or had no bucket; any other end was the agent's
    or a person's."""
    return classify_stop(reason) == "handed_over"


def sort_jobs(jobs: Iterable[Job]) -> list[Job]:
    """What needs a host or a person first, the longest waiting of these first; what has ended last."""
    return sorted(jobs, key=lambda j: (STATES.index(j.state), not j.needs_host, not _asks(j), j.since, j.job))


def count_states(jobs: Iterable[Job]) -> str:
    """ "2 crashed, 1 due, 37 running"."""
    found = Counter(job.state for job in jobs)
    return ", ".join(f"{found[state]} {state}" for state in STATES if found[state])


def _asks(job: Job) -> bool:
    return job.phase == "awaiting_approval"


@lru_cache(256)  # 10,000 jobs share few agents, hosts and users; of foreign texts, as long as a lease, few are kept
def clean_text(text: str) -> str:
    return redact_head(text, MAX_WORDS) if text else ""


def _phase_age(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_AGE)


def with_names(jobs: Iterable[Job], names: Mapping[str, str]) -> list[Job]:
    """The jobs with their display names (`names`, by job), but those that are the own name of one of them. Pure."""
    found = list(jobs)
    own = {job.job for job in found}
    return [msgspec.structs.replace(j, name=n) if (n := names.get(j.job, "")) not in own else j for j in found]


class Reader(msgspec.Struct, frozen=True):
    """A bucket, and this machine, which knows of its own processes whether they live."""

    bucket: Bucket
    here: Host
    spools: Path

    @classmethod
    def of(cls, bucket: Bucket, env: Mapping[str, str]) -> Reader:
        return cls(bucket, this_host(env, Path("/dev/null")), spools_dir(env))

    def all(self) -> list[Job]:
        """Every job, by name; what has no lease, deleted jobs, and folders that no job can have, are passed over.

        Denied: none of their leases may be read; who may read some sees the others as damaged."""
        names = sorted(filter(is_job, self.bucket.folders("")))
        found = [(n, job) for n, job in prefetch_map(self._read_job, names, self.parallel(names)) if job]
        denied = [job for _, job in found if isinstance(job, Denied)]
        if denied and len(denied) == len(found):
            raise denied[0]
        return [damaged_job(name, job) if isinstance(job, Denied) else job for name, job in found]

    def parallel(self, names: Sequence[str]) -> int:
        """How many of these are read at once."""
        near = self.bucket.url.startswith(("file:", "memory:"))  # threads cost more than such a read takes
        return 1 if near else min(PARALLEL, len(names))

    def one(self, name: str) -> Job | None:
        """None where there is no lease."""
        _, job = self._read_job(name)
        return damaged_job(name, job) if isinstance(job, Denied) else job

    def _read_job(self, name: str) -> tuple[str, Job | Denied | None]:
        try:
            seen = leases.read_lease(self.bucket, Keys(name))
        except Damaged as error:
            return name, damaged_job(name, error)
        except Newer as error:
            return name, Job(job=name, state="newer", problem=clean_text(str(error)))
        except Denied as error:
            return name, error
        if seen is None or is_removed(seen):
            return name, None
        return name, classify_job(seen, probe_holder(seen, self.here, self.spools, self.bucket.url))


Relation = Literal["here", "above", "below"]


class FolderJob(msgspec.Struct, frozen=True):
    """A job of a folder, of one above it or of one below it, by any agent. `calls`: open ones, by the log; None where
    the log was not read. `known`: this machine's notes name the job."""

    job: Job
    relation: Relation
    known: bool = False
    calls: int | None = None

    @property
    def unfinished(self) -> bool:
        return self.job.state in UNFINISHED


def find_folder_jobs(
    bucket: Bucket, folder: Path, env: Mapping[str, str], *, seconds: float = LOOK_TIME
) -> list[FolderJob]:
    """Find the jobs of `folder` (a real path) in `bucket`, which decrypts where needed: those that this machine's notes
    name, then those whose lease says so. The nearest folder comes first, then what needs somebody first.

    Reads at most MAX_LISTED leases, and begins no read after `seconds`. Changes nothing. Unavailable, Denied."""
    end = time.monotonic() + seconds
    reader, owner, here = Reader.of(bucket, env), read_owner(folder, env), this_host(env, Path("/dev/null"))
    found = {each.job.job: each for each in _noted_jobs(reader, folder, owner, env)}
    names = [n for n in sorted(filter(is_job, bucket.folders(""))) if n not in found][:MAX_LISTED]

    def read_job(name: str) -> Job | None:
        return None if time.monotonic() > end else reader.one(name)

    for job in prefetch_map(read_job, names, reader.parallel(names)):
        if job and (relation := relate_job(job, folder, owner, here)):
            found[job.job] = FolderJob(job, relation)
    order = sort_jobs(each.job for each in found.values())
    return sorted((found[job.job] for job in order), key=lambda each: get_args(Relation).index(each.relation))


def find_jobs_here(bucket: Bucket, folder: Path, env: Mapping[str, str]) -> list[Job]:
    """Find the jobs of this very `folder`, what needs somebody first: by this machine's notes, and only where these
    have none by the leases of the bucket. As find_folder_jobs."""
    reader, owner = Reader.of(bucket, env), read_owner(folder, env)
    noted = [each.job for each in _noted_jobs(reader, folder, owner, env) if each.relation == "here"]
    found = noted or [each.job for each in find_folder_jobs(bucket, folder, env) if each.relation == "here"]
    return sort_jobs(found)


def _noted_jobs(reader: Reader, folder: Path, owner: Owner, env: Mapping[str, str]) -> Iterator[FolderJob]:
    for known in known_folders(env):
        relation: Relation | None = "here" if known.id == owner.folder else relate(folder, known.path)
        names = (at.job for at in known.jobs if at.bucket == reader.bucket.url and is_job(at.job))
        for name in dict.fromkeys(names) if relation else ():  # one job may be noted for two agents
            job = reader.one(name)
            # A job whose lease names another folder has moved on to that one.
            if job is not None and relation and job.owner.folder in ("", known.id):
                yield FolderJob(job, relation, known=True)


def find_others(
    bucket: Bucket, folder: Path, env: Mapping[str, str], own: str, counted: Callable[[Job], Bucket], seconds: float
) -> tuple[list[FolderJob], bool]:
    """Find the unfinished jobs of `folder` and around it, but `own`, with their open calls, and return whether
    `own` exists. `counted`: the bucket that decrypts the log of a job. As find_folder_jobs."""
    end = time.monotonic() + seconds
    found = find_folder_jobs(bucket, folder, env, seconds=seconds)
    others = [each for each in found if each.unfinished and each.job.job != own]
    stopped = [each.job for each in others if each.job.state not in ("running", "damaged", "newer")][:MAX_COUNTED]
    calls = {job.job: count_calls(counted(job), job.job, end) for job in stopped}
    return [replace(o, calls=calls.get(o.job.job)) for o in others], any(each.job.job == own for each in found)


def find_unowned(bucket: Bucket, job: str, folder: Path, env: Mapping[str, str]) -> bool:
    """Whether there is a job of this name that an earlier wal-agent, which noted no owner, ran here in `folder`."""
    here = this_host(env, Path("/dev/null"))
    found = Reader.of(bucket, env).one(job) if is_job(job) else None
    return found is not None and not found.owner.person and (found.raw_host, found.folder) == (here.name, str(folder))


def describe_other(each: FolderJob, folder: Path, settings: Settings) -> str:
    """An unfinished job of this folder or around it, with the command that carries it on, or shows it.
    `settings`: of the start, whose bucket has the job. Pure."""
    job = each.job
    where = {"here": "in this folder", "above": f"in {job.workspace}, above", "below": f"in {job.workspace}, below"}
    calls = f", with {plural(each.calls, 'open call')}" if each.calls else ""
    host = f" on {job.host}" if job.host else ""
    what = f"job {job.job} ({where[each.relation]}) {_STATE_WORDS.get(job.state, 'did not finish')}{host}{calls}."
    if job.state in ("damaged", "newer", "running") or not job.agent:
        return f"{what} See: {command('status', replace(settings, job=job.job).job_options)}"
    return f"{what} To carry on: {carry_on_command(each, folder, settings)}"


def carry_on_command(each: FolderJob, folder: Path, settings: Settings) -> str:
    """The command that carries the job on, typed in `folder`. `settings`: as describe_other. Pure."""
    job = each.job
    cd = "" if each.relation == "here" or Path(job.folder) == folder else f"cd {quote_word(job.folder)} && "
    return f"{cd}{command(start_words(job.agent), replace(settings, job=job.job).job_options)}"


def relate_job(job: Job, folder: Path, owner: Owner, here: Host) -> Relation | None:
    """How the folder that a lease names lies to `folder`; None: it is no folder of this person on this machine. Pure.

    Paths of another machine say nothing, unless the same person id wrote them or user and path are the same."""
    if owner.folder and job.owner.folder == owner.folder:
        return "here"
    if not job.folder.startswith("/"):
        return None
    mine = bool(owner.person) and job.owner.person == owner.person
    unowned = not job.owner.person and job.raw_host == here.name
    relation = relate(folder, Path(job.folder))
    if mine or unowned:
        return relation
    return "here" if relation == "here" and job.owner.user == owner.user else None


def relate(folder: Path, other: Path) -> Relation | None:
    """How `other` lies to `folder`. Pure."""
    if other == folder:
        return "here"
    return "above" if folder.is_relative_to(other) else "below" if other.is_relative_to(folder) else None


class OpenWork(msgspec.Struct, frozen=True):
    """What a job's log says of its work: the open calls, what the agent is to do (foreign), and those of the calls that
    it looked at, which showed nothing."""

    calls: int
    task: str
    unproven: int = 0


def read_work(bucket: Bucket, job: str, end: float) -> OpenWork | None:
    """Return what the log of a job says; None where it cannot be read, or not before `end` (monotonic)."""
    left = end - time.monotonic()
    if left <= 0:
        return None
    try:
        found = call_with_timeout(left, lambda: replay(bucket, Keys(job)), None)
    except (WalAgentError, MemoryError, RecursionError):  # one bad log costs its own row
        return None
    if found is None or found.damage:
        return None
    return OpenWork(len(found.state.open), describe_task(found.state), len(found.state.unproven))


def describe_task(state: State) -> str:
    """Return the title that the agent gave its task, else the first line of the prompt; redacted."""
    turn = state.prompt
    prompt = turn.prompt.data if turn is not None and turn.prompt is not None else None
    title = state.progress.title if state.progress is not None else ""
    words = title or (prompt or b"")[:MAX_WORDS].decode("utf-8", "replace")
    return clean_text(next((line.strip() for line in words.splitlines() if line.strip()), ""))


def count_calls(bucket: Bucket, job: str, end: float) -> int | None:
    """As `read_work`, the open calls alone."""
    work = read_work(bucket, job, end)
    return None if work is None else work.calls


def read_open_work(bucket: Bucket, jobs: Iterable[Job]) -> dict[str, OpenWork]:
    """Return calls and task by name, of the jobs whose log can be read without a key, the unfinished ones first; no
    read begins after LOOK_TIME."""
    end = time.monotonic() + LOOK_TIME
    wanted = [job.job for job in sorted(filter(is_readable, jobs), key=lambda job: job.state not in UNFINISHED)]
    read = prefetch_map(lambda name: read_work(bucket, name, end), wanted[:MAX_READ], READ_AT_ONCE)
    return {name: work for name, work in zip(wanted, read, strict=False) if work is not None}


def is_readable(job: Job) -> bool:
    """Whether its log can be read without a key."""
    return job.state not in ("damaged", "newer") and not job.key


def damaged_job(name: str, error: Exception) -> Job:
    return Job(job=name, state="damaged", problem=clean_text(str(error)))


def is_job(name: str) -> bool:
    try:
        Keys(name)
    except UsageError:
        return False
    return True


Loss = tuple[str, int, str]  # Job.loss


class Allowed(msgspec.Struct, frozen=True):
    """`root`, `home`, `ours` (folders of wal-agent's own state and settings): real paths. `generic`: jobs of that
    agent only, whose command a person names; else none of it."""

    agents: Collection[str]
    root: Path
    home: Path | None = None
    generic: bool = False
    ours: Collection[Path] = ()


def order_candidates(jobs: Iterable[Job], resting: Collection[Loss], rng: random.Random) -> list[Job]:
    """The jobs that need a host, oldest first, without those that are not to be tried (again) yet."""
    free = [job for job in jobs if job.needs_host and job.loss not in resting]
    return sorted(free, key=lambda job: (-(job.waits // EQUAL_WAIT), rng.random()))


def refuse_job(job: Job, allowed: Allowed) -> str:
    """Why this host does not take it; "" if it may."""
    if job.agent not in allowed.agents:
        return f"its agent is {shorten(repr(job.agent), 60)}, which wal-agent does not know here"
    if job.agent == HOOKLESS and not allowed.generic:
        return "it is one of a command of its own; to take such ones: --generic -- COMMAND"
    if job.agent != HOOKLESS and allowed.generic:
        return f"it is {job.agent}'s, and only those of a command were asked for (--generic)"
    if job.only_on:
        return f"it may have records that only {shorten(job.only_on, 60)} has; start it there"
    return refuse_folder(job.folder, allowed)


def refuse_folder(workspace: str, allowed: Allowed) -> str:
    """Why a job may not be given this folder; links are followed."""
    words = shorten(redact_head(workspace, 1000), 200)
    if not Path(workspace).is_absolute() or "\0" in workspace or os.path.normpath(workspace) != workspace:
        return f"its workspace {words} is no plain absolute path"
    try:
        real = real_path(workspace)
    except OSError:
        return f"its workspace {words} cannot be looked up"
    if not real.is_relative_to(allowed.root):
        return f"its workspace {words} is not below {allowed.root} (--root)"
    return f"its workspace {words} is no place for a project" if is_protected(real, allowed) else ""


def is_protected(real: Path, allowed: Allowed) -> bool:
    """What holds HOME or our own folders, or is in these; and what is hidden in HOME (.config, .local ...), unless
    --root is there."""
    home = allowed.home
    if any(real.is_relative_to(own) or own.is_relative_to(real) for own in allowed.ours):
        return True
    if home is None or not real.is_relative_to(home):
        return home is not None and home.is_relative_to(real)
    parts = real.relative_to(home).parts
    if not parts or in_a_secret_place(parts):
        return True
    return parts[0].startswith(".") and not allowed.root.is_relative_to(home / parts[0])


def make_folder(job: Job, allowed: Allowed) -> Path:
    """The job's folder, made if it is missing; ConfigError when it cannot be, or is not where it was allowed to be."""
    path = Path(job.folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The workspace {shorten(job.workspace)} of job {job.job} cannot be made: {error.strerror}."
        ) from None
    if why := refuse_folder(job.folder, allowed):
        raise ConfigError(f"Job {job.job}: {why}.")
    return path


class ClaimOptions(msgspec.Struct, frozen=True):
    """`wait`: for a job to come; `loop`: take another one when a run has ended. `args`: for the agent; `logged`: where
    there are none, those of the log count, whoever wrote it."""

    wait: bool = False
    loop: bool = False
    every: float = 10.0
    args: Sequence[str] = ()
    logged: bool = False


class Child(msgspec.Struct, frozen=True):
    """How a run ended; `number`: of the signal that we were told to end with."""

    code: int
    number: int = 0


class Rest(msgspec.Struct, frozen=True):
    """A job that was tried, and needs a host all the same: left alone `until` (boot time)."""

    until: float
    tries: int


def rest_after(before: Rest | None, code: int, now: float) -> Rest:
    """After a run that ended with `code`."""
    tries = before.tries + 1 if before else 1
    return Rest(inf if code in FINAL else now + min(MAX_REST, FIRST_REST * 2 ** min(tries - 1, 16)), tries)


def prune_rests(rests: Mapping[Loss, Rest], jobs: Iterable[Job]) -> dict[Loss, Rest]:
    """Without jobs that run, or have gone on: when they are lost again, that is another matter."""
    lost = {job.loss for job in jobs if job.needs_host}
    return {loss: rest for loss, rest in rests.items() if loss in lost}


class Launcher(msgspec.Struct, frozen=True):
    """How a claimed job is run, in a folder. `become` does not come back, unless a test says so."""

    become: Callable[[Sequence[str], Path], Child]
    child: Callable[[Sequence[str], Path], Child]
    program: Sequence[str] = PROGRAM


def claim(
    eyes: Reader,
    allowed: Allowed,
    wanted: ClaimOptions,
    say: Callable[[str], None],
    clock: Clock,
    rng: random.Random,
    launcher: Launcher,
) -> int:
    """The exit code. Unavailable, without `wait`."""
    rests, reported, failures = dict[Loss, Rest](), set[tuple[str, int]](), 0
    while True:
        ended: Child | None = None
        left = 0
        try:
            jobs, since = eyes.all(), clock.boot()
            rests = prune_rests(rests, jobs)
            for job in order_candidates(jobs, [loss for loss, rest in rests.items() if rest.until > since], rng):
                if why := refuse_job(job, allowed):
                    if (job.job, job.epoch) not in reported:
                        say(f"job {job.job} is left alone: {why}")
                    reported.add((job.job, job.epoch))
                    left += 1
                    continue
                now = eyes.one(job.job)
                if now is None or not now.needs_host or now.loss != job.loss or refuse_job(now, allowed):
                    continue  # another host was faster
                try:
                    place = make_folder(now, allowed)
                except ConfigError as error:
                    say(str(error))
                    rests[now.loss] = rest_after(rests.get(now.loss), error.exit_code, clock.boot())
                    continue
                say(f"taking job {now.job} ({now.state} for {duration(now.waits)}, epoch {now.epoch}) in {place}")
                argv = run_command(now, eyes.bucket.url, wanted, launcher.program)
                ended = launcher.child(argv, place) if wanted.loop else launcher.become(argv, place)
                if ended.number or not wanted.loop:
                    return ended.code
                rests[now.loss] = rest_after(rests.get(now.loss), ended.code, clock.boot())
                if ended.code != LeaseHeld.exit_code:
                    break
        except Unavailable as error:
            if not wanted.wait:
                raise
            say(f"waiting: {error}")
        if ended is not None and ended.code not in (0, LeaseHeld.exit_code):
            failures += 1
            clock.sleep(rng.uniform(0.5, 1.0) * min(MAX_PAUSE, 2.0 ** min(failures, 10)))
        elif ended is not None:
            failures = 0
        elif not wanted.wait:
            say(nothing_to_take(left, bool(rests)))
            return 0
        else:
            clock.sleep(wanted.every * rng.uniform(0.5, 1.5))


def nothing_to_take(left: int, tried: bool) -> str:
    """Why no job is taken. `left`: jobs that were left alone, each with its reason; `tried`: others were. Pure."""
    if left:
        return f"{plural(left, 'job')} need{'s' if left == 1 else ''} a host, and none may run here: see above"
    return "no other job needs a host" if tried else "no job needs a host"


def run_command(job: Job, url: str, wanted: ClaimOptions, program: Sequence[str] = PROGRAM) -> list[str]:
    """`wal-agent run`, with what was typed before from the job's log. Names are joined to their options: a job's may
    begin with a dash. In a loop a pause ends the run, and whoever is free then takes it up."""
    rest = ["--exit-on-pause"] * wanted.loop + ["--accept-logged-args"] * wanted.logged
    more = ["--", *wanted.args] if wanted.args else []
    return [*program, "run", job.agent, f"--job={job.job}", f"--bucket={url}", *rest, *more]


def exec_run(argv: Sequence[str], place: Path, env: Mapping[str, str]) -> Child:
    """Be that program: its signals, exit code and terminal are its own."""
    os.chdir(place)
    os.execve(argv[0], list(argv), dict(env))


def run_child(argv: Sequence[str], place: Path, env: Mapping[str, str]) -> Child:
    """Run it, and pass on what is told to us alone. Signals are taken by waiting for them, as the run does
    (supervise/processes.py): only so the kernel says which ones the terminal sent to the run as well."""
    from wal_agent.supervise.processes import handled_signals

    taken: list[int] = []
    ours = PASSED_ON & handled_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours | {signal.SIGCHLD})
    try:
        # preexec_fn: no other thread runs here, and what it blocks the run would have to unblock.
        process = subprocess.Popen(
            argv, cwd=place, env=dict(env), preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
        )
        while process.poll() is None:
            number, from_terminal = _next(ours | {signal.SIGCHLD})
            if number != signal.SIGCHLD:
                taken.append(number)
                if not from_terminal:
                    with suppress(ProcessLookupError):
                        process.send_signal(number)
        while left := signal.sigpending() & ours:
            taken.append(signal.sigwait(left))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = process.returncode
    return Child(128 - code if code < 0 else code, taken[-1] if taken else 0)


def _next(numbers: Iterable[signal.Signals]) -> tuple[int, bool]:
    """The next of these signals, and whether the terminal sent it."""
    from wal_agent.supervise.processes import SI_KERNEL

    if sys.platform == "linux":
        info = signal.sigwaitinfo(numbers)
        return info.si_signo, info.si_code == SI_KERNEL
    number = signal.sigwait(numbers)  # macOS does not tell the sender
    return number, number == signal.SIGINT and os.isatty(0)

"""Claim a job that needs a host and run it here, one process a job; `claim` decides, `become` starts it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from wal_agent.clock import Clock
from wal_agent.errors import ConfigError, CrashLoop, Damaged, LeaseHeld, PersonNeeded, Unavailable, UsageError
from wal_agent.fleet.jobs import Job, Reader
from wal_agent.paths import in_a_secret_place
from wal_agent.redact import redact_head
from wal_agent.supervise.processes import SI_KERNEL, handled_signals
from wal_agent.text import duration, shorten

EQUAL_WAIT = (
    60.0  # seconds: what waits about as long is taken in any order, so that a hundred hosts do not want one job
)
HOOKLESS = "generic"
Loss = tuple[str, int, str]  # Job.loss


@dataclass(frozen=True, slots=True)
class Allowed:
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
        real = Path(os.path.realpath(workspace))
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


# -P: a file in the workspace must not stand in for a module of ours.
PROGRAM = (sys.executable, "-P", "-m", "wal_agent")
LONGEST_PAUSE = 300.0  # seconds after runs that failed in a row
FIRST_REST = 15.0  # seconds until a job is tried again whose lease a run left as it was; doubled each time
LONGEST_REST = 600.0
PASSED_ON = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
# Trying again mends none of these.
FINAL = {0, *(error.exit_code for error in (UsageError, Damaged, PersonNeeded, CrashLoop))}


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """`wait`: for a job to come; `loop`: take another one when a run has ended. `args`: for the agent; `logged`: where
    there are none, those of the log count, whoever wrote it."""

    wait: bool = False
    loop: bool = False
    every: float = 10.0
    args: Sequence[str] = ()
    logged: bool = False


@dataclass(frozen=True, slots=True)
class Child:
    """How a run ended; `number`: of the signal that we were told to end with."""

    code: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Rest:
    """A job that was tried, and needs a host all the same: left alone `until` (boot time)."""

    until: float
    tries: int


def rest_after(before: Rest | None, code: int, now: float) -> Rest:
    """After a run that ended with `code`."""
    tries = before.tries + 1 if before else 1
    return Rest(inf if code in FINAL else now + min(LONGEST_REST, FIRST_REST * 2 ** min(tries - 1, 16)), tries)


def prune_rests(rests: Mapping[Loss, Rest], jobs: Iterable[Job]) -> dict[Loss, Rest]:
    """Without jobs that run, or have gone on: when they are lost again, that is another matter."""
    lost = {job.loss for job in jobs if job.needs_host}
    return {loss: rest for loss, rest in rests.items() if loss in lost}


def claim(
    eyes: Reader,
    allowed: Allowed,
    wanted: ClaimOptions,
    say: Callable[[str], None],
    clock: Clock,
    rng: random.Random,
    become: Callable[[Sequence[str], Path], Child],
    child: Callable[[Sequence[str], Path], Child],
    program: Sequence[str] = PROGRAM,
) -> int:
    """The exit code. `become` does not come back, unless a test says so. Unavailable, without `wait`."""
    rests, told, failures = dict[Loss, Rest](), set[tuple[str, int]](), 0
    while True:
        ended: Child | None = None
        try:
            jobs, since = eyes.all(), clock.boot()
            rests = prune_rests(rests, jobs)
            for job in order_candidates(jobs, [loss for loss, rest in rests.items() if rest.until > since], rng):
                if why := refuse_job(job, allowed):
                    if (job.job, job.epoch) not in told:
                        say(f"job {job.job} is left alone: {why}")
                    told.add((job.job, job.epoch))
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
                argv = run_command(now, eyes.bucket.url, wanted, program)
                ended = child(argv, place) if wanted.loop else become(argv, place)
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
            clock.sleep(rng.uniform(0.5, 1.0) * min(LONGEST_PAUSE, 2.0 ** min(failures, 10)))
        elif ended is not None:
            failures = 0
        elif not wanted.wait:
            say("no other job needs a host" if rests else "no job needs a host")
            return 0
        else:
            clock.sleep(wanted.every * rng.uniform(0.5, 1.5))


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
    told: list[int] = []
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
                told.append(number)
                if not from_terminal:
                    with suppress(ProcessLookupError):
                        process.send_signal(number)
        while left := signal.sigpending() & ours:
            told.append(signal.sigwait(left))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = process.returncode
    return Child(128 - code if code < 0 else code, told[-1] if told else 0)


def _next(numbers: Iterable[signal.Signals]) -> tuple[int, bool]:
    """The next of these signals, and whether the terminal sent it."""
    if sys.platform == "linux":
        info = signal.sigwaitinfo(numbers)
        return info.si_signo, info.si_code == SI_KERNEL
    number = signal.sigwait(numbers)  # macOS does not tell the sender
    return number, number == signal.SIGINT and os.isatty(0)

"""`wal-agent fleet claim`: takes a job that needs a host, and is `wal-agent run` from then on. Several hosts may want
the same one: the run's own compare-and-swap decides, and ends with 75 for all but one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from wal_agent.clock import Clock
from wal_agent.errors import ConfigError, LeaseHeld, Unavailable
from wal_agent.fleet.claim import Allowed, line_up, made, refusal
from wal_agent.fleet.job import Job
from wal_agent.fleet.listing import Eyes
from wal_agent.recovery.words import span

# -P: a file in the workspace must not stand in for a module of ours.
PROGRAM = (sys.executable, "-P", "-m", "wal_agent")
LONGEST_PAUSE = 300.0  # seconds after runs that failed in a row
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`wait`: for a job to come; `loop`: take another one when a run has ended. `args`: more for the agent."""

    wait: bool = False
    loop: bool = False
    every: float = 10.0
    args: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Child:
    """How a run ended; `number`: of the signal that we were told to end with."""

    code: int
    number: int = 0


def claim(
    eyes: Eyes,
    allowed: Allowed,
    wanted: Wanted,
    say: Callable[[str], None],
    clock: Clock,
    rng: random.Random,
    become: Callable[[Sequence[str], Path], Child],
    child: Callable[[Sequence[str], Path], Child],
    program: Sequence[str] = PROGRAM,
) -> int:
    """The exit code. `become` does not come back, unless a test says so. Unavailable, without `wait`."""
    done, told, failures = set[tuple[str, int]](), set[tuple[str, int]](), 0
    while True:
        ended: Child | None = None
        try:
            for job in line_up(eyes.all(), done, rng):
                if why := refusal(job, allowed):
                    if (job.job, job.epoch) not in told:
                        say(f"job {job.job} is left alone: {why}")
                    told.add((job.job, job.epoch))
                    continue
                now = eyes.one(job.job)
                if now is None or not now.needs_host or now.epoch != job.epoch or refusal(now, allowed):
                    continue  # another host was faster
                done.add((job.job, job.epoch))
                try:
                    place = made(now, allowed)
                except ConfigError as error:
                    say(str(error))
                    continue
                say(f"taking job {now.job} ({now.state} for {span(now.waits)}, epoch {now.epoch}) in {place}")
                argv = command(now, eyes.bucket.url, wanted, program)
                ended = child(argv, place) if wanted.loop else become(argv, place)
                if ended.number or not wanted.loop:
                    return ended.code
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
            say("no job needs a host")
            return 0
        else:
            clock.sleep(wanted.every * rng.uniform(0.5, 1.5))


def command(job: Job, url: str, wanted: Wanted, program: Sequence[str] = PROGRAM) -> list[str]:
    """`wal-agent run`, with what was typed before from the job's log. Names are joined to their options: a job's may
    begin with a dash. In a loop a pause ends the run, and whoever is free then takes it up."""
    rest = ["--exit-on-pause"] if wanted.loop else []
    more = ["--", *wanted.args] if wanted.args else []
    return [*program, "run", job.agent, f"--job={job.job}", f"--bucket={url}", *rest, *more]


def become(argv: Sequence[str], place: Path, env: Mapping[str, str]) -> Child:
    """Be that program: its signals, exit code and terminal are its own."""
    os.chdir(place)
    os.execve(argv[0], list(argv), dict(env))


def child(argv: Sequence[str], place: Path, env: Mapping[str, str]) -> Child:
    """Run it, and pass on what we are told. Ctrl-C at a terminal reaches it by itself."""
    told: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        for process in running:
            if number != signal.SIGINT or not os.isatty(0):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        running.append(subprocess.Popen(argv, cwd=place, env=dict(env)))
        if told:
            running[0].send_signal(told[-1])
        code = running[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Child(128 - code if code < 0 else code, told[-1] if told else 0)

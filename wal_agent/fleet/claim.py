"""Which job a free host takes, and whether it may: what a lease says chooses neither the program nor a place outside of
the folder that a person named. Pure but for `made`."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from wal_agent.errors import ConfigError
from wal_agent.fleet.jobs import Job
from wal_agent.paths import in_a_secret_place
from wal_agent.redact import redact_head
from wal_agent.sanitize import shorten

EQUAL = 60.0  # seconds: what waits about as long is taken in any order, so that a hundred hosts do not want one job
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


def line_up(jobs: Iterable[Job], resting: Collection[Loss], rng: random.Random) -> list[Job]:
    """The jobs that need a host, oldest first, without those that are not to be tried (again) yet."""
    free = [job for job in jobs if job.needs_host and job.loss not in resting]
    return sorted(free, key=lambda job: (-(job.waits // EQUAL), rng.random()))


def refusal(job: Job, allowed: Allowed) -> str:
    """Why this host does not take it; "" if it may."""
    if job.agent not in allowed.agents:
        return f"its agent is {shorten(repr(job.agent), 60)}, which wal-agent does not know here"
    if job.agent == HOOKLESS and not allowed.generic:
        return "it is one of a command of its own; to take such ones: --generic -- COMMAND"
    if job.agent != HOOKLESS and allowed.generic:
        return f"it is {job.agent}'s, and only those of a command were asked for (--generic)"
    if job.only_on:
        return f"it may have records that only {shorten(job.only_on, 60)} has; start it there"
    return misplaced(job.folder, allowed)


def misplaced(workspace: str, allowed: Allowed) -> str:
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
    return f"its workspace {words} is no place for a project" if no_project(real, allowed) else ""


def no_project(real: Path, allowed: Allowed) -> bool:
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


def made(job: Job, allowed: Allowed) -> Path:
    """The job's folder, made if it is missing; ConfigError when it cannot be, or is not where it was allowed to be."""
    path = Path(job.folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The workspace {shorten(job.workspace)} of job {job.job} cannot be made: {error.strerror}."
        ) from None
    if why := misplaced(job.folder, allowed):
        raise ConfigError(f"Job {job.job}: {why}.")
    return path

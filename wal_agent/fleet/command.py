"""Runs the person's command for a job. What the bucket says of the job reaches it by the environment only: as part of a
command line it would be a way into the shell."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from wal_agent.agents import AGENTS
from wal_agent.fleet.jobs import Job
from wal_agent.sanitize import shorten

TIMED_OUT = 124  # as timeout(1) says it
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
STEP = 0.1
LONGEST = 1000  # characters of a value


def environment(env: Mapping[str, str], job: Job, url: str) -> dict[str, str]:
    """WAL_AGENT_JOB and WAL_AGENT_BUCKET, which every command of ours goes by, and FLEET_*. An agent that is none,
    and a workspace that cannot be told as it stands, are empty: another one would be worse."""
    whole = job.workspace == job.folder and shorten(job.folder, LONGEST) == job.folder
    told = {
        "STATE": job.state,
        "AGENT": job.agent if job.agent in AGENTS else "",
        "EPOCH": str(job.epoch),
        "HOST": job.host,
        "ONLY_ON": job.only_on,
        "WORKSPACE": job.folder if whole else "",
        "REASON": job.reason,
        "PHASE": job.phase,
        "WAITS": str(round(job.waits)),
    }
    clean = {f"FLEET_{name}": shorten(value, LONGEST) for name, value in told.items()}
    return {**env, **clean, "WAL_AGENT_JOB": job.job, "WAL_AGENT_BUCKET": url}


@dataclass(frozen=True, slots=True)
class Commands:
    """`limit`: seconds that one may take; `stop` ends those that run."""

    command: str
    url: str
    env: Mapping[str, str]
    limit: float
    stop: threading.Event

    def run(self, job: Job, delay: float = 0.0) -> int | None:
        """The exit code, negative for a signal; None: `stop` came before it began, or ended it. It has its own session,
        and its output goes to our stderr."""
        if delay > 0:
            self.stop.wait(delay)
        if self.stop.is_set():
            return None
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                env=environment(self.env, job, self.url),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        except OSError:
            return 127
        left = self.limit
        while left > 0 and not self.stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(STEP, left))
            left -= STEP
        stopped = left > 0
        code = _end(process)
        if stopped:
            return None if code else 0
        return TIMED_OUT


def _end(process: subprocess.Popen[bytes]) -> int:
    """The command and what it started, first in good order."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()

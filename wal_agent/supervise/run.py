"""`wal-agent run`: from the command to the agent's exit code. The order of the steps is that of R1, R2 and DESIGN 7."""

from __future__ import annotations

import os
import random
import secrets
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wal_agent import __version__
from wal_agent.agents.base import Agent, Cli, HookSetup, NewSession, ResumeSession
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import Clock, SystemClock
from wal_agent.config import Settings
from wal_agent.errors import BucketError, ConfigError, Fenced, Unavailable, WalAgentError
from wal_agent.failpoints import failpoint
from wal_agent.hookwire import client_command
from wal_agent.records import AnyRecord, FileGone
from wal_agent.supervise import local, processes
from wal_agent.supervise.child import block_signals
from wal_agent.supervise.heartbeat import Heartbeat, Timing
from wal_agent.supervise.live import Ended, Launch, Live, ended_record
from wal_agent.supervise.take import check_signals, take
from wal_agent.wal.job import Fields, OpenedJob, close_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Claim

SEAL_BUDGET = 10.0
DRAINED = 143


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for."""

    agent: Agent
    args: tuple[str, ...]
    settings: Settings
    workspace: Path
    env: dict[str, str]
    fresh: bool = False
    go_on: bool = False
    wait: bool = False


Tell = Callable[[str], None]


def run(wish: Wish, tell: Tell) -> int:
    """Run the agent under the log; gives the exit code. Raises WalAgentError where ours is the last word."""
    agent, env = wish.agent, wish.env
    cli = agent.locate(env)
    if agent.passthrough(wish.args):
        os.execve(cli.path, [str(cli.path), *wish.args], env)
    problem = agent.hooks_off(wish.args, wish.workspace, env)
    if problem is not None:
        raise ConfigError(problem)
    timing = Timing(wish.settings.ttl)
    block_signals()
    runtime = local.runtime_dir(env)
    local.sweep(runtime)
    agent.sweep(env, runtime)
    run_dir = local.RunDir.create(runtime, f"{secrets.token_hex(8)}")
    try:
        return _Run(wish, cli, timing, run_dir, SystemClock(), random.Random(), tell).go()
    finally:
        run_dir.end()


class _Run:
    """One run, step by step."""

    def __init__(
        self,
        wish: Wish,
        cli: Cli,
        timing: Timing,
        run_dir: local.RunDir,
        clock: Clock,
        rng: random.Random,
        tell: Tell,
    ) -> None:
        self.wish = wish
        self.cli = cli
        self.timing = timing
        self.run_dir = run_dir
        self.clock = clock
        self.rng = rng
        self.tell = tell
        self.here = local.this_host(wish.env, run_dir.lock)
        self.keys = Keys(wish.settings.job)
        tty = sys.stdin.isatty() and sys.stdout.isatty()
        self.interactive = wish.agent.is_interactive(wish.args, tty, wish.env)

    def go(self) -> int:
        bucket = open_bucket(self.wish.settings.bucket)
        try:
            opened = self._take(bucket)
            with self._owned(bucket, opened) as heartbeat:
                return self._work(opened, heartbeat)
        finally:
            bucket.close()

    def _take(self, bucket: Bucket) -> OpenedJob:
        claim = Claim(
            run=self.run_dir.run,
            host=self.here,
            agent=self.wish.agent.name,
            workspace=str(self.wish.workspace),
            ttl=self.timing.ttl,
        )
        fields = Fields(
            agent_version=self.cli.version,
            version=__version__,
            args=self.wish.args,
            interactive=self.interactive,
        )
        return take(
            bucket, self.keys, self.here, claim, fields, self.clock, self.rng, self.wish.wait, self.tell
        )

    @contextmanager
    def _owned(self, bucket: Bucket, opened: OpenedJob) -> Iterator[Heartbeat]:
        """While the job is ours: the lease is renewed and the log is written."""
        heartbeat = Heartbeat(self.timing, self.clock, opened.lease)
        stop = threading.Event()
        writing = threading.Thread(target=opened.writer.run, args=(stop,), name="writer", daemon=True)
        heartbeat.start()
        writing.start()
        try:
            yield heartbeat
        finally:
            stop.set()
            heartbeat.stop()

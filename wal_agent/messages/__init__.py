"""Carry messages and the status of a job over a server: NATS (docs/NATS.md).

Messages are a courtesy to the log: nothing here ever delays a tool call, a record or the end of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from wal_agent.config import Settings
from wal_agent.extras import require

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.inbox import Driver
    from wal_agent.messages.status import StatusPublisher


def status_listener(
    settings: Settings,
    env: Mapping[str, str],
    *,
    agent: str,
    now: Callable[[], float],
    awake: Callable[[], float],
    stalled: Callable[[float], bool],
    say: Callable[[str], None],
) -> StatusPublisher:
    """Return the listener that publishes the run's status on the servers of `settings`.

    `stalled(awake seconds)`: whether the supervisor's loop hangs. ConfigError: the extra is not installed, or a file
    of NATS_CREDS, NATS_NKEY, NATS_CA, NATS_CERT or NATS_KEY cannot be read."""
    require("nats", "nats", "--messages")
    from wal_agent.messages.connection import Connection
    from wal_agent.messages.status import StatusPublisher
    from wal_agent.messages.subjects import EVENTS

    link = Connection(settings.messages, env, say, "wal-agent status", (EVENTS,))
    return StatusPublisher(link, settings.job, agent, owner_name(env), now, lambda: not stalled(awake()))


def owner_name(env: Mapping[str, str]) -> str:
    """Return the user's name as the heartbeats have it."""
    return env.get("USER") or env.get("LOGNAME") or Path(env.get("HOME") or "/someone").name


def open_driver(
    settings: Settings,
    env: Mapping[str, str],
    bucket: Bucket,
    job: str,
    say: Callable[[str], None],
    every: float = 0.0,
    secret: bool = False,
) -> Driver:
    """Return what carries messages to and from `job`: the bucket, and the servers of `settings`, where they are named.

    `every`: seconds between two looks into the bucket where there is a server; `secret`: nothing is written to the
    server, as the job is encrypted. Close it. ConfigError as above."""
    from wal_agent.inbox import BucketDriver

    if not settings.messages:
        return BucketDriver(bucket, job)
    require("nats", "nats", "--messages")
    from wal_agent.messages.connection import Connection
    from wal_agent.messages.nats_driver import Both, NatsDriver

    link = Connection(settings.messages, env, say, "wal-agent messages", NatsDriver.STREAMS)
    return Both(BucketDriver(bucket, job), NatsDriver(link, job), every, secret)

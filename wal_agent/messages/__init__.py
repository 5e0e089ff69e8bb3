"""Carry messages and the status of a job over a server: NATS (docs/NATS.md), or what another package brings for the
scheme of its URLs (entry points of the group `wal_agent.messages`).

Messages are a courtesy to the log: nothing here ever delays a tool call, a record or the end of a run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wal_agent.config import Settings
from wal_agent.errors import ConfigError, UsageError
from wal_agent.extras import require

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.clock import Clock
    from wal_agent.inbox import Driver
    from wal_agent.messages.requests import Answers, Requests
    from wal_agent.messages.status import StatusPublisher
    from wal_agent.messages.values import KvValues
    from wal_agent.wal.keys import Keys
    from wal_agent.wal.state import State


GROUP: Final = "wal_agent.messages"
NATS: Final = ("nats", "tls")  # the schemes of its URLs
Factory = Callable[[str, str, Mapping[str, str], Callable[[str], None]], "Driver"]
"""What an entry point names: takes the URL, the job, the environment, and what prints a line to the person."""


def scheme_of(settings: Settings) -> str:
    return settings.messages.partition(":")[0]


def status_listener(
    settings: Settings,
    env: Mapping[str, str],
    *,
    agent: str,
    now: Callable[[], float],
    awake: Callable[[], float],
    stalled: Callable[[float], bool],
    say: Callable[[str], None],
) -> StatusPublisher | None:
    """Return the listener that publishes the run's status on the NATS servers of `settings`; None for other servers.

    `stalled(awake seconds)`: whether the supervisor's loop hangs. ConfigError: the extra is not installed, or a file
    of NATS_CREDS, NATS_NKEY, NATS_CA, NATS_CERT or NATS_KEY cannot be read, or no driver of such a URL is installed."""
    if scheme_of(settings) not in NATS:
        find_factory(scheme_of(settings))  # else the run would find out with the job in its hands
        return None
    require("nats", "nats", "--messages")
    from wal_agent.messages.connection import Connection
    from wal_agent.messages.status import StatusPublisher
    from wal_agent.messages.subjects import EVENTS

    link = Connection(settings.messages, env, say, "wal-agent status", (EVENTS,))
    return StatusPublisher(link, settings.job, agent, owner_name(env), now, lambda: not stalled(awake()))


def hear_beats(
    settings: Settings, env: Mapping[str, str], now: Callable[[], float], say: Callable[[str], None]
) -> Callable[[], set[tuple[str, int]]] | None:
    """Return what names the runs (job and epoch) whose heartbeats stopped on the NATS servers of `settings`; None where
    none are named. ConfigError as above."""
    if scheme_of(settings) not in NATS:
        return None
    require("nats", "nats", "--messages")
    from wal_agent.messages.beats import Beats
    from wal_agent.messages.connection import Connection

    return Beats(Connection(settings.messages, env, say, "wal-agent fleet watch"), now).silent


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
    from wal_agent.messages.both import Both

    server = find_factory(scheme_of(settings))(settings.messages, job, env, say)
    return Both(BucketDriver(bucket, job), server, every, secret)


def serve_requests(
    settings: Settings, env: Mapping[str, str], *, agent: str, run: str, answers: Answers, clock: Clock
) -> Requests | None:
    """Answer requests to the run on the NATS servers of `settings`; None for other servers. Close it."""
    if scheme_of(settings) not in NATS:
        return None
    from wal_agent.messages.connection import Connection
    from wal_agent.messages.requests import Requests
    from wal_agent.messages.subjects import persona_of

    link = Connection(settings.messages, env, lambda _: None, "wal-agent requests")  # the status listener reports
    persona = persona_of(agent, owner_name(env), settings.job) if settings.synadia == "on" else None
    return Requests(link, settings.job, run, answers, clock, persona)


def check_needs(settings: Settings) -> None:
    """UsageError: a setting needs a NATS server, and none is named, or the server may not have what it would get."""
    for option, wanted in (("--synadia", settings.synadia == "on"), ("--state nats", settings.state == "nats")):
        if wanted and scheme_of(settings) not in NATS:
            raise UsageError(f"{option} needs a NATS server.", "Name it: --messages nats://HOST:4222")
    if settings.state == "nats" and (settings.encryption_key_file or settings.encryption_key_command):
        raise UsageError(
            "--state nats would keep values of an encrypted job in clear on the NATS server.",
            "Leave values in the log: --state log",
        )


def open_values(
    settings: Settings, env: Mapping[str, str], bucket: Bucket, keys: Keys, *, run: State | None = None
) -> KvValues | None:
    """Return the values of a job that are on the NATS servers of `settings`; None where they are in the log.

    `run`: the log's state as of the opening of the run that writes; None: only read. Close it. Unavailable and the
    other errors of the bucket; ConfigError and UsageError as above."""
    if settings.state != "nats":
        return None
    check_needs(settings)
    require("nats", "nats", "--state nats")
    from wal_agent.messages.connection import Connection
    from wal_agent.messages.values import KvValues

    # The first segment is random and kept for ever (R4): it names the job by whatever URL its bucket is reached.
    first = hashlib.sha256(bucket.get(keys.segment(1)).data).hexdigest()[:12]
    name = f"walagent-{re.sub(r'[^A-Za-z0-9_-]', '-', keys.job)[:60]}-{first}"
    link = Connection(settings.messages, env, lambda _: None, "wal-agent state")  # the status listener reports outages
    if run is None:
        return KvValues(link, name)
    # A closed job in which no agent was started since is one that `wal-agent rm` has emptied (decision 045).
    fresh = run.home == 0 and bool(run.openings) and run.openings[-1].opening.cause == "closed"
    return KvValues(link, name, run.epoch, fresh=fresh, base=run.state_version)


def _open_nats(url: str, job: str, env: Mapping[str, str], say: Callable[[str], None]) -> Driver:
    require("nats", "nats", "--messages")
    from wal_agent.messages.connection import Connection
    from wal_agent.messages.nats_driver import NatsDriver

    return NatsDriver(Connection(url, env, say, "wal-agent messages", NatsDriver.STREAMS), job)


def find_factory(scheme: str) -> Factory:
    """Return what makes the driver for URLs of `scheme`. ConfigError: nothing does, or it cannot be imported."""
    if scheme in NATS:
        return _open_nats
    from importlib.metadata import entry_points

    for found in entry_points(group=GROUP, name=scheme):
        try:
            factory: Factory = found.load()
        except Exception as error:  # another package's code
            raise ConfigError(
                f"The driver of {scheme}:// messages ({found.value}) cannot be loaded: {error}."
            ) from error
        return factory
    known = sorted({*NATS, *entry_points(group=GROUP).names})
    raise ConfigError(
        f"No driver for messages over {scheme}:// is installed.", f"Known: {', '.join(f'{each}://' for each in known)}."
    )

"""Options that several commands share, and the job that they mean."""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.retry import RetryBucket
from wal_agent.cli.screen import say
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.consent import ConsentNeeded
from wal_agent.errors import UsageError
from wal_agent.redact import redact
from wal_agent.supervise.settings import load
from wal_agent.wal.keys import Keys

AgentName = Annotated[
    str,
    typer.Option(
        "--agent",
        help="Which agent's job (see: wal-agent agents); it names the job where no --job is given.",
        metavar="NAME",
    ),
]
BucketUrl = Annotated[
    str | None,
    typer.Option(
        "--bucket",
        help="Where the log is: gs://, s3:// or file:///folder (env WAL_AGENT_BUCKET; default: a local folder).",
        metavar="URL",
    ),
]
JobName = Annotated[
    str | None,
    typer.Option("--job", help="Name of the job (env WAL_AGENT_JOB; default: <agent>-<folder>).", metavar="NAME"),
]
KeyFile = Annotated[
    str | None,
    typer.Option("--encryption-key-file", help="File with the key that the job is encrypted with.", metavar="FILE"),
]
KeyCommand = Annotated[
    str | None,
    typer.Option("--encryption-key-command", help="Command that prints that key.", metavar="COMMAND"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
NAMES = frozenset(("bucket", "job"))  # the settings that say which job is meant


@dataclass(frozen=True, slots=True)
class Place:
    """A job in a bucket, as the options, the environment and wal-agent.toml say."""

    settings: Settings
    bucket: Bucket
    keys: Keys
    workspace: Path
    key_id: str
    """Of the encryption key that was given; empty for none."""

    def options(self, agent: str) -> str:
        """What a command for this very job has to say, with a blank before each; never a secret."""
        said = {"agent": agent, "job": self.keys.job}
        if self.settings.sources.get("bucket") == "flag" and redact(self.settings.bucket) == self.settings.bucket:
            said["bucket"] = self.settings.bucket
        for name in ("encryption_key_file", "encryption_key_command"):
            value = getattr(self.settings, name)
            if self.settings.sources.get(name) == "flag" and value and redact(value) == value:
                said[name.replace("_", "-")] = value
        return "".join(f" --{name} {shlex.quote(value)}" for name, value in said.items())


def settings_for(
    agent: str, workspace: Path, flags: Mapping[str, object], uses: Collection[str] | None = None
) -> Settings:
    """As config.load; at a terminal the person is asked for the consent that is missing."""
    from wal_agent.cli.trust import asked

    try:
        return load(agent, workspace, os.environ, flags, uses=uses)
    except ConsentNeeded as needed:
        if not asked(needed.wants, workspace):
            raise
    return load(agent, workspace, os.environ, flags, uses=uses)


def say_bucket(settings: Settings) -> None:
    """Who chose the bucket, before it is asked for anything."""
    if settings.origin:
        say(settings.origin)


def place(
    agent: str,
    bucket: str | None,
    job: str | None,
    key_file: str | None = None,
    key_command: str | None = None,
    *,
    as_a_run: bool = False,
) -> Place:
    """Open the bucket of the job that the user means; raises ConfigError, UsageError, Denied (the key), and what the
    bucket raises. `as_a_run`: all settings count, as they would for a run in this folder."""
    from wal_agent.agents import AGENTS
    from wal_agent.bucket.encryption import EncryptedBucket, load_key
    from wal_agent.bucket.encryption import key_id as id_of

    if agent not in AGENTS:
        raise UsageError(f"{agent!r} is not an agent that wal-agent knows.", f"Known: {', '.join(sorted(AGENTS))}.")
    workspace = Path.cwd().resolve()
    flags = {
        "bucket": bucket,
        "job": job,
        "encryption_key_file": key_file,
        "encryption_key_command": key_command,
    }
    settings = settings_for(agent, workspace, flags, None if as_a_run else NAMES)
    say_bucket(settings)
    key = load_key(settings.encryption_key_file, settings.encryption_key_command, os.environ)
    opened = EncryptedBucket(open_bucket(settings.bucket), key)
    retrying = RetryBucket(opened, SystemClock(), random.Random())
    return Place(settings, retrying, Keys(settings.job), workspace, id_of(key))

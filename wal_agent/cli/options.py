"""Options that several commands share, and the job that they mean."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.retry import RetryBucket
from wal_agent.clock import SystemClock
from wal_agent.config import Settings, load
from wal_agent.errors import UsageError
from wal_agent.wal.keys import Keys

AgentName = Annotated[str, typer.Option("--agent", help="Which agent's job, where no --job is given.", metavar="NAME")]
BucketUrl = Annotated[
    str | None,
    typer.Option(
        "--bucket",
        help="Where the log is: file:///folder (env WAL_AGENT_BUCKET; default: a local folder).",
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


@dataclass(frozen=True, slots=True)
class Place:
    """A job in a bucket, as the options, the environment and wal-agent.toml say."""

    settings: Settings
    bucket: Bucket
    keys: Keys
    workspace: Path


def place(agent: str, bucket: str | None, job: str | None) -> Place:
    """Open the bucket of the job that the user means; raises ConfigError, UsageError and what the bucket raises."""
    from wal_agent.agents import AGENTS

    if agent not in AGENTS:
        raise UsageError(f"{agent!r} is not an agent that wal-agent knows.", f"Known: {', '.join(sorted(AGENTS))}.")
    workspace = Path.cwd().resolve()
    settings = load(agent, workspace, os.environ, {"bucket": bucket, "job": job})
    bucket_ = RetryBucket(open_bucket(settings.bucket), SystemClock(), random.Random())
    return Place(settings, bucket_, Keys(settings.job), workspace)

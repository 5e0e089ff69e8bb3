"""`wal-agent pause`: a job rests until a time, and then goes on by itself, or on any other machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.cli.screen import say


def pause(
    lasts: Annotated[
        str | None, typer.Option("--for", help="How long: 30s, 10m, 2h, 1d; at most 31d.", metavar="DURATION")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Until when (UTC): 14:30, or 2026-11-22T14:30:00Z.", metavar="TIME"),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="What it waits for; `status` and the agent are told.", metavar="TEXT")
    ] = "",
    end: Annotated[bool, typer.Option("--end", help="End a pause now.")] = False,
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Save a job, end its agent, and go on with it later: by itself where it ran, or on whichever machine starts it.

    Works inside the agent's own tools, from another terminal of the machine that runs it, and from anywhere for a job
    that nobody runs. A start of a job that is paused waits until the pause is over.
    """
    from json import dumps

    import msgspec

    from wal_agent.cli.options import place
    from wal_agent.clock import SystemClock
    from wal_agent.errors import UsageError
    from wal_agent.supervise.pause import PauseRequest, ask_this_run, end_pause, pause_job

    if end and (lasts or until or reason):
        raise UsageError("--end goes alone.", "Or say --for or --until, for another pause in its place.")
    wanted = None if end else PauseRequest(lasts, until, reason)
    said = ask_this_run(os.environ, wanted, SystemClock()) if wanted and bucket is None and job is None else None
    if said is None:
        at = place(agent, bucket, job, encryption_key_file, encryption_key_command)
        said = end_pause(at.bucket, at.keys) if wanted is None else pause_job(at.bucket, at.keys, wanted, os.environ)
    if json:
        sys.stdout.write(dumps(msgspec.to_builtins(said)) + "\n")
    else:
        say(said.said)

"""`wal-agent ack`: a person says what became of a call that nobody else can settle (I8)."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.cli.screen import say


def ack(
    call: Annotated[int, typer.Argument(help="The call's number, as `wal-agent status` shows it.")],
    done: Annotated[bool, typer.Option("--done", help="It had its effect.")] = False,
    not_done: Annotated[bool, typer.Option("--not-done", help="It had no effect.")] = False,
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
) -> None:
    """Settle a call that was in flight at a crash: you looked, and say whether it happened."""
    from wal_agent import notify
    from wal_agent.cli.options import place
    from wal_agent.errors import UsageError
    from wal_agent.supervise.acknowledge import acknowledge_call
    from wal_agent.supervise.callers import require_person

    if done == not_done:
        raise UsageError("Say either --done or --not-done.")
    require_person(f"wal-agent ack {call} {'--done' if done else '--not-done'}")
    at = place(agent, bucket, job, encryption_key_file, encryption_key_command)
    acknowledge_call(at.bucket, at.keys, at.settings.ttl, call, done, os.environ, at.key_id)
    notify.acknowledge(os.environ, at.settings.bucket, at.keys.job)
    say(f"call #{call} of job {at.keys.job} is settled: a person says that it was {'done' if done else 'not done'}.")

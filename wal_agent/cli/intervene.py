"""`wal-agent unlock`: a person takes a job from an owner that is not coming back (R8)."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.cli.screen import lines, say


def unlock(
    epoch: Annotated[
        int | None,
        typer.Option("--epoch", help="The epoch that `wal-agent status` shows: the lease that you mean.", metavar="N"),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="You know that the owner's host is off: the next start need not wait.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; the old owner and `status` say it.")] = "",
    damaged: Annotated[
        bool, typer.Option("--damaged", help="The lease cannot be read: put a sound one in its place.")
    ] = False,
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Take a job from its owner, so that the next `wal-agent run` anywhere can have it.

    An owner that is dead loses its lease by itself after the ttl; this is for one that hangs, or whose host you know to
    be off (--now). An owner that lives is stopped: its next heartbeat finds the lease gone, and it exits with 76.
    Where nobody holds the job there is nothing to do, and the exit code is 0; where there is no such job it is 64.
    """
    from json import dumps

    import msgspec

    from wal_agent.cli.options import place
    from wal_agent.supervise.callers import require_person
    from wal_agent.supervise.unlock import UnlockRequest, repair_lease
    from wal_agent.supervise.unlock import unlock as take_away

    wish = UnlockRequest(epoch, now, reason)
    require_person("wal-agent unlock")
    at = place(agent, bucket, job, encryption_key_file, encryption_key_command)
    if damaged:
        done = repair_lease(at.bucket, at.keys, wish, at.settings.ttl, at.key_id)
    else:
        done = take_away(at.bucket, at.keys, wish, os.environ)
    if json:
        sys.stdout.write(dumps(msgspec.to_builtins(done)) + "\n")
        raise typer.Exit
    say(done.said)
    lines([f"  {note}" for note in done.notes])

"""`wal-agent ack`, `pause` and `unlock`: what a person decides about a job."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.text import lines, say


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
    from wal_agent.cli.options import open_job_context
    from wal_agent.errors import UsageError
    from wal_agent.supervise.callers import require_person
    from wal_agent.supervise.intervene import acknowledge_call

    if done == not_done:
        raise UsageError("Say either --done or --not-done.")
    require_person(f"wal-agent ack {call} {'--done' if done else '--not-done'}")
    at = open_job_context(agent, bucket, job, encryption_key_file, encryption_key_command)
    acknowledge_call(at.bucket, at.keys, at.settings.ttl, call, done, os.environ, at.key_id)
    notify.acknowledge(os.environ, at.settings.bucket, at.keys.job)
    say(f"call #{call} of job {at.keys.job} is settled: a person says that it was {'done' if done else 'not done'}.")


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

    from wal_agent.cli.options import open_job_context
    from wal_agent.clock import SystemClock
    from wal_agent.errors import UsageError
    from wal_agent.supervise.intervene import PauseRequest, ask_this_run, end_pause, pause_job

    if end and (lasts or until or reason):
        raise UsageError("--end goes alone.", "Or say --for or --until, for another pause in its place.")
    wanted = None if end else PauseRequest(lasts, until, reason)
    said = ask_this_run(os.environ, wanted, SystemClock()) if wanted and bucket is None and job is None else None
    if said is None:
        at = open_job_context(agent, bucket, job, encryption_key_file, encryption_key_command)
        said = end_pause(at.bucket, at.keys) if wanted is None else pause_job(at.bucket, at.keys, wanted, os.environ)
    if json:
        sys.stdout.write(dumps(msgspec.to_builtins(said)) + "\n")
    else:
        say(said.said)


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

    from wal_agent.cli.options import open_job_context
    from wal_agent.supervise.callers import require_person
    from wal_agent.supervise.intervene import UnlockRequest, repair_lease
    from wal_agent.supervise.intervene import unlock as take_away

    wish = UnlockRequest(epoch, now, reason)
    require_person("wal-agent unlock")
    at = open_job_context(agent, bucket, job, encryption_key_file, encryption_key_command)
    if damaged:
        done = repair_lease(at.bucket, at.keys, wish, at.settings.ttl, at.key_id)
    else:
        done = take_away(at.bucket, at.keys, wish, os.environ)
    if json:
        sys.stdout.write(dumps(msgspec.to_builtins(done)) + "\n")
        raise typer.Exit
    say(done.said)
    lines([f"  {note}" for note in done.notes])

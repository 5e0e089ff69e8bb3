"""`wal-agent ack`, `settle`, `pause`, `stop`, `unlock`, `rename`, `rm` and `gc`: decisions about a job, and deleting
what it no longer needs.

`gc` works also for a job that nobody runs (R4). It takes no lease and stops nobody: wal/retention.py says why anybody
may do this at any time.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict, replace

from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.display import can_ask
from wal_agent.cli.options import (
    HERE,
    AgentName,
    AsJson,
    BucketUrl,
    JobName,
    JobOptions,
    KeyCommand,
    KeyFile,
    complete_job,
    with_job,
)
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, LeaseHeld, PersonNeeded, UsageError, WalAgentError
from wal_agent.redact import redact
from wal_agent.text import answer, command, lines, say, size

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext
    from wal_agent.operate.remove_job import Removal
    from wal_agent.operate.stop_job import Stopped
    from wal_agent.wal.retention import RetentionResult


class Ack(JsonAnswer, frozen=True):
    """`wal-agent ack`. `what`: the call's number, or the step's name; `done`: whether a person says that it was."""

    job: str
    what: str
    done: bool


class Rename(JsonAnswer, frozen=True):
    """`wal-agent rename`. `name`: the display name now, `before`: the one before; "" for none."""

    job: str
    name: str
    before: str


@with_job
def ack(
    call: Annotated[
        str,
        typer.Argument(help="The call's number, or the step's name, as `wal-agent status` shows it.", metavar="N|STEP"),
    ],
    done: Annotated[bool, typer.Option("--done", help="It happened.")] = False,
    not_done: Annotated[bool, typer.Option("--not-done", help="It did not happen.")] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Resolve a call or step that a crash interrupted: you checked, and say whether it happened."""
    from wal_agent import notify
    from wal_agent.operate.acknowledge import acknowledge_call
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.steps import check_name

    if done == not_done:
        raise UsageError("Say either --done or --not-done.")
    what = int(call) if call.isascii() and call.isdigit() and len(call) < 19 else check_name(call)
    require_person(f"wal-agent ack {call} {'--done' if done else '--not-done'}")
    at = which.open(asks=True)
    acknowledge_call(at.access, what, done)
    notify.acknowledge(os.environ, at.settings.bucket, at.keys.job)
    if json:
        answer_json(Ack(at.keys.job, call, done))
        return
    named = f"call #{what}" if isinstance(what, int) else f"step {what}"
    say(f"{named} of job {at.keys.job} is settled: a person says that it was {'done' if done else 'not done'}.")


def settle(
    call: Annotated[int, typer.Argument(help="The call's number, as the recovery prompt shows it.", metavar="N")],
    because: Annotated[str, typer.Option("--because", help="What you found out, and how.", metavar="TEXT")],
) -> None:
    """For the agent: record what you found out about a call that the recovery prompt asks about.

    The log keeps it as the agent's word, and no later recovery asks the agent again. The call itself stays open until
    evidence or a person (`wal-agent ack`) settles it.
    """
    from wal_agent.operate.acknowledge import answer_for_call

    answer_for_call(os.environ, call, because)
    say(f"recorded. Call #{call} stays open until a person confirms it (`wal-agent ack`).")


@with_job
def pause(
    lasts: Annotated[
        str | None, typer.Option("--for", help="How long: 30s, 10m, 2h, 1d; at most 31d.", metavar="DURATION")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Until when: 14:30 (local), or 2026-11-22T14:30:00Z.", metavar="TIME"),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; shown in `status` and to the agent.", metavar="TEXT")
    ] = "",
    end: Annotated[bool, typer.Option("--end", help="End a pause now.")] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Save a job, end its agent and resume later: automatically here, or wherever the job is started.

    Works inside the agent's own tools, from another terminal of the machine that runs it, and from anywhere for a job
    that nobody runs. A start of a job that is paused waits until the pause is over.
    """
    from wal_agent.operate.pause import PauseRequest, ask_this_run, end_pause, pause_job

    if end and (lasts or until or reason):
        raise UsageError("--end goes alone.", "Or say --for or --until, for another pause in its place.")
    wanted = None if end else PauseRequest(lasts, until, reason)
    said = ask_this_run(os.environ, wanted, SystemClock()) if wanted and not which.is_named else None
    if said is None:
        at = which.open()
        said = end_pause(at.bucket, at.keys) if wanted is None else pause_job(at.bucket, at.keys, wanted, os.environ)
    if json:
        answer_json(said)
    else:
        say(said.said)


@with_job
def stop(
    done: Annotated[
        bool, typer.Option("--done", help="Also close the job; the next start begins a new session.")
    ] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Stop the job's run cleanly, here or on its machine: save everything, then end the agent.

    A later `wal-agent run` or `wal-agent resume` continues the job, here or on another machine; with --done it is not
    continued. A run on another machine gets the request through the bucket, and answers within 30 s, or 5 minutes while
    its agent waits for a person. The command waits for that, 10 minutes at most; Ctrl-C leaves, and the request stays.
    Where the run's settings forbid it, the command says so and ends with 78.
    """
    from wal_agent.supervise.ancestry import require_person

    require_person("wal-agent stop")
    at = which.open()
    stopped = stop_run(at, done)
    if json:
        answer_json(stopped)
    else:
        say(stopped.said)


def stop_run(at: JobContext, done: bool = False) -> Stopped:
    """Stop the job's run wherever it is, see operate/stop_job.py."""
    from wal_agent.cli.messages import message_driver
    from wal_agent.inbox import Message
    from wal_agent.operate.stop_job import StopRequest, stop_job

    def send(message: Message) -> None:
        with message_driver(at) as driver:
            driver.send(message)

    request = StopRequest(at.options(), at.workspace, done, send, say)
    return stop_job(at.access, SystemClock(), request)


@with_job
def unlock(
    epoch: Annotated[
        int | None,
        typer.Option("--epoch", help="The epoch that `wal-agent status` shows.", metavar="N"),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="The machine is off for good: the next start need not wait.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown in `status` and on the old machine.")] = "",
    damaged: Annotated[bool, typer.Option("--damaged", help="Replace a lease that cannot be read.")] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Take a job away from a machine that hangs or is gone, so that any machine can run it.

    A dead owner loses its lease after the ttl anyway; this is for one that hangs, or whose host is certainly off
    (--now). A live owner stops: its next heartbeat finds the lease gone, and it exits with 76. If nobody holds the job
    there is nothing to do, and the exit code is 0; if there is no such job it is 64.
    """
    from wal_agent.operate.unlock import UnlockRequest, repair_lease
    from wal_agent.operate.unlock import unlock as take_away
    from wal_agent.supervise.ancestry import require_person

    request = UnlockRequest(epoch, now, reason)
    require_person("wal-agent unlock")
    at = which.open(asks=True)
    if damaged:
        done = repair_lease(at.bucket, at.keys, request, at.settings.ttl, at.key_id)
    else:
        done = take_away(at.bucket, at.keys, request, os.environ)
    if json:
        answer_json(done)
        raise typer.Exit
    say(done.said)
    lines([f"  {note}" for note in done.notes])


def rename(
    names: Annotated[
        list[str],
        typer.Argument(
            help="The job, unless it is this folder's or --job names it, and its new name.", metavar="[JOB] NEW"
        ),
    ],
    agent: AgentName = None,
    bucket: BucketUrl = None,
    job: JobName = None,
    json: AsJson = False,
) -> None:
    """Give a job a display name, which every command and `--job` take like its own name.

    Its own name stays, and goes before any display name; `list` and `status` show both. A job has one display name; its
    own name as NEW takes that away. A running job can be renamed. All who share the bucket see the new name at once.
    Exit code 64: the name is taken; 75: another person renamed the job at the same moment.
    """

    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.identity import remember_alias
    from wal_agent.wal.names import is_job_there, rename_job

    if len(names) > 2 or (len(names) == 2 and job is not None):
        raise UsageError("Name the job once, and then its new name.", "For example: wal-agent rename JOB NEW")
    require_person("wal-agent rename")
    *typed, new = names
    at = JobOptions(agent, bucket, typed[0] if typed else job).open(asks=True)
    if not is_job_there(at.bucket, at.keys.job):
        raise at.missing()
    own = at.keys.job
    before = rename_job(at.bucket, own, new, os.environ, SystemClock(), random.Random())
    with suppress(OSError):  # for completion only
        remember_alias(os.environ, at.bucket.url, own, "" if new == own else new)
    if json:
        answer_json(Rename(own, "" if new == own else new, before))
        return
    was = f", and no longer {before}" if before not in ("", new) else ""
    say(f"job {own} has {'only its own name now' if new == own else f'the display name {new} now'}{was}.")


def rm(
    job: Annotated[str, typer.Argument(help="The job's name (`wal-agent list`).", autocompletion=complete_job)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bucket: BucketUrl = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Delete a job from the bucket for good: conversation, files, calls, values, checkpoints. Asks at a terminal.

    Refused while the job runs (75), and for a task as long as its caller's job exists. The jobs of its own tasks stay.
    A few small objects stay, which lock out an old run that may still be alive on another machine: the lease, each
    opening (with the arguments that were typed) and the record before it. `wal-agent list` no longer shows the job, and
    its name can be used again. The files of the folder are not touched. What this machine keeps of the job goes too:
    copies from before a restore, captures, transcripts, the search index, and the folders of its runs.
    """

    from wal_agent.operate.leave import forget_job
    from wal_agent.operate.remove_job import foresee_removal, names_task, remove_job
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.wal.names import rename_job

    if not dry_run:
        require_person(f"wal-agent rm {job}")
    at = JobOptions(None, bucket, job, encryption_key_file, encryption_key_command).open()
    clock = SystemClock()
    job = at.keys.job
    state = at.state()
    if state.task is not None and names_task(at.bucket, state.task.job, job):
        raise UsageError(
            f"Job {job} is a task of job {state.task.job}, whose log names it as a trace, so it stays as long as that.",
            f"Delete that one first: {command(f'rm {state.task.job}', at.bucket_option())}",
        )
    found = foresee_removal(at.bucket, at.keys, state)
    if dry_run:
        if json:
            answer_json(replace(found, dry_run=True))
        else:
            answer(describe_removal(found, "would be deleted"))
        return
    if not yes:
        lines(describe_removal(found, "would be deleted"))
        if not can_ask():
            typed = command(f"rm {job}", at.bucket_option(), "--yes")
            raise PersonNeeded("There is no terminal to ask at, so nothing was deleted.", f"If you want it: {typed}")
        typer.confirm(f"Delete job {job} for good?", default=False, abort=True, err=True)
    done = remove_job(at.access, clock)
    lease = at.lease()
    forget_job(os.environ, at.bucket, at.keys, state, lease.doc.run if lease is not None else "")
    with suppress(WalAgentError):  # a display name of no job counts for nothing
        rename_job(at.bucket, job, job, os.environ, clock, random.Random())
    if json:
        answer_json(done)
    else:
        answer(describe_removal(done, "deleted"))


def describe_removal(found: Removal, verb: str) -> list[str]:
    """What goes with a job, in lines."""
    segments, snapshots, blobs = found.segments.count, found.snapshots.count, found.blobs.count
    parts = [count_of(segments, "segment"), count_of(snapshots, "snapshot"), count_of(blobs, "blob")]
    rows = [f"job {found.job}: {parts[0]}, {parts[1]} and {parts[2]} ({size(found.size)}) {verb}"]
    if found.open_calls:
        calls = f"{', '.join(found.open_calls[:5])}{' ...' if len(found.open_calls) > 5 else ''}"
        rows.append(f"  open calls: {calls}; whether that happened is not checked any more")
    return rows


@with_job
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Delete data that the job no longer needs: older than a day and covered by two snapshots.

    A run does that by itself, now and then. This command is for jobs that no longer run, by hand or from cron. It may
    be used at any time, also while the job runs. If a job at rest keeps 50 or more blobs of its last run that nothing
    needs, it is opened for a moment, under an epoch of its own, and its log begins there.
    """

    from wal_agent.operate.remove_job import blobs_at_rest, collect, collect_at_rest
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.wal.retention import Retention, RetentionResult, tally

    if not dry_run:
        require_person("wal-agent gc")
    at = which.open(asks=True)
    seen = at.lease()
    opened = blobs_at_rest(at.bucket, at.keys, seen)
    if dry_run:
        due = Retention(at.bucket, at.keys).plan()
        blobs = due.loose if opened is None else opened
        done = RetentionResult(tally(due.segments), tally(due.snapshots), blobs, False, due.since, due.why)
    elif opened is None:
        done = collect(at.bucket, at.keys)
    else:
        try:
            done = collect_at_rest(at.access)
        except (Damaged, LeaseHeld) as error:
            done = replace(collect(at.bucket, at.keys), why=error.what)
    gone = seen is None and not (done.segments.count or done.blobs.count)
    if gone and next(iter(at.bucket.list(at.keys.log)), None) is None:
        raise at.missing()
    if json:
        from wal_agent.operate.remove_job import Collected

        answer_json(Collected(**asdict(done), job=at.keys.job, bucket=redact(at.bucket.url), dry_run=dry_run))
    else:
        answer([f"job {at.keys.job}: {describe_result(done, 'would be deleted' if dry_run else 'deleted')}"])


def describe_result(done: RetentionResult, verb: str) -> str:
    """What went, or why nothing did, in one line."""
    parts = [
        f"{count_of(done.segments.count, 'segment')} ({size(done.segments.size)})" if done.segments.count else "",
        count_of(done.snapshots.count, "snapshot") if done.snapshots.count else "",
        f"{count_of(done.blobs.count, 'blob')} ({size(done.blobs.size)})" if done.blobs.count else "",
    ]
    *most, last = [part for part in parts if part] or ["nothing"]
    what = f"{', '.join(most)} and {last}" if most else last
    since = f"; kept since record {done.since:,}" if done.since else ""
    return f"{what} {verb}{since}{f' ({done.why})' if done.why else ''}"


def count_of(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"

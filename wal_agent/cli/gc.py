"""`wal-agent gc`: deletes what a job no longer needs, also of a job that nobody runs (R4).

It takes no lease and stops nobody: wal/retention.py says why anybody may do this at any time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.text import say, size

if TYPE_CHECKING:
    from wal_agent.wal.retention import Retention, RetentionResult

MAX_BLOBS = 10_000  # blobs whose names are held in memory


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; say what would be deleted.")] = False,
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Delete what the job no longer needs: what is older than a day and covered by two snapshots.

    A run does that by itself, now and then. This is for jobs that nobody runs any more, by hand or from cron. It may be
    used at any time, also while the job runs.
    """
    from json import dumps

    import msgspec

    from wal_agent.bucket.encryption import wrong_key_error
    from wal_agent.cli.options import open_job_context
    from wal_agent.supervise.callers import require_person
    from wal_agent.wal import lease as leases
    from wal_agent.wal.retention import Retention

    if not dry_run:
        require_person("wal-agent gc")
    at = open_job_context(agent, bucket, job, encryption_key_file, encryption_key_command)
    seen = leases.read_lease(at.bucket, at.keys)
    if seen is not None and (problem := wrong_key_error(at.keys.job, seen.doc.key, at.key_id)):
        raise problem
    retention = Retention(at.bucket, at.keys, most=MAX_BLOBS)
    done = preview_collection(retention) if dry_run else collect_all(retention)
    if json:
        told = {"job": at.keys.job, "bucket": at.bucket.url, "dry_run": dry_run, **msgspec.to_builtins(done)}
        sys.stdout.write(dumps(told) + "\n")
    elif seen is None and not (done.segments.count or done.blobs.count):
        say(f"no job {at.keys.job} in {at.bucket.url}.")
    else:
        say(f"job {at.keys.job}: {describe_result(done, 'would be deleted' if dry_run else 'deleted')}")


def preview_collection(retention: Retention) -> RetentionResult:
    """What a run of it would do."""
    from wal_agent.wal.retention import RetentionResult, tally

    due = retention.plan()
    return RetentionResult(tally(due.segments), tally(due.snapshots), due.loose, False, due.since, due.why)


def collect_all(retention: Retention) -> RetentionResult:
    """Run it until nothing is left that may go."""
    from dataclasses import replace

    done = retention.run()
    while done.more:
        again = retention.run()
        done = replace(again, **{n: getattr(done, n) + getattr(again, n) for n in ("segments", "snapshots", "blobs")})
    return done


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

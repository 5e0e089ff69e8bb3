"""`wal-agent log`."""

from __future__ import annotations

import sys
from collections import deque
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.cli.screen import lines, say

CRASHES = ("opening", "recovery", "run_ended")


def log(
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    n: Annotated[
        int, typer.Option("-n", "--number", min=0, help="Show the newest N records; 0 = all that are kept.")
    ] = 30,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Oldest first, then each new one as it comes, until Ctrl-C.")
    ] = False,
    crashes: Annotated[bool, typer.Option("--crashes", help="Only starts, ends and recoveries.")] = False,
    json: AsJson = False,
) -> None:
    """The job's records, newest first (with --json: oldest first, one object a line). Secrets are redacted.

    It reads the log from its end, as far as it shows it; with -n 0 the whole log is read and checked. Where some
    records cannot be read or are missing the others are shown, and the exit code is 73.
    """
    from wal_agent.cli.entries import as_json, as_line, entries_of
    from wal_agent.cli.options import place
    from wal_agent.errors import Damaged
    from wal_agent.wal.browse import read_newest

    at = place(agent, bucket, job, encryption_key_file, encryption_key_command)
    page = read_newest(at.bucket, at.keys, n, crashes)
    newest = deque((e for e in entries_of(page.segments) if not crashes or e.kind in CRASHES), maxlen=n or None)
    damaged = page.damaged
    if json:
        for entry in newest:
            sys.stdout.write(as_json(entry) + "\n")
        if follow:
            sys.stdout.flush()
    elif newest:
        lines([as_line(entry) for entry in (newest if follow else reversed(newest))])
    elif not damaged:
        say(f"no records of job {at.keys.job} in {at.bucket.url}.")
    if not json and not (page.whole and page.passed == 0):
        passed = f", but for {page.passed} that the snapshots say hold none of these" if page.passed else ""
        whole = f"wal-agent log{at.options(agent)} -n 0"
        lines([f"Only records {page.since} to {page.last} were read and checked{passed}. To check all: {whole}"])
    if damaged:
        more = f" So are {len(damaged) - 3} more." if len(damaged) > 3 else ""
        what = " ".join(f"{found.what[:1].upper()}{found.what[1:]}" for found in damaged[:3])
        raise Damaged(f"{what}{more}", f"What can still be had: wal-agent status{at.options(agent)}")
    if follow:
        from wal_agent.cli.watching import following

        following(at, page.last, CRASHES if crashes else None, json=json)

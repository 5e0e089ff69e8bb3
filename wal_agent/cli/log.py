"""`wal-agent log`."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.cli.screen import lines, say

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.wal.keys import Keys
    from wal_agent.wal.reader import Reached

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

    Where some cannot be read the others are shown, and the exit code is 73.
    """
    from wal_agent.cli.entries import Entry, as_json, as_line, entries
    from wal_agent.cli.options import place
    from wal_agent.errors import Damaged

    at = place(agent, bucket, job, encryption_key_file, encryption_key_command)
    reached = how_far(at.bucket, at.keys)
    newest: deque[Entry] = deque(maxlen=n or None)
    damaged: list[Damaged] = []
    seen = 0
    for entry in entries(at.bucket, at.keys, damaged):
        seen = entry.seq
        if not crashes or entry.kind in CRASHES:
            newest.append(entry)
    if not damaged and seen < reached.seq:
        damaged.append(Damaged(reached.lacks(at.keys.job, seen, b"")))
    if json:
        for entry in newest:
            sys.stdout.write(as_json(entry) + "\n")
        if follow:
            sys.stdout.flush()
    elif newest:
        lines([as_line(entry) for entry in (newest if follow else reversed(newest))])
    elif not damaged:
        say(f"no records of job {at.keys.job} in {at.bucket.url}.")
    if damaged:
        more = f" So are {len(damaged) - 1} more." if len(damaged) > 1 else ""
        raise Damaged(f"{damaged[0].what}{more}", "What can still be had: wal-agent status")
    if follow:
        from wal_agent.cli.watching import following

        following(at, seen, CRASHES if crashes else None, json=json)


def how_far(bucket: Bucket, keys: Keys) -> Reached:
    """How far the log had come by the lease; nothing is known where that cannot be read: the records are shown."""
    from wal_agent.errors import Damaged
    from wal_agent.wal import lease as leases
    from wal_agent.wal.reader import Reached

    try:
        return Reached.by(leases.read(bucket, keys))
    except Damaged:
        return Reached()

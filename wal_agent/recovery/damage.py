"""Errors for a log that is not readable to its end: what is wrong, what can be restored, and how to go on."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.bucket.base import Bucket
from wal_agent.errors import BucketError, Damaged
from wal_agent.text import shorten, timestamp
from wal_agent.wal.blob_check import BlobProblem
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease_doc import StoredLease
from wal_agent.wal.reader import Damage, KnownEnd, Replay, check_end, read_tail, replay

RESTORE_HINT = "Write what can be had into a new folder with `wal-agent restore --to DIR`"
NEW_JOB_HINT = "work on under another name: --job NAME."


def damaged_log_error(d: Damage) -> Damaged:
    """Build the error for a damaged log."""
    if d.good < 1:
        return Damaged(f"{d.why} Nothing before it can be restored.", f"{NEW_JOB_HINT[:1].upper()}{NEW_JOB_HINT[1:]}")
    what = f"{d.why} Everything up to record {d.good} ({timestamp(d.time)}) can be restored."
    return Damaged(what, f"Write it into a new folder with `wal-agent restore --at {d.good} --to DIR`; {NEW_JOB_HINT}")


def with_hint(error: Damaged) -> Damaged:
    """Add how to go on to `error`, of a session whose log is sound."""
    return Damaged(error.what, f"{RESTORE_HINT}; {NEW_JOB_HINT}")


def lost_blobs_error(lacks: Sequence[BlobProblem], whole: Replay | None, keys: Keys, options: str = "") -> Damaged:
    """Build the error for missing blobs. `whole`: the newest record that can be restored; `options`: see
    `restore_command`."""
    first, others = lacks[0], len(lacks) - 1
    more = f" So {'is 1 more' if others == 1 else f'are {others} more'}." if others else ""
    what = f"{first.why[:-1]}, and {shorten(first.what, 100)} needs it.{more}"
    return Damaged(what, restore_hint(whole, keys, options) or f"{RESTORE_HINT}; {NEW_JOB_HINT}")


def restore_hint(whole: Replay | None, keys: Keys, options: str = "") -> str:
    """Return the command for the newest record that can be restored whole; "" for none."""
    if whole is None:
        return ""
    return (
        f"Record {whole.seq} ({timestamp(whole.time)}) can be had whole: `{restore_command(keys, whole.seq, options)}`"
    )


def restore_command(keys: Keys, seq: int, options: str = "") -> str:
    """Return the command. `options`: the job and its bucket, as `Place.options` gives them."""
    return f"wal-agent restore{options} --at {seq} --to {keys.job}-record-{seq}"


def missing_lease_error(bucket: Bucket, keys: Keys) -> Damaged | None:
    """Build the error for a job without a lease; None where it has no log either. Raises Damaged."""
    end = read_tail(bucket, keys)
    if end.seq == 0:
        return None
    what = f"The lease of job {keys.job} is missing, but its log reaches record {end.seq}."
    return Damaged(what, "The next `wal-agent run` makes a new one and recovers.")


def explain_open_error(bucket: Bucket, keys: Keys, seen: StoredLease | None, error: Damaged) -> Damaged:
    """Replace `error`, raised while the job was opened, by one with what can be restored, where the log is damaged and
    the bucket is readable."""
    try:
        found = check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
    except (BucketError, Damaged):
        return error
    return error if error.hint or found.damage is None else damaged_log_error(found.damage)

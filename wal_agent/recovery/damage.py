"""What is said of a log that cannot be read to its end: what is wrong, what can still be had, and how to go on."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.bucket.base import Bucket
from wal_agent.errors import BucketError, Damaged
from wal_agent.recovery.format import timestamp
from wal_agent.sanitize import shorten
from wal_agent.wal.blob_check import BlobProblem
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease_doc import StoredLease
from wal_agent.wal.reader import Damage, KnownEnd, Replay, check_end, read_tail, replay

RESTORE_HINT = "Write what can be had into a new folder with `wal-agent restore --to DIR`"
NEW_JOB_HINT = "work on under another name: --job NAME."


def damaged_log_error(d: Damage) -> Damaged:
    """The one sentence for a damaged log."""
    if d.good < 1:
        return Damaged(f"{d.why} Nothing before it can be restored.", f"{NEW_JOB_HINT[:1].upper()}{NEW_JOB_HINT[1:]}")
    what = f"{d.why} Everything up to record {d.good} ({timestamp(d.time)}) can be restored."
    return Damaged(what, f"Write it into a new folder with `wal-agent restore --at {d.good} --to DIR`; {NEW_JOB_HINT}")


def with_hint(error: Damaged) -> Damaged:
    """`error`, of a session whose log is sound, with the way out."""
    return Damaged(error.what, f"{RESTORE_HINT}; {NEW_JOB_HINT}")


def lost_blobs_error(lacks: Sequence[BlobProblem], whole: Replay | None, keys: Keys, options: str = "") -> Damaged:
    """Blobs that a restore needs cannot be had. `whole`: the newest place that can; `options`: see `to_restore`."""
    first, others = lacks[0], len(lacks) - 1
    more = f" So {'is 1 more' if others == 1 else f'are {others} more'}." if others else ""
    what = f"{first.why[:-1]}, and {shorten(first.what, 100)} needs it.{more}"
    return Damaged(what, restore_hint(whole, keys, options) or f"{RESTORE_HINT}; {NEW_JOB_HINT}")


def restore_hint(whole: Replay | None, keys: Keys, options: str = "") -> str:
    """The command for the newest place that can be had whole; "" where there is none."""
    if whole is None:
        return ""
    return (
        f"Record {whole.seq} ({timestamp(whole.time)}) can be had whole: `{restore_command(keys, whole.seq, options)}`"
    )


def restore_command(keys: Keys, seq: int, options: str = "") -> str:
    """`options`: which job in which bucket is meant, as `Place.options` gives them."""
    return f"wal-agent restore{options} --at {seq} --to {keys.job}-record-{seq}"


def missing_lease_error(bucket: Bucket, keys: Keys) -> Damaged | None:
    """For a job without a lease: None where it has no log either. Damaged: the end of the log cannot be read."""
    end = read_tail(bucket, keys)
    if end.seq == 0:
        return None
    what = f"The lease of job {keys.job} is missing, but its log reaches record {end.seq}."
    return Damaged(what, "The next `wal-agent run` makes a new one and recovers.")


def explain_open_error(bucket: Bucket, keys: Keys, seen: StoredLease | None, error: Damaged) -> Damaged:
    """`error`, met while the job was being opened, with what can be had where it is the log that is damaged and the
    bucket can be read."""
    try:
        found = check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
    except (BucketError, Damaged):
        return error
    return error if error.hint or found.damage is None else damaged_log_error(found.damage)

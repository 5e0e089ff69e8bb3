"""A place in the log as a person names it: a record's number, or a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.errors import Damaged, UsageError
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import KnownEnd, Replay, check_end, replay, seq_at_time

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_WAYS = "Give a record's number, as `wal-agent log` shows it, or a time (UTC): 14:02, 14:02:13, 2026-11-22T14:02:13Z."


def parse_point(text: str, now: float) -> int | float:
    """A record's number (int), or seconds since 1970 (float). A time of day means the newest such time up to `now`, and
    a minute means its end. UsageError for anything else."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        if (number := int(text)) < 1:
            raise UsageError("Records are numbered from 1.", _WAYS)
        return number
    if match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part) if part else None for part in match.groups())
        today = datetime.fromtimestamp(now, UTC)
        at = today.replace(hour=hours or 0, minute=minutes or 0, second=59 if seconds is None else seconds)
        at = at.replace(microsecond=999_999)
        began = at.replace(second=0 if seconds is None else at.second, microsecond=0)
        return (at if began <= today else at - timedelta(days=1)).timestamp()
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return when.timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{text[:60]!r} is no place in the log.", _WAYS) from None


def replay_at(bucket: Bucket, keys: Keys, key_id: str, at: str | None, now: float) -> Replay:
    """The log up to the place `at` (None: to its end), or as far as it is sound. Denied: the job is not encrypted with
    the key `key_id`; UsageError: there is no such place; Damaged: it cannot be found; BucketError."""
    try:
        seen = leases.read_lease(bucket, keys)
    except Damaged:
        seen = None  # what was saved is in the log
    if seen and (problem := wrong_key_error(keys.job, seen.doc.key, key_id)):
        raise problem
    if seen is None and next(iter(bucket.list(keys.log)), None) is None:
        raise UsageError(f"There is no job {keys.job} in {bucket.url}.", "See --job and --bucket.")
    if at is None:
        return check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
    point = parse_point(at, now)
    upto = point if isinstance(point, int) else seq_at_time(bucket, keys, point)
    if upto < 1:
        raise UsageError(f"Job {keys.job} has no record of {at} or before.", "See: wal-agent log")
    return replay(bucket, keys, upto)

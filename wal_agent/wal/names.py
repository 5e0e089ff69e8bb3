"""Display names of jobs (`wal-agent rename`): one object beside the jobs of a bucket, replaced by compare-and-swap.

A job's own name is in its keys, segments, snapshots and lease, so it never changes; a display name is a second way to
type it. The object decides nothing about who may write (I2). It is foreign data: an own name goes before a display
name, and each display name has the form of a job's name.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.base import Bucket, Version
from wal_agent.bucket.folder import known_epoch
from wal_agent.clock import Clock
from wal_agent.errors import BucketError, Conflict, Damaged, Denied, LeaseHeld, Newer, NotFound, Unavailable, UsageError
from wal_agent.wal.keys import Keys, check_job
from wal_agent.wal.lease import find_format, fresh_nonce

KEY: Final = "job-names.json"  # each object of a job lies in a folder, so no job can have this one
MAX_BYTES: Final = 1 << 20
MAX_NAMES: Final = 2000


class JobNames(msgspec.Struct, frozen=True, kw_only=True):
    """What the object says. `names`: the job of each display name; no job has two."""

    format: Literal[1] = 1
    names: dict[str, str] = {}
    nonce: str = ""  # S3 gives equal bytes equal versions

    def of(self, job: str) -> str:
        """The display name of `job`; "" where it has none."""
        return next((name for name, at in self.names.items() if at == job), "")

    def with_name(self, job: str, name: str) -> JobNames:
        """The same, with `name` as the only display name of `job`; none where that is its own name."""
        kept = {other: at for other, at in self.names.items() if at != job and other != name}
        return msgspec.structs.replace(self, names=kept if name == job else {**kept, name: job})


_NAMES = msgspec_compat.of_json(JobNames)


def decode_names(data: bytes) -> JobNames:
    """Read the object. What cannot be the name of a job is left out, and so is a second name. Damaged; Newer."""
    try:
        if len(data) > MAX_BYTES:
            raise Damaged(f"{len(data)} bytes")
        if (found := find_format(data)) > 1:
            raise Newer.of(f"{KEY} in the bucket", f"format {found}")
        read = _NAMES.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Damaged) as error:
        raise Damaged(
            f"{KEY} in the bucket is damaged, so the display names of its jobs are not known.",
            "Name jobs by their own names; delete that object, and `wal-agent rename` makes it anew.",
        ) from error
    kept, jobs = dict[str, str](), set[str]()
    for name, job in list(read.names.items())[:MAX_NAMES]:
        with suppress(UsageError):
            if check_job(name) != check_job(job) and job not in jobs:
                kept[name] = job
                jobs.add(job)
    return msgspec.structs.replace(read, names=kept)


def read_names(bucket: Bucket) -> tuple[JobNames, Version | None]:
    """Return the names and the object's version, None where there is none. Damaged, Newer, Unavailable, Denied."""
    try:
        found = bucket.get(KEY)
    except NotFound:
        return JobNames(), None
    return decode_names(found.data), found.version


def names_to_show(bucket: Bucket) -> Mapping[str, str]:
    """Return the display name of each job that has one; none where they cannot be read: a listing goes on without."""
    with suppress(BucketError, Damaged, Newer):
        return {job: name for name, job in read_names(bucket)[0].names.items()}
    return {}


def name_to_show(bucket: Bucket, job: str) -> str:
    """Return the display name of one job; "" where it has none, or one that is another job's own name."""
    name = names_to_show(bucket).get(job, "")
    with suppress(BucketError):
        return "" if name and is_job_there(bucket, name) else name
    return ""


def resolve_name(bucket: Bucket, name: str, env: Mapping[str, str]) -> str:
    """Return the own name of the job that a person calls `name`: `name` itself where a job has it or has had it here,
    or where no job has it as its display name. Where the names may not be read, there are none.

    UsageError: it can name no job. Damaged, Newer, Unavailable."""
    if known_epoch(bucket.url, check_job(name), env):
        return name
    try:
        job = read_names(bucket)[0].names.get(name)
    except Denied:  # also of a bucket that is set up wrongly: for the command that follows
        return name
    except (Damaged, Newer):
        if is_job_there(bucket, name):
            return name
        raise
    return name if job is None or is_job_there(bucket, name) or not is_job_there(bucket, job) else job


def is_job_there(bucket: Bucket, job: str) -> bool:
    """Return whether the bucket has, or had, a job of this very name; a lease that cannot be read is one."""
    with suppress(NotFound):
        with suppress(Damaged, Newer):
            bucket.get(Keys(job).lease)
        return True
    return False


def rename_job(
    bucket: Bucket,
    job: str,
    name: str,
    env: Mapping[str, str],
    clock: Clock,
    rng: random.Random,
    budget: float = 20.0,
) -> str:
    """Make `name` the display name of `job`, which is there, and return the one that it had ("": none). The job's own
    name takes the display name away. A live run goes on: nothing of the job is written.

    UsageError: the name is taken, or no name; LeaseHeld: another person renamed the job at the same moment; Damaged,
    Newer, Denied; Unavailable: it is not known whether it landed."""
    from wal_agent.bucket.decorators import RetryBudget  # only who writes needs it; each command reads the names

    check_job(name)
    if name != job and (known_epoch(bucket.url, name, env) or is_job_there(bucket, name)):
        raise UsageError(f"{name} is the own name of a job in {bucket.url}.", "Choose another name.")
    retries = RetryBudget(clock, rng, budget)
    names, version = read_names(bucket)
    before, sent = names.of(job), set[str]()
    while True:
        other = names.names.get(name, job)
        if other != job and is_job_there(bucket, other):
            raise UsageError(f"{name} is the display name of job {other}.", "Choose another name.")
        changed = msgspec.structs.replace(names.with_name(job, name), nonce=fresh_nonce(rng))
        if changed.names == names.names:
            return before
        if len(changed.names) > MAX_NAMES:
            raise UsageError(f"{bucket.url} has {MAX_NAMES} display names, which is the most.")
        sent.add(changed.nonce)
        try:
            bucket.put(KEY, msgspec.json.encode(changed), if_version=version)
            return before
        except (Conflict, Unavailable) as error:
            retries.pause(error if isinstance(error, Unavailable) else Unavailable(f"{KEY} changes all the time."))
        names, version = retries.call(lambda: read_names(bucket))
        if names.nonce in sent:
            return before  # it had landed, its reply was lost
        if names.of(job) != before:
            now = names.of(job) or job
            raise LeaseHeld(f"Job {job} was renamed to {now} at the same moment.", "See: wal-agent list")

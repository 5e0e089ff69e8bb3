"""Change a job that no run has: open it under a new epoch, act, and leave it closed, released or paused as before.

So a person's commands change a job: `ack`, `rewind`, `compact`, `mark`, `task`, `stop --done`, `gc` and `rm`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeVar

import msgspec

from wal_agent import __version__
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.clock import SystemClock
from wal_agent.errors import LeaseHeld, Unavailable
from wal_agent.paths import state_dir
from wal_agent.recovery.lease_policy import (
    Acquire,
    Decline,
    Wait,
    admit,
    classify_stop,
    pause_left,
    paused_until,
    replays_spool,
)
from wal_agent.supervise.identity import person_key
from wal_agent.supervise.machine import RunDir, probe_holder, runtime_dir, spools_dir, this_host
from wal_agent.text import job_command
from wal_agent.wal import lease as leases
from wal_agent.wal.damage import missing_lease_error, sound_state, unknown_job_error
from wal_agent.wal.job import OpenedJob, Opener, OpeningFields, close_job, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest, StoredLease
from wal_agent.wal.reader import KnownEnd, check_end, replay
from wal_agent.wal.state import State
from wal_agent.wal.store import JobStore

T = TypeVar("T")


class JobAccess(msgspec.Struct, frozen=True):
    """What a job at rest is opened with. `ttl`: of its lease meanwhile; `key_id`: of the key that `bucket` decrypts
    with, "" for none."""

    bucket: Bucket
    keys: Keys
    ttl: float
    env: Mapping[str, str]
    key_id: str = ""

    def lease(self) -> StoredLease:
        return require_lease(self.bucket, self.keys)


class RunHasJob(LeaseHeld):
    """A run that lives has the job, so it is for that run to act."""


def require_lease(bucket: Bucket, keys: Keys) -> StoredLease:
    """The job's lease. UsageError: there is no such job; Damaged: there is, but its lease is gone."""
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        raise missing_lease_error(bucket, keys) or unknown_job_error(bucket, keys)
    return seen


def act_unowned(
    at: JobAccess, seen: StoredLease, act: Callable[[OpenedJob], T], check: Callable[[State], None] = lambda _: None
) -> T:
    """Open the job, and return what `act` does with it, which closes it. `check` refuses before anything is opened.

    RunHasJob; LeaseHeld: it may be free later, or this machine's spool holds records that come first; Denied: it is
    encrypted with another key; Damaged: its log cannot be opened."""
    bucket, keys = at.bucket, at.keys
    if problem := wrong_key_error(keys.job, seen.doc.key, at.key_id):
        raise problem
    run_dir = RunDir.create(runtime_dir(at.env), secrets.token_hex(8), state_dir(at.env))
    try:
        here = this_host(at.env, run_dir.lock)
        known = probe_holder(seen, here, spools_dir(at.env), bucket.url)
        match admit(seen, known, pauses="ignore", url=bucket.url, starts=False):
            case Acquire() if replays_spool(seen, known):
                raise spool_not_carried(seen)
            case Acquire(cause):
                check(sound_state(check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))))
                claim = LeaseRequest(
                    run=run_dir.run,
                    host=here,
                    agent=seen.doc.agent,
                    workspace=seen.doc.workspace,
                    ttl=at.ttl,
                    key=at.key_id,
                    owner=seen.doc.owner,
                )
                fields = OpeningFields(agent_version="", version=__version__)
                opened = open_job(
                    JobStore(bucket, keys),
                    claim=claim,
                    fields=fields,
                    seen=seen,
                    cause=cause,
                    opener=Opener(person_key(at.env)),
                )
                return act(opened)
            case Decline(sentence, hint):
                raise RunHasJob(sentence, hint)
            case Wait(_, why):
                raise LeaseHeld(f"{why[:1].upper()}{why[1:]}.", "Try again then.")
    finally:
        run_dir.end()


def act_at_rest(at: JobAccess, act: Callable[[OpenedJob], T], check: Callable[[State], None] = lambda _: None) -> T:
    """As `act_unowned`, and leave the job as it was."""
    seen = at.lease()
    closed = seen.doc.state == "closed"

    def within(job: OpenedJob) -> T:
        with leaving(job, seen, "closed" if closed else "released", "" if closed else kept_reason(seen.doc.reason)):
            return act(job)

    return act_unowned(at, seen, within, check)


def spool_not_carried(seen: StoredLease) -> LeaseHeld:
    """R9: an opening that left the spool behind would make it stale."""
    doc = seen.doc
    return LeaseHeld(
        f"Job {doc.job} may have records that only {doc.spool} on this machine has, so no call is settled before them.",
        "Run it here first: `wal-agent run AGENT` carries in what this machine's spool holds.",
    )


@contextmanager
def leaving(job: OpenedJob, seen: StoredLease, wanted: Literal["closed", "released"], reason: str) -> Iterator[None]:
    """Close the job behind what is done with it: as `wanted` for `reason`; one that was paused (`seen`) for the seconds
    that were left, for its reason (0: it is due, and stays that). Unavailable: it is not known whether the bucket has
    what was done."""
    now = SystemClock().now()
    try:
        yield
    finally:
        if paused_until(seen):
            ended = close_job(job, "released", seen.doc.reason, until=now + pause_left(seen))
        else:
            ended = close_job(job, wanted, reason)
    if ended == "left":
        raise Unavailable(
            "The bucket did not take it in time, so it is not known whether that is saved.",
            f"See: {job_command('status', job.keys.job, job.bucket.url)}",
        )


def kept_reason(reason: str) -> str:
    """Why the job was settled before, unless for want of the person who came now."""
    return reason if reason and classify_stop(reason) != "halted" else "a call was settled by a person"

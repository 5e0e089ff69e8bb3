"""Take a job from its owner (R8), or replace its lease where that is damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.errors import BucketError, Damaged, UsageError
from wal_agent.recovery.lease_policy import (
    Local,
    end_pause_command,
    lease_age,
    owner_is_dead,
    pause_left,
    pause_text,
    unlock_wait,
)
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.supervise.pausing import replace_bytes
from wal_agent.text import job_command
from wal_agent.wal import lease as leases
from wal_agent.wal.damage import unknown_job_error
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease, replace_damaged_lease
from wal_agent.wal.reader import read_tail
from wal_agent.wal.store import JobStore

MAX_UNLOCK_REASON = 500  # characters


class Unlocked(JsonAnswer, frozen=True, tag=schema_name("unlock")):
    """`wal-agent unlock`, for scripts too. `done`: the lease was changed; `said` and `notes` are for people."""

    job: str
    done: bool
    said: str
    epoch: int = 0
    host: str = ""
    pid: int = 0
    heartbeat_age: float = 0.0  # seconds, by the store's clock
    waits: float = 0.0  # seconds until the next start may open the job
    spool: str = ""
    notes: tuple[str, ...] = ()


class UnlockRequest(msgspec.Struct, frozen=True):
    """What the person said. `epoch` is the lease that they saw, None: they have not said; `off`: the host is off."""

    epoch: int | None
    off: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > MAX_UNLOCK_REASON:
            raise UsageError(f"The reason has {len(self.reason)} characters.", f"At most {MAX_UNLOCK_REASON}, please.")


def unlock(bucket: Bucket, keys: Keys, request: UnlockRequest, env: Mapping[str, str]) -> Unlocked:
    """Unlock the lease that the person saw. UsageError: there is none, it is another one, or they named none;
    LeaseHeld: its owner renewed it at the same moment; Damaged: it cannot be read, see `repair_lease`."""
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        raise unknown_job_error(bucket, keys)
    here = this_host(env, Path(os.devnull))
    local = probe_holder(seen, here, spools_dir(env), bucket.url)
    if idle := nothing_to_unlock(seen, local, request, bucket.url):
        return idle
    check_request(seen, local, request, bucket.url)
    with suppress(BucketError, Damaged):  # what is of no use without a key, or damaged, can be unlocked all the same
        read_tail(bucket, keys, seen.doc.seq)  # Newer
    doc = leases.unlock(JobStore(bucket, keys), seen=seen, reason=replace_bytes(request.reason), off=request.off)
    waits = 0.0 if doc.off else doc.ttl
    said = f"job {keys.job} is taken from {describe_owner(seen)}. {next_start_line(waits, loses_spool(seen, local))}"
    return unlock_result(seen, True, said, waits, unlock_notes(seen, local, doc.off))


def repair_lease(bucket: Bucket, keys: Keys, request: UnlockRequest, ttl: float, key_id: str = "") -> Unlocked:
    """Replace a lease that cannot be read. `ttl`: seconds that the next owner waits, or longer where the lost one says
    so; `key_id`: of the key that `bucket` decrypts with. UsageError: the lease is sound, or `request` names another
    epoch than the log's; Damaged, Denied: the end of the log cannot be read either."""
    try:
        seen = leases.read_lease(bucket, keys)
    except Damaged as error:
        damage = error.what
    else:
        found = "there is none" if seen is None else f"it says {seen.doc.state}, epoch {seen.doc.epoch}"
        raise UsageError(f"The lease of job {keys.job} is not damaged: {found}.", "Leave out --damaged.")
    end = read_tail(bucket, keys)
    if request.epoch != end.epoch:
        raise UsageError(
            f"{damage} The log's newest epoch is {end.epoch}.",
            f"Make sure that nobody runs the job, then: {job_command('unlock', keys.job, bucket.url)} --damaged "
            f"--epoch {end.epoch}",
        )
    repaired = replace_damaged_lease(
        JobStore(bucket, keys),
        tail=end,
        ttl=ttl,
        key=key_id,
        reason=replace_bytes(request.reason) or "its lease was damaged",
        off=request.off,
    )
    doc = repaired.doc
    waits = 0.0 if request.off else doc.ttl
    unsaid = (
        "it does not say its owner's ttl any more, so the next start waits the longest one that a ttl of "
        f"{ttl:.0f} s allows"
    )
    return Unlocked(
        keys.job,
        True,
        f"the damaged lease of job {keys.job} is replaced by a sound, unlocked one. {next_start_line(waits)}",
        epoch=doc.epoch,
        waits=waits,
        notes=(
            "who held it is not known, nor whether that run spooled (--on-outage spool); if it lives, it stops at its "
            "next heartbeat, with exit code 76",
            *([] if repaired.said or request.off else [unsaid]),
        ),
    )


def nothing_to_unlock(seen: StoredLease, local: Local, request: UnlockRequest, url: str) -> Unlocked | None:
    """What to say when the next start can have the job anyhow; None when there is something to unlock.

    No error: what was asked for is so, and a script may go on."""
    doc, job = seen.doc, seen.doc.job
    if (left := pause_left(seen)) > 0:
        said = f"nothing to unlock: job {job} is paused until {pause_text(seen)}, and a start waits for that."
        return unlock_result(seen, False, f"{said} To end the pause: {end_pause_command(job, url)}", left)
    if doc.state in ("closed", "released"):
        return unlock_result(seen, False, f"nothing to unlock: job {job} is {doc.state}. {next_start_line(0.0)}")
    other = request.epoch is not None and request.epoch != doc.epoch
    waits, lost = unlock_wait(seen, local), loses_spool(seen, local)
    if doc.state == "unlocked" and not other and not (request.off and waits > 0):
        return unlock_result(
            seen, False, f"nothing to unlock: job {job} is unlocked already. {next_start_line(waits, lost)}", waits
        )
    if doc.state == "held" and not other and owner_is_dead(seen, local):
        taken = f"job {job} can be taken from {describe_owner(seen)} already"
        said = f"nothing to unlock: {taken}. {next_start_line(0.0, lost)}"
        return unlock_result(seen, False, said, notes=spool_notes(seen, local))
    return None


def check_request(seen: StoredLease, local: Local, request: UnlockRequest, url: str) -> None:
    """UsageError unless the person names the stored lease, and what they say of its host can be true. `url`: the
    bucket, for commands that are printed."""
    doc = seen.doc
    command = f"{job_command('unlock', doc.job, url)} --epoch {doc.epoch}"
    state = "held by" if doc.state == "held" else "unlocked, after"
    if request.epoch is None:
        raise UsageError(f"Job {doc.job} is {state} {describe_owner(seen)}.", f"To take it from there: {command}")
    if request.epoch != doc.epoch:
        raise UsageError(
            f"Job {doc.job} is not at epoch {request.epoch}: it is {state} {describe_owner(seen)}.",
            f"Look again: {job_command('status', doc.job, url)}; if you mean that one: {command}",
        )
    if request.off and local.lock == "alive":
        raise UsageError(
            f"--now says that the owner's host is off, but {describe_owner(seen)} runs on this machine.",
            "Stop it, or leave out --now.",
        )


def describe_owner(seen: StoredLease) -> str:
    doc = seen.doc
    return f"{doc.host.name} (pid {doc.host.pid}, epoch {doc.epoch}, heartbeat {lease_age(seen):.0f} s ago)"


def loses_spool(seen: StoredLease, local: Local) -> bool:
    """Whether a start on this machine cannot have what the owner may have spooled (R9)."""
    return bool(seen.doc.spool) and local.spool == "absent"


def next_start_line(waits: float, loses: bool = False) -> str:
    when = f"waits {waits:.0f} s, then opens it" if waits > 0 else "opens it at once"
    return f"The next `wal-agent run{' --accept-loss' if loses else ''}` {when}."


def unlock_notes(seen: StoredLease, local: Local, off: bool) -> tuple[str, ...]:
    """What the person should know of the old owner."""
    doc, found = seen.doc, []
    if doc.state == "held":  # and not dead, else there would have been nothing to unlock
        found.append("it may be alive: then it stops at its next heartbeat, with exit code 76")
    if off:
        found.append(
            f"nobody waits for that: if {doc.host.name} is not off, what a tool does there now may overlap with what "
            "the next owner does"
        )
    return (*found, *spool_notes(seen, local))


def spool_notes(seen: StoredLease, local: Local) -> tuple[str, ...]:
    doc = seen.doc
    if not doc.spool:
        return ()
    if not loses_spool(seen, local):
        return (f"{doc.spool} on this machine may hold records that are nowhere else: a start here saves them",)
    return (
        f"{doc.spool} on {doc.host.name} may hold records that are nowhere else: a start on that machine saves them "
        "in, one elsewhere needs --accept-loss and goes on without them",
    )


def unlock_result(
    seen: StoredLease, done: bool, said: str, waits: float = 0.0, notes: tuple[str, ...] = ()
) -> Unlocked:
    doc = seen.doc
    return Unlocked(
        doc.job, done, said, doc.epoch, doc.host.name, doc.host.pid, lease_age(seen), waits, doc.spool, tuple(notes)
    )

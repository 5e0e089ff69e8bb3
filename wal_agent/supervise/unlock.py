"""A person takes a job from its owner (R8): which lease is meant, what that does, and what the next start does then."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.clock import SystemClock
from wal_agent.errors import BucketError, Damaged, UsageError
from wal_agent.recovery.lease_policy import (
    END_PAUSE,
    Local,
    lease_age,
    owner_is_dead,
    pause_left,
    pause_text,
    unlock_wait,
)
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import replace_damaged_lease
from wal_agent.wal.lease_doc import StoredLease
from wal_agent.wal.reader import read_tail

MAX_REASON = 500  # characters


class Unlocked(msgspec.Struct, frozen=True):
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


@dataclass(frozen=True, slots=True)
class UnlockRequest:
    """What the person said. `epoch` is the lease that they saw, None: they have not said; `off`: the host is off."""

    epoch: int | None
    off: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > MAX_REASON:
            raise UsageError(f"The reason has {len(self.reason)} characters.", f"At most {MAX_REASON}, please.")


def unlock(bucket: Bucket, keys: Keys, wish: UnlockRequest, env: Mapping[str, str]) -> Unlocked:
    """Unlock the lease that the person saw. UsageError: there is none, it is another one, or they named none;
    LeaseHeld: its owner renewed it at the same moment; Damaged: it cannot be read, see `repair`."""
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        raise UsageError(f"There is no job {keys.job} in {bucket.url}.", "See --job and --bucket.")
    here = this_host(env, Path(os.devnull))
    local = probe_holder(seen, here, spools_dir(env), bucket.url)
    if idle := nothing_to_unlock(seen, local, wish):
        return idle
    check_request(seen, local, wish)
    with suppress(BucketError, Damaged):  # what is of no use without a key, or damaged, can be unlocked all the same
        read_tail(bucket, keys, seen.doc.seq)  # Newer
    doc = leases.unlock(
        bucket, keys, SystemClock(), random.Random(), seen=seen, reason=clean_reason(wish.reason), off=wish.off
    )
    waits = 0.0 if doc.off else doc.ttl
    said = f"job {keys.job} is taken from {owner(seen)}. {next_start(waits, loses(seen, local))}"
    return result(seen, True, said, waits, notes(seen, local, doc.off))


def repair_lease(bucket: Bucket, keys: Keys, wish: UnlockRequest, ttl: float, key_id: str = "") -> Unlocked:
    """Replace a lease that cannot be read. `ttl`: seconds that the next owner waits, or longer where the lost one says
    so; `key_id`: of the key that `bucket` decrypts with. UsageError: the lease is sound, or `wish` names another epoch
    than the log's; Damaged, Denied: the end of the log cannot be read either."""
    try:
        seen = leases.read_lease(bucket, keys)
    except Damaged as error:
        damage = error.what
    else:
        found = "there is none" if seen is None else f"it says {seen.doc.state}, epoch {seen.doc.epoch}"
        raise UsageError(f"The lease of job {keys.job} is not damaged: {found}.", "Leave out --damaged.")
    end = read_tail(bucket, keys)
    if wish.epoch != end.epoch:
        raise UsageError(
            f"{damage} The log's newest epoch is {end.epoch}.",
            f"Make sure that nobody runs the job, then: {leases.REPAIR} --epoch {end.epoch} --job {keys.job}",
        )
    repaired = replace_damaged_lease(
        bucket,
        keys,
        SystemClock(),
        random.Random(),
        tail=end,
        ttl=ttl,
        key=key_id,
        reason=clean_reason(wish.reason) or "its lease was damaged",
        off=wish.off,
    )
    doc = repaired.doc
    waits = 0.0 if wish.off else doc.ttl
    unsaid = f"it does not say its owner's ttl any more, so the next start waits the one that is set here, {ttl:.0f} s"
    return Unlocked(
        keys.job,
        True,
        f"the damaged lease of job {keys.job} is replaced by a sound, unlocked one. {next_start(waits)}",
        epoch=doc.epoch,
        waits=waits,
        notes=(
            "who held it is not known, nor whether that run spooled (--on-outage spool); if it lives, it stops at its "
            "next heartbeat, with exit code 76",
            *([] if repaired.said or wish.off else [unsaid]),
        ),
    )


# --- pure


def nothing_to_unlock(seen: StoredLease, local: Local, wish: UnlockRequest) -> Unlocked | None:
    """What to say when the next start can have the job anyhow; None when there is something to unlock.

    No error: what was asked for is so, and a script may go on."""
    doc, job = seen.doc, seen.doc.job
    if (left := pause_left(seen)) > 0:
        said = f"nothing to unlock: job {job} is paused until {pause_text(seen)}, and a start waits for that."
        return result(seen, False, f"{said} To end the pause: {END_PAUSE} --job {job}", left)
    if doc.state in ("closed", "released"):
        return result(seen, False, f"nothing to unlock: job {job} is {doc.state}. {next_start(0.0)}")
    other = wish.epoch is not None and wish.epoch != doc.epoch
    waits, lost = unlock_wait(seen, local), loses(seen, local)
    if doc.state == "unlocked" and not other and not (wish.off and waits > 0):
        return result(
            seen, False, f"nothing to unlock: job {job} is unlocked already. {next_start(waits, lost)}", waits
        )
    if doc.state == "held" and not other and owner_is_dead(seen, local):
        said = f"nothing to unlock: job {job} can be taken from {owner(seen)} already. {next_start(0.0, lost)}"
        return result(seen, False, said, notes=spooled(seen, local))
    return None


def check_request(seen: StoredLease, local: Local, wish: UnlockRequest) -> None:
    """UsageError unless the person names the lease that stands there, and what they say of its host can be true."""
    doc = seen.doc
    command = f"wal-agent unlock --epoch {doc.epoch}"
    state = "held by" if doc.state == "held" else "unlocked, after"
    if wish.epoch is None:
        raise UsageError(f"Job {doc.job} is {state} {owner(seen)}.", f"To take it from there: {command}")
    if wish.epoch != doc.epoch:
        raise UsageError(
            f"Job {doc.job} is not at epoch {wish.epoch}: it is {state} {owner(seen)}.",
            f"Look again with `wal-agent status`; if you mean that one: {command}",
        )
    if wish.off and local.lock == "alive":
        raise UsageError(
            f"--now says that the owner's host is off, but {owner(seen)} runs on this machine.",
            "Stop it, or leave out --now.",
        )


def owner(seen: StoredLease) -> str:
    doc = seen.doc
    return f"{doc.host.name} (pid {doc.host.pid}, epoch {doc.epoch}, heartbeat {lease_age(seen):.0f} s ago)"


def loses(seen: StoredLease, local: Local) -> bool:
    """Whether a start on this machine cannot have what the owner may have spooled (R9)."""
    return bool(seen.doc.spool) and local.spool == "absent"


def next_start(waits: float, loses: bool = False) -> str:
    when = f"waits {waits:.0f} s, then opens it" if waits > 0 else "opens it at once"
    return f"The next `wal-agent run{' --accept-loss' if loses else ''}` {when}."


def notes(seen: StoredLease, local: Local, off: bool) -> tuple[str, ...]:
    """What the person should know of the old owner."""
    doc, found = seen.doc, []
    if doc.state == "held":  # and not dead, else there would have been nothing to unlock
        found.append("it may be alive: then it stops at its next heartbeat, with exit code 76")
    if off:
        found.append(
            f"nobody waits for that: if {doc.host.name} is not off, what a tool does there now may overlap with what "
            "the next owner does"
        )
    return (*found, *spooled(seen, local))


def spooled(seen: StoredLease, local: Local) -> tuple[str, ...]:
    doc = seen.doc
    if not doc.spool:
        return ()
    if not loses(seen, local):
        return (f"{doc.spool} on this machine may hold records that nobody else has: a start here carries them in",)
    return (
        f"{doc.spool} on {doc.host.name} may hold records that nobody else has: a start on that machine carries them "
        "in, one elsewhere needs --accept-loss and goes on without them",
    )


def result(seen: StoredLease, done: bool, said: str, waits: float = 0.0, notes: tuple[str, ...] = ()) -> Unlocked:
    doc = seen.doc
    return Unlocked(
        doc.job, done, said, doc.epoch, doc.host.name, doc.host.pid, lease_age(seen), waits, doc.spool, tuple(notes)
    )


def clean_reason(reason: str) -> str:
    """As it can be stored: an argument may hold bytes that are no text."""
    return reason.encode("utf-8", "replace").decode()

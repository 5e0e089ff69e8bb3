"""Before the fence only this is decided, from the lease and what is known here: try, refuse, or wait (R2, R8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wal_agent.records import Cause
from wal_agent.wal.lease import LeaseDoc, Seen

POLL = 2.0  # seconds until a live owner's lease is worth another look


@dataclass(frozen=True, slots=True)
class Local:
    """What this host knows. `lock`: the state of the flock in the lease's host.lock, meaningful only in the same kernel
    and pid namespace. `unchanged`: seconds (boot time) that this process has seen the lease's version not change."""

    boot: str
    pidns: str
    lock: Literal["dead", "alive", "unknown"] = "unknown"
    unchanged: float = 0.0


@dataclass(frozen=True, slots=True)
class Try:
    """Go on and open the job (R1)."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Refuse:
    """Exit 75 with this sentence."""

    sentence: str
    hint: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after so many seconds; `why` for people."""

    seconds: float
    why: str


def admit(job: str, seen: Seen | None, local: Local, *, wait: bool = False) -> Try | Refuse | Wait:
    """The decision. `wait`: the user said --wait, so a live owner is waited for instead of refused. Pure."""
    if seen is None:
        return Try("first")
    doc = seen.doc
    match doc.state:
        case "closed" | "released":
            return Try(doc.state)
        case "unlocked":
            left = unlock_wait(seen, local)
            why = f"job {job} was unlocked; its old owner on {doc.host.name} may still run for {left:.0f} s"
            return Wait(left, why) if left > 0 else Try("unlocked")
        case "held":
            if owner_is_dead(seen, local):
                return Try("dead")
            if wait:
                return Wait(min(POLL, max(0.1, expires_in(seen, local))), _running(job, seen))
            return _refuse(job, seen, local)


def unlock_wait(seen: Seen, local: Local) -> float:
    """R8: seconds until an unlocked job may be opened: one ttl after the unlocking; none when a person said that the
    old host is off, or the kernel says that the old owner is gone."""
    gone = same_kernel(seen.doc, local) and local.lock == "dead"
    return 0.0 if seen.doc.off or gone else expires_in(seen, local)


def owner_is_dead(seen: Seen, local: Local) -> bool:
    """In the same kernel and pid namespace the flock says so at once; otherwise, and where it cannot say, the ttl."""
    if same_kernel(seen.doc, local) and local.lock != "unknown":
        return local.lock == "dead"
    return expires_in(seen, local) <= 0


def same_kernel(doc: LeaseDoc, local: Local) -> bool:
    """Pods on one node share the boot id but not the process table, hence both."""
    return bool(local.boot) and (doc.host.boot, doc.host.pidns) == (local.boot, local.pidns)


def age(seen: Seen) -> float:
    """Seconds since the last write of the lease, by the store's own clock."""
    return max(0.0, seen.now - seen.updated)


def expires_in(seen: Seen, local: Local) -> float:
    """Seconds until ttl has passed since the last write: by the store's clocks, or by having watched it not change."""
    return max(0.0, seen.doc.ttl - max(age(seen), local.unchanged))


def _running(job: str, seen: Seen) -> str:
    host = seen.doc.host
    return f"job {job} is running on {host.name} (pid {host.pid}, heartbeat {_seconds(age(seen))} ago)."


def _refuse(job: str, seen: Seen, local: Local) -> Refuse:
    left = expires_in(seen, local)
    locked = same_kernel(seen.doc, local) and local.lock == "alive"
    if age(seen) > seen.doc.ttl / 2 and not locked:
        return Refuse(
            _running(job, seen),
            f"If it is dead, it can be taken over in {_seconds(left)}; wait for it with --wait, "
            "look with `wal-agent status`, or stop it there.",
        )
    return Refuse(_running(job, seen), "Wait for it with --wait, look with `wal-agent status`, or stop it there.")


def _seconds(value: float) -> str:
    return f"{max(0, round(value))} s"

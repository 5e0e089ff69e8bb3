"""Decide from a lease what comes before the fence: acquire the job, decline, or wait (R2, R8). Find crashes in the log:
which ends count, where each was, and whether it repeats. Pure.

`admit` has only the lease and what this host knows. `classify_stop` reads why a lease was released out of the
reason that is stored in it: what `status` reports of it, and whether the fleet gives the job a host.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal

import msgspec

from wal_agent.calls.quote import inline, show_input
from wal_agent.records import Cause, ExitClass, Intent, Opening, Payload
from wal_agent.redact import redact_head
from wal_agent.safefs import Life
from wal_agent.text import job_command, moment, yield_reason
from wal_agent.wal.lease import DUE_NOW, StoredLease
from wal_agent.wal.spool import Presence
from wal_agent.wal.state import OpenCall, State
from wal_agent.wording import messages

COUNTDOWN = 1.0  # seconds between reads of the lease of a silent owner, while a person watches
POLL_INTERVAL = 2.0  # seconds between reads of a live owner's lease
MAX_PAUSE = 31 * 86_400.0  # seconds, whatever a lease says
MAX_REASON = 500  # characters of why it is paused
REMOVED: Final = "deleted by a person"
"""The reason of a closed lease of which nothing is left but what locks old runs out (`wal-agent rm`)."""
STUCK_WINDOW: Final = 3600.0  # seconds; later deaths in one long call may be the machines' fault


LeaseView = Literal["crashed", "due", "released", "unlocked", "running", "paused", "closed"]
"""What a person reads of a lease, in every command. `crashed`: held, and its owner is gone; `due`: its pause is
over."""
# Of a run that was stopped before its agent ran, or that could not reach the bucket.
_NOT_BEGUN: Final = re.compile(r"stopped: (interrupted by SIGTERM |this machine is going away \()|stopped \(69\): ")
_BY_A_PERSON: Final = re.compile(r"stopped: interrupted by ")
_HALTED: Final = re.compile(r"stopped( \(\d{1,3}\))?: ")
_FAILED: Final = re.compile(
    r"the agent ended with \d{1,3}(, but not its turn)?|killed by SIG[A-Z0-9]{2,9}|killed: out of memory"
    r"|JavaScript heap out of memory|the model did not answer|the agent did not (begin|end behind its turn)"
)
CRASH_CLASSES: Final[frozenset[ExitClass]] = frozenset(
    {"killed", "out_of_memory", "heap", "hung", "incomplete", "context"}
)
"""Ends that nobody wanted."""


class Local(msgspec.Struct, frozen=True):
    """What this host knows. `lock`: the state of the flock in the lease's host.lock, meaningful only in the same kernel
    and pid namespace. `unchanged`: seconds (boot time) since this process first read the lease's version.
    `spool`: whether the folder that the lease names for spooling is on this machine, below `spools`, and whether a run
    uses it. `name`: this host's. `copied`: the file of the lock is not here, but maybe a copy of it: the original of
    this machine may live elsewhere."""

    boot: str
    pidns: str
    lock: Life = "unknown"
    unchanged: float = 0.0
    spool: Presence = "absent"
    name: str = ""
    spools: str = ""
    copied: bool = False


class Acquire(msgspec.Struct, frozen=True):
    """Go on and open the job (R1)."""

    cause: Cause


class Decline(msgspec.Struct, frozen=True):
    """Exit 75 with this sentence."""

    sentence: str
    hint: str


class Wait(msgspec.Struct, frozen=True):
    """Read the lease again after so many seconds; `why` for people."""

    seconds: float
    why: str


Pauses = Literal["wait", "refuse", "ignore"]
"""A paused job that is not due yet is waited for, or declined; callers that start no agent ignore the pause."""


def admit(
    seen: StoredLease | None,
    local: Local,
    *,
    wait: bool = False,
    outlast: bool = False,
    accept_loss: bool = False,
    pauses: Pauses = "wait",
    url: str = "",
    starts: bool = True,
) -> Acquire | Decline | Wait:
    """Decide whether to acquire the job. `wait`: --wait was given, so a live owner is waited for. `outlast`: an owner
    that is silent, and that no lock here proves alive, is waited for until its lease runs out. `accept_loss`: what only
    the owner's spool has may be lost. `url`: of the bucket, for the commands in hints. `starts`: the caller is a start,
    which has --wait. Pure."""
    if seen is None:
        return Acquire("first")
    doc, job = seen.doc, seen.doc.job
    if pauses != "ignore" and (left := pause_left(seen, local.unchanged)) > 0:
        why, end = f"job {job} is paused until {pause_text(seen)}", end_pause_command(job, url)
        if pauses == "refuse":
            return Decline(f"{why}.", f"Start it then, on any machine; or end the pause with: {end}")
        return Wait(left, f"{why}; to start it now, end the pause: {end}")
    if doc.state in ("closed", "released"):
        return Acquire(doc.state)
    if doc.spool and not accept_loss and not spool_is_here(seen, local):
        return _decline_spooled(job, seen, local, wait, starts)
    if doc.state == "unlocked":
        left = unlock_wait(seen, local)
        why = f"job {job} was unlocked; its old owner on {doc.host.name} may still run for {left:.0f} s"
        return Wait(left, why) if left > 0 else Acquire("unlocked")
    if owner_is_dead(seen, local):
        return Acquire("dead")
    if wait:
        return Wait(min(POLL_INTERVAL, max(0.1, expires_in(seen, local))), _describe_holder(job, seen))
    if outlast and not (same_kernel(seen, local) and local.lock == "alive"):
        left = expires_in(seen, local)
        return Wait(min(COUNTDOWN, max(0.1, left)), messages.free_in(job, left, doc.host.name))
    return _decline_running(job, seen, local, url, starts)


def pause_left(seen: StoredLease, unchanged: float = 0.0) -> float:
    """Return the seconds until the job's pause is over, 0 for none.

    The pause's length is by its writer's clock, the time since by the store's clock or by `unchanged`: no clock is
    compared with another, so a wrong one does no harm."""
    left = _pause_length(seen) - max(lease_age(seen), unchanged)
    return left if left > 2 * DUE_NOW else 0.0  # no store's clock is so fine


def paused_until(seen: StoredLease) -> float:
    """Return when the job's pause ends or ended, by the store's clock (since 1970); 0 for none."""
    lasts = _pause_length(seen)
    return seen.updated + lasts if lasts > 0 else 0.0


def describe_lease(seen: StoredLease, dead: bool) -> LeaseView:
    """Return the state of a job for people. `dead`: as owner_is_dead says of a held one."""
    doc = seen.doc
    if doc.state == "held":
        return "crashed" if dead else "running"
    if doc.state == "released":
        return "paused" if pause_left(seen) > 0 else "due" if paused_until(seen) > 0 else "released"
    return doc.state


def pause_text(seen: StoredLease) -> str:
    """ "14:30 UTC (rate limit)"; the reason is foreign text."""
    reason = " ".join(redact_head(seen.doc.reason, MAX_REASON).split())
    until = moment(paused_until(seen), seen.now, exact=_pause_length(seen) < 600)
    return until + (f" ({reason})" if reason else "")


def _pause_length(seen: StoredLease) -> float:
    doc = seen.doc
    if doc.state != "released" or doc.until <= 0:
        return 0.0
    return min(doc.until - (doc.time or seen.updated), MAX_PAUSE)


def spool_is_here(seen: StoredLease, local: Local) -> bool:
    """Whether the owner's spool is on this machine and its lock is free (R9), unless the run's other lock is held."""
    return local.spool == "free" and not (same_kernel(seen, local) and local.lock == "alive")


def spool_is_orphaned(seen: StoredLease, local: Local) -> bool:
    """Whether the spool is here and its owner is gone (R9), which its lock proves in the owner's own kernel. After a
    reboot, and on a copy of the machine, one ttl has to pass too: a network file system's locks may hold for one client
    only."""
    proven = same_kernel(seen, local) and not local.copied
    return spool_is_here(seen, local) and (proven or seen.doc.off or expires_in(seen, local) <= 0)


def may_have_spooled(seen: StoredLease) -> bool:
    """Whether the log may lack records of this owner: it releases its lease only when its spool is empty."""
    return bool(seen.doc.spool) and seen.doc.state in ("held", "unlocked")


def replays_spool(seen: StoredLease, local: Local) -> bool:
    """Whether opening this job here replays the owner's spool first."""
    return may_have_spooled(seen) and spool_is_here(seen, local)


def abandons_spool(seen: StoredLease | None, local: Local) -> bool:
    """Whether opening this job now abandons what its owner may have spooled."""
    return seen is not None and may_have_spooled(seen) and not spool_is_orphaned(seen, local)


def unlock_wait(seen: StoredLease, local: Local) -> float:
    """Return the seconds until an unlocked job may be opened (R8): one ttl after the unlocking; none where a person
    declared the old host off, or the kernel reports the old owner dead."""
    gone = (same_kernel(seen, local) and local.lock == "dead") or (
        bool(seen.doc.spool) and spool_is_orphaned(seen, local)
    )
    return 0.0 if seen.doc.off or gone else expires_in(seen, local)


def owner_is_dead(seen: StoredLease, local: Local) -> bool:
    """Whether the owner is dead: by its flock in the same kernel and pid namespace, by the lock of a spool on this
    machine, else by the ttl."""
    if seen.doc.spool and local.spool != "absent":
        return spool_is_orphaned(seen, local)
    if same_kernel(seen, local) and local.lock != "unknown":
        return local.lock == "dead"
    return expires_in(seen, local) <= 0


def same_kernel(seen: StoredLease, local: Local) -> bool:
    return seen.doc.host.same_kernel(local.boot, local.pidns)


def lease_age(seen: StoredLease) -> float:
    """Return the seconds since the last write of the lease, by the store's own clock."""
    return max(0.0, seen.now - seen.updated)


def expires_in(seen: StoredLease, local: Local) -> float:
    """Return the seconds until the ttl has passed since the last write, by the store's clock or by `unchanged`."""
    return max(0.0, seen.doc.ttl - max(lease_age(seen), local.unchanged))


def _describe_holder(job: str, seen: StoredLease) -> str:
    host = seen.doc.host
    return f"job {job} is running on {host.name} (pid {host.pid}, heartbeat {_format_seconds(lease_age(seen))} ago)."


def _decline_running(job: str, seen: StoredLease, local: Local, url: str, starts: bool) -> Decline:
    left = expires_in(seen, local)
    locked = same_kernel(seen, local) and local.lock == "alive"
    spooled_here = bool(seen.doc.spool) and spool_is_here(seen, local)
    look, stop = job_command("status", job, url), job_command("stop", job, url)
    look_or_stop = f"look with `{look}`, or end it with `{stop}`."
    if not starts:
        return Decline(_describe_holder(job, seen), look_or_stop[:1].upper() + look_or_stop[1:])
    if (lease_age(seen) > seen.doc.ttl / 2 or spooled_here) and not locked:
        return Decline(
            _describe_holder(job, seen),
            f"If it is dead, it can be taken over in {_format_seconds(left)}; wait for it with --wait, {look_or_stop}",
        )
    return Decline(_describe_holder(job, seen), f"Wait for it with --wait, {look_or_stop}")


def end_pause_command(job: str, url: str) -> str:
    return f"{job_command('pause', job, url)} --end"


def _decline_spooled(job: str, seen: StoredLease, local: Local, wait: bool, starts: bool) -> Decline | Wait:
    """Decline or wait: no timeout ends the ownership of a run that may have spooled (R9)."""
    doc = seen.doc
    if not owner_is_dead(seen, local) and (doc.state == "held" or local.spool == "held"):
        why, hint = (
            _describe_holder(job, seen),
            "Wait for it with --wait, or stop it there." if starts else "Stop it there.",
        )
    elif local.name and local.name == doc.host.name:
        why = f"job {job} may have records that only {doc.spool} has; it was not found under {local.spools} here."
        hint = "Give it back, with HOME and XDG_STATE_HOME as they were then; or go on without them: --accept-loss."
    else:
        why = f"job {job} may have records that only {doc.host.name} has, in {doc.spool} (--on-outage spool)."
        hint = "Start it on that machine, which carries them in; or go on without them: --accept-loss."
    return Wait(POLL_INTERVAL, why) if wait else Decline(why, hint)


def _format_seconds(value: float) -> str:
    return f"{max(0, round(value))} s"


StopKind = Literal["", "handed_over", "halted", "stopped", "failed"]
"""`handed_over`: its machine went away, or had no bucket; `halted`: a person is needed; `stopped`: wal-agent ended the
agent for a reason of its own; `failed`: the agent failed, or died; "": any other end by the agent or a person."""

_KIND_BY_CLASS: Final[dict[str, StopKind]] = {
    "context": "halted",
    "stopped": "stopped",
    **dict.fromkeys(("failed", "incomplete", "killed", "out_of_memory", "heap", "hung", "quota"), "failed"),
}


def is_removed(seen: StoredLease) -> bool:
    """Whether the job was deleted, and nobody has started it since. Pure."""
    return seen.doc.state == "closed" and seen.doc.reason == REMOVED


def classify_stop(reason: str, cls: str = "") -> StopKind:
    """Classify why the lease was released. `cls`: how the agent ended (records.ExitClass), where the log was read: a
    reason may be the agent's own text."""
    if yield_reason(reason) or _NOT_BEGUN.match(reason):
        return "handed_over"
    if _HALTED.match(reason):
        return "" if _BY_A_PERSON.match(reason) else "halted"
    return "failed" if _FAILED.fullmatch(reason) else _KIND_BY_CLASS.get(cls, "")


def failure_text(reason: str) -> str:
    """ "the agent failed with 41", "the agent failed: killed by SIGKILL"."""
    code = re.fullmatch(r"the agent ended with (\d{1,3})", reason)
    return f"the agent failed with {code[1]}" if code else f"the agent failed: {reason.removeprefix('the agent ')}"


class Crash(msgspec.Struct, frozen=True):
    """`cls` and `place` are "" where the whole run was cut off, and nothing could log them."""

    time: float
    cls: ExitClass | Literal[""] = ""
    place: str = ""


class Stuck(msgspec.Struct, frozen=True):
    """It died twice in a row in the same way at the same place: in `call`, or between two calls."""

    cls: ExitClass | Literal[""]
    call: OpenCall | None


def recent(state: State, opening: Opening, window: float) -> tuple[Crash, ...]:
    """Return the crashes of the last `window` seconds, oldest first; `opening` may have found one. Hosts' clocks
    differ, but what is far in the future does not count."""
    openings = (*(o.opening for o in state.openings), opening)
    found = [Crash(o.time) for o in openings if o.cause == "dead"]
    found += [Crash(e.time, e.cls, e.place) for e in state.ends if e.cls in CRASH_CLASSES]
    return tuple(sorted((c for c in found if abs(c.time - opening.time) < window), key=lambda c: c.time))


def find_stuck(state: State, home: Opening | None, opening: Opening) -> Stuck | None:
    """Find where the last two runs died alike. A call that a person has settled since does not count."""
    if state.ended is not None:
        return _ended_alike(state)
    return _cut_off_alike(state, home, opening) if home is not None else None


def _ended_alike(state: State) -> Stuck | None:
    if len(state.ends) < 2:
        return None
    before, last = state.ends[-2:]
    if last.cls not in CRASH_CLASSES or not last.place or (last.cls, last.place) != (before.cls, before.place):
        return None
    kind, _, key = last.place.partition(" ")[2].partition(" ")
    if kind != "call":
        return Stuck(last.cls, None)
    mine = (o for o in reversed(state.open) if o.epoch == state.home)
    return next((Stuck(last.cls, o) for o in mine if call_key(o.intent) == key), None)


def _cut_off_alike(state: State, home: Opening, opening: Opening) -> Stuck | None:
    """Whether two runs in a row were cut off as a whole, each in an equal call: the first one's call is still open,
    since the turn that reported it was never completed."""
    if not (home.cause == opening.cause == "dead") or opening.time - home.time > STUCK_WINDOW:
        return None
    mine = [o for o in state.open if o.epoch == home.epoch]
    earlier = {call_key(o.intent) for o in state.open if o.epoch < home.epoch}
    return Stuck("", mine[-1]) if mine and call_key(mine[-1].intent) in earlier else None


def crash_place(state: State, epoch: int) -> str:
    """Return a key that is equal for crashes at the same place: the session, and the newest open call of `epoch` by
    tool and input; else the number of calls so far."""
    mine = [o.intent for o in state.open if o.epoch == epoch]
    return f"{state.session} call {call_key(mine[-1])}" if mine else f"{state.session} after {state.calls}"


def call_key(call: Intent) -> str:
    """Return a key that is equal for calls of one tool with the same input, in any run."""
    return hashlib.sha256(f"{call.tool}\0{_content(call.input)}".encode("utf-8", "replace")).hexdigest()[:16]


def _content(input: Payload) -> str:
    if input.data is not None:
        return hashlib.sha256(input.data).hexdigest()
    return (input.blob or "").partition("-")[0]  # without the epoch, see wal/keys.py


# ---- words


def describe_class(cls: str) -> str:
    return messages.CRASHES.get(cls, cls)


def describe_classes(found: tuple[Crash, ...]) -> str:
    """ "killed: out of memory", or each way once, most frequent first."""
    ways = [c.cls for c in found]
    return "; ".join(describe_class(cls) for cls in sorted(set(ways), key=lambda cls: (-ways.count(cls), cls)))


def describe_call(call: Intent) -> str:
    """ "run_shell_command `make e2e`"; foreign text, made safe."""
    if call.input.data is None:
        return call.tool
    return f"{call.tool} {inline(show_input(call.tool, call.input.data), 80)}"


def describe_place(state: State, found: tuple[Crash, ...]) -> str:
    """ " all in ..." where that is so, else the newest call that is known, else ""."""
    places = {c.place for c in found}
    for o in reversed(state.open) if len(places) == 1 else ():
        if all(p.endswith(f" call {call_key(o.intent)}") for p in places):
            return f", all in {describe_call(o.intent)}"
    if state.open:
        return f", the last one in {describe_call(state.open[-1].intent)}"
    return f", the last tool was {state.last_tool}" if state.last_tool else ""

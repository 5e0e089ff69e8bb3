"""Carry out what a person decides about a job: take it from its owner (R8), settle a call (I8), pause it.

A decision on a call is given to the live run where there is one here, else written under an own epoch. A pause is
durable in the lease: a live run is asked to end in good order, the released lease of a job that nobody runs is put off;
whoever starts the job waits for it (lease_policy).
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import BucketError, Damaged, LeaseHeld, UsageError
from wal_agent.records import End, StepEnded
from wal_agent.recovery.lease_policy import (
    LONGEST_PAUSE,
    MAX_REASON,
    Acquire,
    Decline,
    Local,
    Wait,
    admit,
    end_pause_command,
    lease_age,
    owner_is_dead,
    pause_left,
    pause_text,
    unlock_wait,
)
from wal_agent.recovery.messages import DENY_PAUSING
from wal_agent.supervise import control
from wal_agent.supervise.at_rest import JobAccess, RunHasJob, act_unowned, kept_reason, leaving, require_lease
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.supervise.processes import MARKER, SOCKET
from wal_agent.text import duration, job_command, moment
from wal_agent.wal import lease as leases
from wal_agent.wal.damage import sound_state, unknown_job_error
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease, replace_damaged_lease, reschedule_pause
from wal_agent.wal.reader import read_tail
from wal_agent.wal.state import State

MAX_UNLOCK_REASON = 500  # characters
SHORTEST_PAUSE = 1.0  # seconds
PAUSE_BUDGET = 60.0  # seconds at least for tools that run, and for saving: nothing hurries a pause
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FOR = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_WAYS = "Say --for 30s, 10m, 2h or 1d, or --until a time: 14:30, 14:30:05 (local), or 2026-11-22T14:30:00Z."


# ---- unlock


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
    doc = leases.unlock(
        bucket, keys, SystemClock(), random.Random(), seen=seen, reason=replace_bytes(request.reason), off=request.off
    )
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
        bucket,
        keys,
        SystemClock(),
        random.Random(),
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


def replace_bytes(reason: str) -> str:
    """As it can be stored: an argument may hold bytes that are no text."""
    return reason.encode("utf-8", "replace").decode()


# ---- acknowledge a call


def acknowledged_end(state: State, call: int, done: bool, now: float) -> End:
    """The record that settles an open call; UsageError when it is not open."""
    if all(o.intent.call != call for o in state.open):
        known = ", ".join(f"#{o.intent.call}" for o in state.open) or "none"
        raise UsageError(f"Call #{call} is not open, so there is nothing to settle.", f"Open calls: {known}.")
    return End(
        time=now,
        call=call,
        how="resolved",
        by="person",
        finding="completed" if done else "not_started",
        why=f"a person looked and says that it was {'done' if done else 'not done'}",
    )


def acknowledge_call(at: JobAccess, call: int | str, done: bool) -> None:
    """Settle the call, or the step of this name, durably: by its live run, where there is one here, else under an epoch
    of its own. UsageError: it is not open; LeaseHeld: a run that cannot be reached from here has it, or this
    machine's spool holds records that come before it; Denied: the job is encrypted with another key."""
    seen = at.lease()

    def settle(job: OpenedJob) -> None:
        state, now = job.replay.state, SystemClock().now()
        wanted: Literal["closed", "released"] = "closed" if state.turn == "completed" else "released"
        with leaving(job, seen, wanted, kept_reason(seen.doc.reason)):
            job.writer.append(_settling_record(sound_state(job.replay), call, done, now))

    def check(state: State) -> None:
        _settling_record(state, call, done, 0.0)

    try:
        act_unowned(at, seen, settle, check)
    except RunHasJob:
        question = {"call" if isinstance(call, int) else "step": call, "done": done}
        answer = control.ask_run(seen.doc.host, seen.doc.run, (at.bucket.url, at.keys.job), control.ACK, question)
        if control.unless_refused(answer) is None:
            raise


def _settling_record(state: State, call: int | str, done: bool, now: float) -> End | StepEnded:
    """What settles a call, or the step of this name. UsageError."""
    if isinstance(call, int):
        return acknowledged_end(state, call, done, now)
    from wal_agent.supervise.steps import settled_step

    return settled_step(state, call, done, now)


def answer_for_call(env: Mapping[str, str], call: int, because: str) -> None:
    """Record the agent's word on a call that its recovery asked about, by the run whose tool this is. UsageError: this
    is no tool of a run, or the run refuses."""
    if not because.strip():
        raise UsageError("--because is empty.", "Say what you found, with the command that showed it.")
    if control.unless_refused(ask_own_run(env, control.SETTLE, {"call": call, "because": because})) is None:
        raise UsageError(
            "`wal-agent settle` is for the agent, in a tool of its run; no such run answers here.",
            f"A person resolves a call with: wal-agent ack {call} --job JOB --done (or --not-done)",
        )


def ask_own_run(env: Mapping[str, str], event: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """Ask the live run whose tool this is, by its environment; None: there is none, or it does not answer."""
    path, run = env.get(SOCKET), env.get(MARKER)
    return control.ask_socket(Path(path), run, event, question) if path and run else None


def checkpoint_own_run(env: Mapping[str, str], question: dict[str, Any]) -> dict[str, Any] | None:
    """Have the run whose tool this is make a checkpoint; its job and number, None where no run answers. UsageError: it
    refuses."""
    return control.unless_refused(ask_own_run(env, control.CHECKPOINT, question))


def checkpoint_job(bucket: Bucket, keys: Keys, question: dict[str, Any]) -> dict[str, Any]:
    """Have the job's live run on this machine make a checkpoint; its job and number. UsageError: no run answers, or it
    refuses."""
    doc = require_lease(bucket, keys).doc
    held = doc.state == "held"
    job = (bucket.url, keys.job)
    answer = control.ask_run(doc.host, doc.run, job, control.CHECKPOINT, question) if held else None
    said = control.unless_refused(answer)
    if said is None:
        raise UsageError(
            f"Job {keys.job} does not run on this machine, so no checkpoint was made.",
            f"Its state as of its newest record: {job_command('checkpoint show', *reversed(job))}",
        )
    return said


# ---- pause


class PauseRequest(msgspec.Struct, frozen=True):
    """What was asked for: `lasts` or `until` as they were typed, one of them."""

    lasts: str | None
    until: str | None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.lasts is None) == (self.until is None):
            raise UsageError("For how long?", _WAYS)
        if len(self.reason) > MAX_REASON:
            raise UsageError(f"The reason has {len(self.reason)} characters.", f"At most {MAX_REASON}, please.")
        self.seconds(0.0)  # what cannot be read is refused before anything is looked up

    def seconds(self, now: float) -> float:
        """How long it is to last from `now` (since 1970) on. UsageError; with `now` 0 only what cannot be read."""
        if self.lasts is not None:
            return check_length(parse_duration(self.lasts))
        assert self.until is not None
        seconds = parse_time(self.until, now) - now
        return check_length(seconds) if now else seconds


class PauseResult(JsonAnswer, frozen=True, tag=schema_name("pause")):
    """`wal-agent pause`, for scripts too. `pausing`: a live run is on its way out; `until`: seconds since 1970."""

    job: str
    state: Literal["pausing", "paused", "ended", "not_paused"]
    said: str
    until: float = 0.0
    reason: str = ""


def parse_duration(text: str, hint: str = _WAYS) -> float:
    """Seconds of "30s", "10m", "2h", "1.5d". UsageError, with `hint`."""
    if (match := _FOR.fullmatch(text.strip().lower())) is None:
        raise UsageError(f"{text[:60]!r} is no duration.", hint)
    return float(match[1]) * _UNITS[match[2]]


def parse_time(text: str, now: float) -> float:
    """Seconds since 1970 of a time, local where it names no zone; a time of day means the next one after `now`."""
    if match := _CLOCK.fullmatch(text.strip()):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        today = datetime.fromtimestamp(now)
        at = today.replace(hour=hours, minute=minutes, second=seconds, microsecond=0)
        return (at if at > today else at + timedelta(days=1)).timestamp()
    try:
        when = datetime.fromisoformat(text.strip())
        return when.timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{text[:60]!r} is no time.", _WAYS) from None


def check_length(seconds: float) -> float:
    """`seconds`, if a pause may last so long."""
    if not math.isfinite(seconds) or seconds < SHORTEST_PAUSE:
        raise UsageError("That is over already, or less than a second from now.", _WAYS)
    if seconds > LONGEST_PAUSE:
        raise UsageError(f"That is more than {LONGEST_PAUSE / 86_400:.0f} days from now.", _WAYS)
    return seconds


def pause_plan(question: Mapping[str, Any], clock: Clock, drain: float) -> ShutdownPlan:
    """What a live run makes of the question that it is asked. UsageError. `drain`: seconds that SIGTERM gives."""
    try:
        seconds, reason = check_length(float(question["seconds"])), str(question["reason"])[:MAX_REASON]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("That is no question of `wal-agent pause`.") from error
    began, resume_at = clock.boot(), clock.now() + seconds
    until = began + max(drain, PAUSE_BUDGET)
    return ShutdownPlan("pause", "pause", began, until, DENY_PAUSING, resume_at, clean_reason(reason))


def clean_reason(reason: str) -> str:
    """As it can be stored: one line, and an argument may hold bytes that are no text."""
    return " ".join(replace_bytes(reason).split())


def ask_this_run(env: Mapping[str, str], wanted: PauseRequest, clock: Clock) -> PauseResult | None:
    """Ask the run whose tool this is, by its environment; None: there is none, or it does not answer."""
    question = _question(wanted, now := clock.now())
    if step := env.get("WAL_AGENT_STEP"):
        question["step"] = step
    answer = ask_own_run(env, control.PAUSE, question)
    return None if answer is None else _pausing(answer, "", now, question, agents=True)


def pause_job(bucket: Bucket, keys: Keys, wanted: PauseRequest, env: Mapping[str, str]) -> PauseResult:
    """Pause the job wherever it stands. UsageError: there is none, it has ended or was cut off; LeaseHeld: a run that
    cannot be reached from here has it, or the lease changed at the same moment."""
    seen = require_lease(bucket, keys)
    doc = seen.doc
    if doc.state == "closed":
        raise UsageError(
            f"Job {keys.job} has come to its end, so there is nothing to pause.",
            f"See: {job_command('status', keys.job, bucket.url)}",
        )
    local = probe_holder(seen, this_host(env, Path(os.devnull)), spools_dir(env), bucket.url)
    match admit(keys.job, seen, local, pauses="ignore"):
        case Acquire("released"):
            lasts = wanted.seconds(seen.now)
            now_doc = reschedule_pause(
                bucket, keys, SystemClock(), random.Random(), seen=seen, lasts=lasts, reason=clean_reason(wanted.reason)
            )
            return _paused(keys.job, bucket.url, seen.now + lasts, seen.now, now_doc.reason)
        case Decline(sentence, _):
            question = _question(wanted, seen.now)
            answer = control.ask_run(doc.host, doc.run, (bucket.url, keys.job), control.PAUSE, question)
            if answer is None:
                raise LeaseHeld(
                    sentence,
                    f"It cannot be reached from here; pause it there: {job_command('pause', keys.job, bucket.url)}",
                )
            return _pausing(answer, bucket.url, seen.now, question, agents=env.get(MARKER) == doc.run)
        case Wait(_, why):
            raise LeaseHeld(f"{why[:1].upper()}{why[1:]}.", "There is nothing to pause until it is started.")
        case Acquire(_):
            how = "unlocked by a person" if doc.state == "unlocked" else f"cut off on {doc.host.name}"
            raise UsageError(
                f"Job {keys.job} was {how} and is not recovered yet, so there is nothing to pause: what was in flight "
                "has not been verified.",
                f"To recover it: {job_command('resume', keys.job, bucket.url)}",
            )


def end_pause(bucket: Bucket, keys: Keys) -> PauseResult:
    """End the job's pause. UsageError: there is no such job; LeaseHeld: the lease changed at the same moment."""
    seen = require_lease(bucket, keys)
    if pause_left(seen) <= 0:
        running = seen.doc.state == "held"
        how = (
            "it is running, or about to end for its pause" if running else "the next `wal-agent run` starts it at once"
        )
        return PauseResult(keys.job, "not_paused", f"job {keys.job} is not paused: {how}.")
    reschedule_pause(bucket, keys, SystemClock(), random.Random(), seen=seen, lasts=0.0, reason=seen.doc.reason)
    return PauseResult(
        keys.job,
        "ended",
        f"the pause of job {keys.job}, until {pause_text(seen)}, is ended. A start that waits for it goes on within "
        f"30 s; else start it with `{job_command('resume', keys.job, bucket.url)}`.",
        reason=seen.doc.reason,
    )


def _question(wanted: PauseRequest, now: float) -> dict[str, Any]:
    return {"seconds": wanted.seconds(now), "reason": clean_reason(wanted.reason)}


def _pausing(answer: dict[str, Any], url: str, now: float, question: Mapping[str, Any], *, agents: bool) -> PauseResult:
    """`question`: as it was asked at `now`; answering may have taken until the time that was meant. `agents`: a tool of
    this very run asked, so the words are for its agent; else a person reads them."""
    control.unless_refused(answer)
    job, lasts = str(answer.get("job", "")), float(question["seconds"])
    until = now + lasts
    if agents:
        follows = (
            "This run now saves, stops and continues then; the pause counts once the run is saved. Start nothing "
            "new; say in one line where you are and stop."
        )
    else:
        follows = (
            "Its run now saves, stops and continues then; the pause counts once the run is saved, and is then "
            f"ended with: {end_pause_command(job, url)}"
        )
    return PauseResult(
        job,
        "pausing",
        f"job {job} is being paused until {_when(until, now, lasts)}. {follows}",
        until,
        str(question["reason"]),
    )


def _paused(job: str, url: str, until: float, now: float, reason: str) -> PauseResult:
    when = _when(until, now, until - now)
    end = end_pause_command(job, url)
    said = f"job {job} is paused until {when}. Whoever starts it waits for that; end it with: {end}"
    return PauseResult(job, "paused", said, until, reason)


def _when(until: float, now: float, lasts: float) -> str:
    return f"{moment(until, now, exact=lasts < 600)} (in {duration(lasts)})"

"""Pause a job: a live run is asked to end in good order, the released lease of a job that nobody runs is put off.

A pause is durable in the lease; whoever starts the job waits for it (lease_policy).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.errors import LeaseHeld, UsageError
from wal_agent.operate.at_rest import require_lease
from wal_agent.recovery.lease_policy import (
    MAX_REASON,
    Acquire,
    Decline,
    Wait,
    admit,
    end_pause_command,
    pause_text,
)
from wal_agent.supervise import control
from wal_agent.supervise.control import ask_own_run
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.supervise.pausing import PAUSE_HINT, check_length, clean_reason, lift_pause, parse_duration
from wal_agent.supervise.processes import MARKER
from wal_agent.text import duration, job_command, moment
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import reschedule_pause
from wal_agent.wal.store import JobStore

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


class PauseRequest(msgspec.Struct, frozen=True):
    """What was asked for: `lasts` or `until` as they were typed, one of them."""

    lasts: str | None
    until: str | None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.lasts is None) == (self.until is None):
            raise UsageError("For how long?", PAUSE_HINT)
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
        raise UsageError(f"{text[:60]!r} is no time.", PAUSE_HINT) from None


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
    match admit(seen, local, pauses="ignore"):
        case Acquire("released"):
            lasts = wanted.seconds(seen.now)
            now_doc = reschedule_pause(
                JobStore(bucket, keys), seen=seen, lasts=lasts, reason=clean_reason(wanted.reason)
            )
            return _paused(keys.job, bucket.url, seen.now + lasts, seen.now, now_doc.reason)
        case Decline(sentence, _):
            question = _question(wanted, seen.now)
            answer = control.ask_run(doc.host, doc.run, (bucket.url, keys.job), control.PAUSE, question)
            if answer is None:
                again = f"{job_command('pause', keys.job, bucket.url)} --for {wanted.seconds(seen.now):.0f}s"
                raise LeaseHeld(sentence, f"It cannot be reached from here; pause it there: {again}")
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
    if not lift_pause(bucket, keys, seen):
        running = seen.doc.state == "held"
        how = (
            "it is running, or about to end for its pause" if running else "the next `wal-agent run` starts it at once"
        )
        return PauseResult(keys.job, "not_paused", f"job {keys.job} is not paused: {how}.")
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

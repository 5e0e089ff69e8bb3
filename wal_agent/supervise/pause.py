"""Pausing a job: for how long, and how it comes about. A live run is asked to end in good order; the released lease of
a job that nobody runs is put off. The pause is durable in the lease: whoever starts the job waits for it (admit)."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import LeaseHeld, UsageError
from wal_agent.recovery.damage import missing_lease_error
from wal_agent.recovery.format import duration, moment
from wal_agent.recovery.lease_policy import (
    END_PAUSE,
    LONGEST_PAUSE,
    MAX_REASON,
    Acquire,
    Decline,
    Wait,
    admit,
    pause_left,
    pause_text,
)
from wal_agent.recovery.prompt import DENY_PAUSING
from wal_agent.supervise import hook_server
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.supervise.processes import MARKER
from wal_agent.supervise.shutdown import ShutdownPlan
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import reschedule_pause
from wal_agent.wal.lease_doc import StoredLease

SOCKET = "WAL_AGENT_SOCKET"  # in a run's environment, beside its id
SHORTEST = 1.0  # seconds
LINGER = 10.0  # seconds for the agent's last word, from when nothing runs any more
BUDGET = 60.0  # seconds at least for tools that run, and for saving: nothing hurries a pause
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FOR = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_WAYS = "Say --for 30s, 10m, 2h or 1d, or --until a time (UTC): 14:30, 14:30:05, 2026-11-22T14:30:00Z."


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """What was asked for: `lasts` or `until` as they were typed, one of them."""

    lasts: str | None
    until: str | None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.lasts is None) == (self.until is None):
            raise UsageError("For how long?", _WAYS)
        if len(self.reason) > MAX_REASON:
            raise UsageError(f"The reason has {len(self.reason)} characters.", f"At most {MAX_REASON}, please.")
        self.seconds(0.0)  # what cannot be read is told before anything is looked up

    def seconds(self, now: float) -> float:
        """How long it is to last from `now` (since 1970) on. UsageError; with `now` 0 only what cannot be read."""
        if self.lasts is not None:
            return check_length(parse_duration(self.lasts))
        assert self.until is not None
        seconds = parse_time(self.until, now) - now
        return check_length(seconds) if now else seconds


class PauseResult(msgspec.Struct, frozen=True):
    """`wal-agent pause`, for scripts too. `pausing`: a live run is on its way out; `until`: seconds since 1970."""

    job: str
    state: Literal["pausing", "paused", "ended", "not_paused"]
    said: str
    until: float = 0.0
    reason: str = ""


# --- pure


def parse_duration(text: str) -> float:
    """Seconds of "30s", "10m", "2h", "1.5d"."""
    if (match := _FOR.fullmatch(text.strip().lower())) is None:
        raise UsageError(f"{text[:60]!r} is no duration.", _WAYS)
    return float(match[1]) * _UNITS[match[2]]


def parse_time(text: str, now: float) -> float:
    """Seconds since 1970 of a time (UTC); a time of day means the next one after `now`."""
    if match := _CLOCK.fullmatch(text.strip()):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        today = datetime.fromtimestamp(now, UTC)
        at = today.replace(hour=hours, minute=minutes, second=seconds, microsecond=0)
        return (at if at > today else at + timedelta(days=1)).timestamp()
    try:
        when = datetime.fromisoformat(text.strip())
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{text[:60]!r} is no time.", _WAYS) from None


def check_length(seconds: float) -> float:
    """`seconds`, if a pause may last so long."""
    if not math.isfinite(seconds) or seconds < SHORTEST:
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
    began = clock.boot()
    return ShutdownPlan(
        "pause", "pause", began, began + max(drain, BUDGET), DENY_PAUSING, clock.now() + seconds, clean_reason(reason)
    )


def may_end_paused(now: float, began: float, busy: float, free: bool) -> bool:
    """Whether a paused agent may be ended now. `began`: the pause; `busy`: when a call was last seen to run
    (== `now`: one runs, of whatever kind); `free`: it has had its last word. All in boot time."""
    return busy < now and (free or now >= max(began, busy) + LINGER)


def clean_reason(reason: str) -> str:
    """As it can be stored: one line, and an argument may hold bytes that are no text."""
    return " ".join(reason.encode("utf-8", "replace").decode().split())


# --- acting


def ask_this_run(env: Mapping[str, str], wanted: PauseRequest, clock: Clock) -> PauseResult | None:
    """Ask the run whose tool this is, by its environment; None: there is none, or it does not answer."""
    path, run = env.get(SOCKET), env.get(MARKER)
    if not path or not run:
        return None
    question = _question(wanted, now := clock.now())
    answer = hook_server.ask_socket(Path(path), run, hook_server.PAUSE, question)
    return None if answer is None else _pausing(answer, now, question, agents=True)


def pause_job(bucket: Bucket, keys: Keys, wanted: PauseRequest, env: Mapping[str, str]) -> PauseResult:
    """Pause the job wherever it stands. UsageError: there is none, it has ended or was cut off; LeaseHeld: a run that
    cannot be reached from here has it, or the lease changed at the same moment."""
    seen = _read(bucket, keys)
    doc = seen.doc
    if doc.state == "closed":
        raise UsageError(f"Job {keys.job} has come to its end, so there is nothing to pause.", "See: wal-agent status")
    local = probe_holder(seen, this_host(env, Path(os.devnull)), spools_dir(env), bucket.url)
    match admit(keys.job, seen, local, pauses="ignore"):
        case Acquire("released"):
            lasts = wanted.seconds(seen.now)
            now_doc = reschedule_pause(
                bucket, keys, SystemClock(), random.Random(), seen=seen, lasts=lasts, reason=clean_reason(wanted.reason)
            )
            return _paused(keys.job, seen.now + lasts, seen.now, now_doc.reason)
        case Decline(sentence, _):
            question = _question(wanted, seen.now)
            answer = hook_server.ask_run(doc.host, doc.run, hook_server.PAUSE, question)
            if answer is None:
                raise LeaseHeld(
                    sentence, f"It cannot be reached from here; pause it there: wal-agent pause --job {keys.job} ..."
                )
            return _pausing(answer, seen.now, question, agents=env.get(MARKER) == doc.run)
        case Wait(_, why):
            raise LeaseHeld(f"{why[:1].upper()}{why[1:]}.", "Nothing to pause until somebody starts it.")
        case Acquire(_):
            how = "unlocked by a person" if doc.state == "unlocked" else f"cut off on {doc.host.name}"
            raise UsageError(
                f"Job {keys.job} was {how} and is not recovered yet, so there is nothing to pause: what was in flight "
                "has not been looked at.",
                "Recover it first, with `wal-agent run` (see: wal-agent recover --dry-run), or just do not start it.",
            )


def end_pause(bucket: Bucket, keys: Keys) -> PauseResult:
    """End the job's pause. UsageError: there is no such job; LeaseHeld: the lease changed at the same moment."""
    seen = _read(bucket, keys)
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
        "30 s; else start it with `wal-agent run`.",
        reason=seen.doc.reason,
    )


def _read(bucket: Bucket, keys: Keys) -> StoredLease:
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        if missing := missing_lease_error(bucket, keys):
            raise missing
        raise UsageError(f"There is no job {keys.job} in {bucket.url}.", "See --job and --bucket.")
    return seen


def _question(wanted: PauseRequest, now: float) -> dict[str, Any]:
    return {"seconds": wanted.seconds(now), "reason": clean_reason(wanted.reason)}


def _pausing(answer: Mapping[str, Any], now: float, question: Mapping[str, Any], *, agents: bool) -> PauseResult:
    """`question`: as it was asked at `now`; answering may have taken until the time that was meant. `agents`: a tool of
    this very run asked, so the words are for its agent; else a person reads them."""
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    job, lasts = str(answer.get("job", "")), float(question["seconds"])
    until = now + lasts
    if agents:
        follows = (
            "This run ends now in good order and goes on then; the pause counts once the run is saved. Start nothing "
            "new; say in one line where you are and stop."
        )
    else:
        follows = (
            "Its run ends now in good order and goes on then; the pause counts once the run is saved, and is then "
            f"ended with: {END_PAUSE} --job {job}"
        )
    return PauseResult(
        job,
        "pausing",
        f"job {job} is being paused until {_when(until, now, lasts)}. {follows}",
        until,
        str(question["reason"]),
    )


def _paused(job: str, until: float, now: float, reason: str) -> PauseResult:
    when = _when(until, now, until - now)
    said = f"job {job} is paused until {when}. Whoever starts it waits for that; end it with: {END_PAUSE} --job {job}"
    return PauseResult(job, "paused", said, until, reason)


def _when(until: float, now: float, lasts: float) -> str:
    return f"{moment(until, now, exact=lasts < 600)} UTC (in {duration(lasts)})"

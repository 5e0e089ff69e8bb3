"""What a live run makes of a pause that it is asked for, and how long one may last."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.errors import UsageError
from wal_agent.recovery.lease_policy import MAX_PAUSE, MAX_REASON, pause_left
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease, reschedule_pause
from wal_agent.wal.store import JobStore
from wal_agent.wording.messages import DENY_PAUSING

SHORTEST_PAUSE = 1.0  # seconds
PAUSE_BUDGET = 60.0  # seconds at least for tools that run, and for saving: nothing hurries a pause
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FOR = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])")
PAUSE_HINT = "Say --for 30s, 10m, 2h or 1d, or --until a time: 14:30, 14:30:05 (local), or 2026-11-22T14:30:00Z."


def parse_duration(text: str, hint: str = PAUSE_HINT) -> float:
    """Seconds of "30s", "10m", "2h", "1.5d". UsageError, with `hint`."""
    if (match := _FOR.fullmatch(text.strip().lower())) is None:
        raise UsageError(f"{text[:60]!r} is no duration.", hint)
    return float(match[1]) * _UNITS[match[2]]


def check_length(seconds: float) -> float:
    """`seconds`, if a pause may last so long."""
    if not math.isfinite(seconds) or seconds < SHORTEST_PAUSE:
        raise UsageError("That is over already, or less than a second from now.", PAUSE_HINT)
    if seconds > MAX_PAUSE:
        raise UsageError(f"That is more than {MAX_PAUSE / 86_400:.0f} days from now.", PAUSE_HINT)
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


def replace_bytes(reason: str) -> str:
    """As it can be stored: an argument may hold bytes that are no text."""
    return reason.encode("utf-8", "replace").decode()


def lift_pause(bucket: Bucket, keys: Keys, seen: StoredLease) -> bool:
    """End the pause that the lease says; whether it says one. LeaseHeld: the lease changed at the same moment."""
    if pause_left(seen) <= 0:
        return False
    reschedule_pause(JobStore(bucket, keys), seen=seen, lasts=0.0, reason=seen.doc.reason)
    return True

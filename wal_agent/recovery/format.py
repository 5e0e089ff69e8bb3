"""Format counts, sizes, durations and times for people. Times of day are UTC."""

from __future__ import annotations

import re
import time

_YIELDED = re.compile(r"(preempted|drained) \([A-Za-z-]{1,20}\)")


def yield_reason(why: str) -> str:
    """Return a `RunEnded.why` of a known form (why the run gave its job up), else "": a log's text is foreign."""
    return why if _YIELDED.fullmatch(why) else ""


def describe_reach(bucket: str, here: str) -> str:
    """Say where a job in `bucket` (a URL) can go on. `here`: a name of this machine."""
    return f"on {here}, or wherever else its bucket's folder is" if bucket.startswith("file:") else "anywhere"


def plural(n: int, noun: str) -> str:
    """ "1 call", "2 calls"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def clock_time(seconds: float) -> str:
    """ "14:02:13" of seconds since 1970 (UTC); total: times outside the calendar give "an unknown time"."""
    try:
        return time.strftime("%H:%M:%S", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def timestamp(seconds: float) -> str:
    """`clock_time`, with the date in front where that is not today's (UTC)."""
    try:
        then = time.gmtime(seconds)
    except (OverflowError, ValueError, OSError):
        return clock_time(seconds)
    day = "" if then[:3] == time.gmtime()[:3] else time.strftime("%Y-%m-%d ", then)
    return day + clock_time(seconds)


def moment(seconds: float, now: float, exact: bool = False) -> str:
    """ "14:02", `exact`: "14:02:13" where that is no whole minute; with the date in front where that is not the one of
    `now` (UTC)."""
    try:
        nearest = round(seconds) if exact else 60 * round(seconds / 60)
        then, today = time.gmtime(nearest), time.gmtime(now)
        day = "" if then[:3] == today[:3] else "%Y-%m-%d "
        return time.strftime(f"{day}%H:%M:%S" if then.tm_sec else f"{day}%H:%M", then)
    except (OverflowError, ValueError, OSError):
        return clock_time(seconds)


def duration(seconds: float) -> str:
    """ "3 s", "4 min", "2 h 14 min", "3 days"; never negative."""
    s = max(0, round(seconds)) if abs(seconds) < 1e12 else 0
    if s < 120:
        return f"{s} s"
    if s < 7200:
        return f"{s // 60} min"
    if s < 172_800:
        hours, minutes = divmod(s // 60, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{s // 86_400} days"


def size(n: int) -> str:
    """ "812 B", "1.2 kB", "3.4 MB"; decimal units."""
    if n < 1000:
        return f"{n} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if n < scale * 1000 or unit == "GB":
            break
    return f"{n / scale:.1f} {unit}"

"""Classify why an agent gave up, from the last error that it wrote to stderr, and when to retry.

The text is foreign: an agent's own sentences, or those of its model's provider.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from wal_agent.agents.base import ExitCause

_AFTER = re.compile(
    r"(?:retry|again|retry after) (?:in |after )?(?=[\d.])"
    r"(?:(\d{1,4}) ?d(?:ays?)?)? ?(?:(\d{1,4}) ?h(?:ours?)?)? ?(?:(\d{1,6}) ?m(?:in(?:ute)?s?)?(?![a-z]))? ?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(ms|s(?:ec(?:ond)?s?)?))?",
    re.IGNORECASE,
)
_AT = re.compile(
    r"(?:again at|resets(?: at)?) (?:([A-Z][a-z]{2}) (\d{1,2})(?:st|nd|rd|th)?,? (?:(\d{4}),? )?)?"
    r"(\d{1,2})(?::(\d\d))? ?([ap]m)\b(?: \(([A-Za-z_+/-]{1,40})\))?",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def retry_after_seconds(text: str, now: float) -> float:
    """Return seconds from `now` (since 1970), 0 for none: of "retry in 34.07s", "try again in 1h 5m", "try again at
    2:17 PM", "resets Nov 24, 3pm (UTC)"; the last one counts. A time of day is in this machine's zone, as the agent's
    is."""
    found = [(m.start(), _span(m)) for m in _AFTER.finditer(text)]
    found += [(m.start(), _moment(m, now)) for m in _AT.finditer(text)]
    return next((seconds for _, seconds in sorted(found, reverse=True) if seconds > 0), 0.0)


def _span(m: re.Match[str]) -> float:
    days, hours, minutes, number, unit = m.groups()
    seconds = float(number or 0) / (1000 if (unit or "").lower() == "ms" else 1)
    return int(days or 0) * 86_400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds


def _moment(m: re.Match[str], now: float) -> float:
    month, day, year, hour, minute, half, zone = m.groups()
    at = datetime.fromtimestamp(now, _zone(zone))
    try:
        then = at.replace(
            hour=int(hour) % 12 + (12 if half.lower() == "pm" else 0), minute=int(minute or 0), second=0, microsecond=0
        )
        if month is not None:
            then = then.replace(
                month=_MONTHS.index(month.lower()) + 1, day=int(day), year=int(year) if year else at.year
            )
    except ValueError:
        return 0.0
    if month is None and then <= at:
        then += timedelta(days=1)
    return max(0.0, then.timestamp() - now)


def _zone(name: str | None) -> tzinfo | None:
    """Return a named zone; None: this machine's."""
    if not name:
        return None
    from zoneinfo import ZoneInfo

    try:
        return UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


TOO_LONG = ExitCause("context", "the conversation is too long for the model")


def cause_from_last_error(
    stderr: bytes,
    now: float,
    *,
    last: re.Pattern[bytes],
    waits: re.Pattern[str] | None = None,
    too_long: re.Pattern[str] | None = None,
) -> ExitCause | None:
    """Return the cause that the last error names, or None. `last`: a pattern of an error, whose text is its first
    group; `too_long`: of a text that means a too long conversation; `waits`: of one that means that the model will
    serve again later (None: any)."""
    errors = last.findall(stderr)
    if not errors:
        return None
    why = errors[-1].decode("utf-8", "replace").strip()
    if too_long is not None and too_long.search(why):
        return TOO_LONG
    return ExitCause("quota", why, retry_after_seconds(why, now)) if waits is None or waits.search(why) else None

"""What an agent says on stderr when it gives up on its model: the last line of its own form that tells an error."""

from __future__ import annotations

import re

from wal_agent.agents.base import ExitCause
from wal_agent.agents.exit_text import retry_after_seconds

TOO_LONG = ExitCause("context", "the conversation is too long for the model")


def cause_from_last_error(
    said: bytes,
    now: float,
    *,
    last: re.Pattern[bytes],
    waits: re.Pattern[str] | None = None,
    too_long: re.Pattern[str] | None = None,
) -> ExitCause | None:
    """`last`: its first group is an error's words. Those say that the conversation is `too_long`, or that the model
    will serve again later (`waits`; None: any does); else nothing is known."""
    errors = last.findall(said)
    if not errors:
        return None
    why = errors[-1].decode("utf-8", "replace").strip()
    if too_long is not None and too_long.search(why):
        return TOO_LONG
    return ExitCause("quota", why, retry_after_seconds(why, now)) if waits is None or waits.search(why) else None

"""What Codex says on stderr when it gives up on its model; its exit code is 1 for all of it. A rate limit with a retry
time it waits for by itself, however long that is."""

from __future__ import annotations

import re

from wal_agent.agents.base import ExitCause
from wal_agent.agents.lasterror import cause_from_last_error

_LAST = re.compile(rb"^ERROR: (.{1,600})$", re.MULTILINE)
# Of an account without credit ("Quota exceeded. Check your plan") no time makes more.
_WAIT = re.compile(r"hit your usage limit|rate limit|high demand|429 too many requests|at capacity", re.IGNORECASE)
_LONG = re.compile(r"ran out of room in the model's context window", re.IGNORECASE)


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    return cause_from_last_error(said, now, last=_LAST, waits=_WAIT, too_long=_LONG)

"""What OpenCode says on stderr when it gives up on its model; its exit code is 1 then. A rate limit with a retry time
it waits for by itself, however long that is."""

from __future__ import annotations

import re

from wal_agent.agents.base import ExitCause
from wal_agent.agents.lasterror import cause_from_last_error

_LAST = re.compile(rb"^(?:\x1b\[\d+m)*Error: (?:\x1b\[\d+m)*(.{1,600})$", re.MULTILINE)
_LONG = re.compile(r"context window|context length|prompt is too long", re.IGNORECASE)
_WAIT = re.compile(r"rate limit|too many requests|overloaded|usage limit", re.IGNORECASE)


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    return cause_from_last_error(said, now, last=_LAST, waits=_WAIT, too_long=_LONG)

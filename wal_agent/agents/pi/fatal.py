"""What pi says on stderr when it gives up on its model; its exit code is 1 then. Of a conversation that is too long it
says nothing, and ends with 0."""

from __future__ import annotations

import re

from wal_agent.agents.base import ExitCause
from wal_agent.agents.lasterror import cause_from_last_error

_LAST = re.compile(rb"^((?:429|5\d\d) .{1,600})$", re.MULTILINE)


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    return cause_from_last_error(said, now, last=_LAST)

"""What Copilot says on stderr when it gives up on its model; its exit code is 1 for all of it."""

from __future__ import annotations

import re

from wal_agent.agents.base import ExitCause
from wal_agent.agents.lasterror import TOO_LONG, cause_from_last_error

_LAST = re.compile(rb"(?:^|Last error: )((?:429|5\d\d) .{1,600})$", re.MULTILINE)
_LONG = b"The provider rejected the prompt as too long"


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    return TOO_LONG if _LONG in said else cause_from_last_error(said, now, last=_LAST)

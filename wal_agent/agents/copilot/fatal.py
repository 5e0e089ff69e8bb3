"""What Copilot says on stderr when it gives up on its model; its exit code is 1 for all of it."""

from __future__ import annotations

import re

from wal_agent.agents.base import Death
from wal_agent.agents.retrytime import seconds_told

_LAST = re.compile(rb"(?:^|Last error: )((?:429|5\d\d) .{1,600})$", re.MULTILINE)
_LONG = b"The provider rejected the prompt as too long"


def fatal(said: bytes, now: float) -> Death | None:
    if _LONG in said:
        return Death("context", "the conversation is too long for the model")
    errors = _LAST.findall(said)
    if not errors:
        return None
    why = errors[-1].decode("utf-8", "replace").strip()
    return Death("quota", why, seconds_told(why, now))

"""What Qwen Code says on stderr when it gives up on its model; its exit code is 1 for all of it."""

from __future__ import annotations

import re

from wal_agent.agents.base import ExitCause
from wal_agent.agents.lasterror import cause_from_last_error

_LAST = re.compile(rb"\[API Error: (.{1,600}?)\]?\s*$", re.MULTILINE)
_LONG = re.compile(r"context window|context length|maximum number of tokens|input is too long", re.IGNORECASE)
_WAIT = re.compile(r"\A(?:429|5\d\d)\b|rate limit", re.IGNORECASE)


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    return cause_from_last_error(said, now, last=_LAST, waits=_WAIT, too_long=_LONG)

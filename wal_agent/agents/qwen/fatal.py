"""What Qwen Code says on stderr when it gives up on its model; its exit code is 1 for all of it."""

from __future__ import annotations

import re

from wal_agent.agents.base import Death
from wal_agent.agents.retrytime import seconds_told

_LAST = re.compile(rb"\[API Error: (.{1,600}?)\]?\s*$", re.MULTILINE)
_LONG = re.compile(r"context window|context length|maximum number of tokens|input is too long", re.IGNORECASE)


def fatal(said: bytes, now: float) -> Death | None:
    errors = _LAST.findall(said)
    if not errors:
        return None
    why = errors[-1].decode("utf-8", "replace").strip()
    if _LONG.search(why):
        return Death("context", "the conversation is too long for the model")
    if re.match(r"(?:429|5\d\d)\b", why) or "rate limit" in why.lower():
        return Death("quota", why, seconds_told(why, now))
    return None

"""What Gemini CLI says on stderr when it gives up on its model; its exit code is 1 for all of it."""

from __future__ import annotations

import re

from wal_agent.agents.base import ExitCause
from wal_agent.agents.exit_text import retry_after_seconds
from wal_agent.agents.lasterror import TOO_LONG

_HEAD = b"Error when talking to Gemini API"  # written once, by the end of a headless run
_LONG = re.compile(r"exceeds the maximum number of tokens|context window", re.IGNORECASE)


def exit_cause(said: bytes, now: float) -> ExitCause | None:
    _, head, after = said.rpartition(_HEAD)
    if not head:
        return None
    text = after[:4096].decode("utf-8", "replace")
    error = re.search(r"\b(\w*Error): *(.{0,300})", text)
    kind, why = (error[1], error[2]) if error else ("", "")
    if kind.endswith("QuotaError") or re.search(r"\bstatus: (?:429|5\d\d)\b", text):
        return ExitCause("quota", why, retry_after_seconds(text.partition("\n    at ")[0], now))
    return TOO_LONG if _LONG.search(why) else None

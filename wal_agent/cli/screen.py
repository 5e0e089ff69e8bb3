"""Write short lines for people to stderr. stdout belongs to the agent and to `--json`."""

from __future__ import annotations

import sys

from wal_agent.redact import redact
from wal_agent.sanitize import printable, shorten

MAX_MESSAGE = 2000  # characters of one message
MAX_REDACTED = 1_000_000  # characters of one that are looked at


def say(text: str) -> None:
    """Write one message as one line, redacted. A closed stderr loses it."""
    _write([shorten(f"wal-agent: {redact(text[:MAX_REDACTED])}", MAX_MESSAGE)])


def lines(rows: list[str]) -> None:
    """Write further lines of a message, redacted; the caller indents them."""
    if rows:
        _write([redact(row) for row in rows])


def _write(rows: list[str]) -> None:
    if sys.stderr is None:  # closed before we began; print would take stdout instead
        return
    try:
        print("\n".join(map(printable, rows)), file=sys.stderr, flush=True)
    except OSError:
        return

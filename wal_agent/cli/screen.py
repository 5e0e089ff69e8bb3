"""What people read: short lines on stderr. stdout belongs to the agent and to `--json`."""

from __future__ import annotations

import sys

from wal_agent.redact import redact
from wal_agent.sanitize import printable, shorten

MOST = 2000  # characters of one message
LONGEST = 1_000_000  # characters of one that are looked at


def say(text: str) -> None:
    """One message of ours, redacted, one line whatever stands in it. A closed stderr loses it; nothing else does."""
    _write([shorten(f"wal-agent: {redact(text[:LONGEST])}", MOST)])


def lines(rows: list[str]) -> None:
    """Further lines of the message before, redacted, indented by the caller; one row is one line."""
    if rows:
        _write([redact(row) for row in rows])


def _write(rows: list[str]) -> None:
    if sys.stderr is None:  # closed before we began; print would take stdout instead
        return
    try:
        print("\n".join(map(printable, rows)), file=sys.stderr, flush=True)
    except OSError:
        return

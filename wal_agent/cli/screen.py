"""Write short lines for people to stderr. stdout belongs to the agent and to `--json`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from wal_agent import __version__
from wal_agent.paths import state_dir
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


def report_bug(error: BaseException, env: Mapping[str, str]) -> str:
    """Write a full report, redacted, and return the one line that names it."""
    text = "".join(traceback.format_exception(error))
    body = redact(f"wal-agent {__version__}, Python {sys.version}\n{sys.platform}\n\n{text}")
    folder = state_dir(env) / "reports"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path: Path = folder / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.txt"
        path.touch(mode=0o600)
        path.write_text(body)
    except OSError:
        what = redact(f"{type(error).__name__}: {error}")
        return f"a bug in wal-agent: {what}. The report could not be written."
    return f"a bug in wal-agent: {type(error).__name__}. The full report is in {path}; please send it."

"""What people read: short lines on stderr. stdout belongs to the agent and to `--json`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from wal_agent import __version__
from wal_agent.supervise.local import state_dir


def say(text: str) -> None:
    """One message of ours. A closed stderr loses it; nothing else does."""
    try:
        print(f"wal-agent: {text}", file=sys.stderr, flush=True)
    except OSError:
        return


def lines(rows: list[str]) -> None:
    """Further lines of the message before, indented by the caller."""
    try:
        print("\n".join(rows), file=sys.stderr, flush=True)
    except OSError:
        return


def bold(text: str) -> str:
    """Bold on a terminal that wants it (NO_COLOR is kept), plain elsewhere."""
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        return f"\033[1m{text}\033[0m"
    return text


def ago(seconds: float) -> str:
    """A duration for people: `3 s`, `4 min`, `2 h 14 min`, `5 d`."""
    seconds = max(0, int(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 86400:
        hours, minutes = divmod(seconds // 60, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{seconds // 86400} d"


def clock_time(when: float) -> str:
    """UTC time of day, with the date when it is not today's."""
    form = "%H:%M:%S" if time.gmtime(when)[:3] == time.gmtime()[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.gmtime(when))


def size(count: float) -> str:
    """Bytes for people, powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def report_bug(error: BaseException, env: Mapping[str, str]) -> str:
    """Write a full report (redacted) and give the one line that names it."""
    from wal_agent.redact import redact

    text = "".join(traceback.format_exception(error))
    body = redact(f"wal-agent {__version__}, Python {sys.version}\n{sys.platform}\n\n{text}")
    folder = state_dir(env) / "reports"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path: Path = folder / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.txt"
        path.touch(mode=0o600)
        path.write_text(body)
    except OSError:
        return f"a bug in wal-agent: {type(error).__name__}: {error}. The report could not be written."
    return f"a bug in wal-agent: {type(error).__name__}. The full report is in {path}; please send it."

"""What a person reads of URLs that take nothing: one line, told once at a start, and in `wal-agent status` while it
lasts. The next message that a URL takes clears it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from wal_agent.notify.outbox import box_of
from wal_agent.notify.targets import Target
from wal_agent.recovery.words import moment


def failing(env: Mapping[str, str], targets: Sequence[Target], once: bool = False) -> str:
    """`once`: only what was not told so before."""
    box = box_of(env, targets)
    failures = box.failures()
    lines = [
        f"{number} ({target.hidden}) since {moment(failure.since, time.time())} UTC: {failure.why}"
        for number, target in enumerate(targets, 1)
        if (failure := failures.get(target.id)) and not (once and failure.told)
    ]
    if once and lines:
        with suppress(OSError):
            box.told()
    more = f" And {len(lines) - 1} more." if len(lines) > 1 else ""
    return f"notifications do not reach URL {lines[0]}.{more} Try: wal-agent notify --test" if lines else ""

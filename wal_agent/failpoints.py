"""Named places where a test kills this process with SIGKILL (tests/e2e/test_kill_matrix.py visits every one).

WAL_AGENT_FAILPOINT=name[:n][@file] kills at the n-th visit (default: first). Visits count once the file holds
something, so that a test can say from when on (a program makes its file before it writes). Unset costs one comparison.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

NAMES = (
    "run.before_lease",
    "run.after_lease",
    "opening.before_put",
    "opening.after_put",
    "run.before_agent",
    "run.after_agent_start",
    "append.before_put",
    "append.after_put",
    "append.after_ack",
    "blob.after_put",
    "snapshot.before_put",
    "snapshot.after_put",
    "retention.between_deletes",
    "restore.before_tree",
    "restore.after_tree",
    "restore.before_stage",
    "restore.staged",
    "restore.between_moves",
    "restore.after_moves",
    "recovery.before_record",
    "handoff.after_record",
    "recovery.after_record",
    "spool.before_store",
    "spool.after_store",
    "spool.before_drop",
    "spool.before_begin",
    "spool.before_rename",
    "spool.after_rename",
    "rewrite.before_record",
    "rewrite.before_place",
    "rewrite.staged",
    "rewrite.placed",
    "task.before_child",
    "task.after_child",
    "step.begun",
    "step.ran",
    "step.ended",
    "run.before_seal",
    "run.after_seal",
)

_where, _, _armed = os.environ.get("WAL_AGENT_FAILPOINT", "").partition("@")
_wanted, _, _count = _where.partition(":")
_left = int(_count or 1)


def failpoint(name: str) -> None:
    """Die here, at once and without any clean-up, when a test asked for it."""
    global _left
    if name != _wanted or (_armed and not _holds_something(_armed)):
        return
    assert name in NAMES, name
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _holds_something(path: str) -> bool:
    try:
        return Path(path).stat().st_size > 0
    except OSError:
        return False

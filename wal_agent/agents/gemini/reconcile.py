"""A child of a restored session file that resumes well. (being written)"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import LoggedCall, Reconciled


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    raise NotImplementedError

"""Would hooks fire here? (being written)"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import Env


def hooks_off(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    return None

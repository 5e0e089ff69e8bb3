"""What all suites share: the pinned real CLIs, installed by `make` (tests/agents.json)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / ".tools" / "npm" / "node_modules" / ".bin"


@pytest.fixture(scope="session")
def gemini_cli() -> Path:
    """The real Gemini CLI. Never skipped: without it nothing here proves anything."""
    path = Path(os.environ.get("WAL_AGENT_TEST_GEMINI") or TOOLS / "gemini")
    if not path.exists():
        pytest.fail(f"{path} is missing; install it with: make tools")
    return path

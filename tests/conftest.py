"""What every suite may use: the pinned real CLIs, and this folder as the package `tests`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a loaded machine is no failure. CI tries the same examples each time, people find new ones.
settings.register_profile(
    "all",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("all")

os.environ["TZ"] = "UTC"  # people read local times
time.tzset()

TESTS = Path(__file__).parent
collect_ignore = [] if os.environ.get("WAL_AGENT_BROWSER") else ["browser"]  # `make browser`
sys.path.insert(0, str(TESTS.parent))


def installed(agent: str, version: str = "") -> Path:
    """The real CLI of the version in tests/agents.json, or of one that stands there under `also`. Absent is a failure:
    nothing here is skipped."""
    named = os.environ.get(f"WAL_AGENT_TEST_{agent.upper()}") if not version else None
    folder = f"also/{agent}@{version}" if version else "npm"
    path = Path(named) if named else TESTS.parent / f".tools/{folder}/node_modules/.bin/{agent}"
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make tools`, or name one in WAL_AGENT_TEST_{agent.upper()}")
    return path


@pytest.fixture(scope="session")
def gemini_cli() -> Path:
    return installed("gemini")


@pytest.fixture(scope="session")
def agent_cli() -> Callable[..., Path]:
    """Name (and older version) to program."""
    return installed

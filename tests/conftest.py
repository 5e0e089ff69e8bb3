"""What every suite may use: the pinned real CLIs, and this folder as the package `tests`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.tiers import DEPTH, examples
from wal_agent.rehearsal.model import Json, Model, Reply
from wal_agent.text import MEANT

# No deadline: a loaded machine is no failure. `make test` tries the same examples each time, and so does CI at depth;
# a person's `make test-all` and `make fuzz` find new ones.
settings.register_profile(
    "all",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=DEPTH == 1 or bool(os.environ.get("CI")),
    print_blob=True,
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


REFUSED: list[str] = []  # what scripted models answered to conversations that their APIs would refuse
_refuse = Model.refuse


def _note_refusal(model: Model, path: str, body: Json) -> Reply | None:
    reply = _refuse(model, path, body)
    if reply is not None:
        REFUSED.append(reply.data.decode())
    return reply


Model.refuse = _note_refusal  # type: ignore[method-assign, assignment]


@pytest.fixture(autouse=True)
def _no_job_meant() -> None:
    """A process runs one command; here the errors of later tests would name the job of an earlier one."""
    MEANT.set("")


@pytest.fixture(autouse=True)
def _valid_requests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which an agent, or the setup before it, sent its model what a real API refuses for good."""
    yield
    refused = REFUSED[:1]
    REFUSED.clear()
    if refused and request.node.get_closest_marker("refused") is None:
        pytest.fail(f"the model's API would refuse what it was sent: {refused[0]}")

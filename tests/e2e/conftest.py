"""The stage of every end-to-end test: a real CLI, a scripted model, a folder bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.scene import Scene, agent_scene
from tests.mocks.gemini_model import GeminiModel


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, agent_cli: Callable[[str], Path]) -> Iterator[Scene]:
    """Gemini with its own mock; with a parameter, the agent of that name with a model of its dialect."""
    if hasattr(request, "param"):
        with agent_scene(tmp_path, agent_cli, request.param) as made:
            yield made
        return
    with GeminiModel() as model:
        made = Scene(tmp_path, agent_cli("gemini"), model)
        yield made
        made.close()

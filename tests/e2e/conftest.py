"""The stage of every end-to-end test: a real CLI, a scripted model, a folder bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.scene import USUAL, Scene, agent_scene


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, agent_cli: Callable[[str], Path]) -> Iterator[Scene]:
    """The usual agent; with a parameter, the one of that name."""
    with agent_scene(tmp_path, agent_cli, getattr(request, "param", USUAL)) as made:
        yield made

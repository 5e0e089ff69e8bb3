"""The stage of every end-to-end test: a real CLI, a scripted model, a folder bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scene import Scene
from tests.mocks.gemini_model import GeminiModel


@pytest.fixture
def scene(tmp_path: Path, gemini_cli: Path) -> Iterator[Scene]:
    with GeminiModel() as model:
        made = Scene(tmp_path, gemini_cli, model)
        yield made
        made.close()

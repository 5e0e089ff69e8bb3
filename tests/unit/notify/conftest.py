from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.notify.sink import Sink


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.notify.sink import Sink


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run waits for its own disk as long as that takes."""
    monkeypatch.setattr("wal_agent.notify.post.HAND_OVER", 60.0)


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

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for who listens as long as that takes."""
    monkeypatch.setattr("wal_agent.observe.logs.CLOSE_TIMEOUT", 60.0)

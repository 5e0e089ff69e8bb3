from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.nats import NatsServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server without a password."""
    found = NatsServer(tmp_path / "nats").start()
    yield found
    found.kill()

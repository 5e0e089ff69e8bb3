"""One tracer for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.evidence.halt import Halter


@pytest.fixture(scope="session")
def halter() -> Iterator[Halter]:
    made = Halter()
    yield made
    made.close()

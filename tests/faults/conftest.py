"""A sound job, made once, and a machine of its own with a copy of it for each test of a hostile bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.evidence.halt import Halter
from tests.faults.prober import Prober
from tests.faults.ruins import (
    Machine,
    a_job,
    opened,
)
from tests.faults.trial import Ruin


@pytest.fixture(scope="session")
def prober() -> Iterator[Prober]:
    prober = Prober()
    yield prober
    prober.close()


@pytest.fixture(scope="session")
def halter() -> Iterator[Halter]:
    """One tracer for all tests that end programs at an exact place."""
    made = Halter()
    yield made
    made.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """The sound job's folder, and its main file as of each segment."""
    folder = tmp_path_factory.mktemp("made")
    with opened((folder / "bucket").as_uri()) as bucket:
        history = a_job(bucket, folder / "scratch")
    return folder / "bucket", history


@pytest.fixture
def ruin(made: tuple[Path, list[bytes]], prober: Prober, tmp_path: Path) -> Iterator[Ruin]:
    shutil.copytree(made[0], tmp_path / "bucket")
    machine = Machine(tmp_path, prober, (tmp_path / "bucket").as_uri())
    yield Ruin(machine, made[1])
    machine.end()

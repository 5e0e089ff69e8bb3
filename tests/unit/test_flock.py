"""flock.py: a lock as a proof of life, and those who only look at it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal_agent.flock import flock_state, try_lock


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A lock file, opened twice: as by two processes."""
    path = tmp_path / "lock"
    both = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) for _ in range(2)]
    yield both[0], both[1]
    for fd in both:
        os.close(fd)


def test_who_looks_at_the_moment_does_not_keep_the_lock(
    opened: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """I2: else nobody serves what is locked, and each believes that another one does."""
    mine, looking = opened
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("wal_agent.flock.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
    assert try_lock(mine) and flock_state(tmp_path / "lock") == "held"


def test_a_living_owner_keeps_it(opened: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine, others = opened
    assert try_lock(others)
    pauses: list[float] = []
    monkeypatch.setattr("wal_agent.flock.time.sleep", pauses.append)
    assert not try_lock(mine) and 0 < sum(pauses) < 1
    fcntl.flock(others, fcntl.LOCK_UN)
    assert flock_state(tmp_path / "lock") == "free"

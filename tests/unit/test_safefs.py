"""Files that others may have put in place, and locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from wal_agent.safefs import flock_state, open_plain, read_plain, try_lock


def test_a_plain_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_plain(path) == read_plain(str(path), 5) == b"12345"
    assert read_plain(path, 4) is None
    with open_plain(path) as file:
        assert file.read() == b"12345"


@pytest.mark.parametrize("kind", ["none", "folder", "link", "dangling", "fifo", "device"])
def test_nothing_else_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    (tmp_path / "b").write_text("secret")
    if kind == "folder":
        path.mkdir()
    elif kind in ("link", "dangling"):
        path.symlink_to("b" if kind == "link" else "c")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    assert read_plain(path) is None
    with pytest.raises(OSError):
        open_plain(path)
    assert not any(name == str(path) or name.startswith(str(tmp_path)) for name in open_files())


def open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


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
    monkeypatch.setattr("wal_agent.safefs.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
    assert try_lock(mine) and flock_state(tmp_path / "lock") == "held"


def test_a_living_owner_keeps_it(opened: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine, others = opened
    assert try_lock(others)
    pauses: list[float] = []
    monkeypatch.setattr("wal_agent.safefs.time.sleep", pauses.append)
    assert not try_lock(mine) and 0 < sum(pauses) < 1
    fcntl.flock(others, fcntl.LOCK_UN)
    assert flock_state(tmp_path / "lock") == "free"

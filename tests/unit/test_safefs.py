"""plainfile: a file's bytes as far as the bound goes, and nothing of whatever else may stand there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from wal_agent.plainfile import open_plain, read_plain


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

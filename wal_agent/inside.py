"""Reads text files of a project, which are hostile input: none that a link leads out of it, bounded, never a FIFO."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def path_in_root(root: Path, name: str) -> str | None:
    """The path of what `name` leads to, relative to `root` (a real path); None when there is nothing. ValueError: it
    leads out."""
    real = Path(os.path.realpath(root / name))
    if not real.is_relative_to(root):
        raise ValueError("is a link that leads out of the workspace, and is not followed")
    return str(real.relative_to(root)) if real.exists() else None


def read_in_root(root: Path, real: str, most: int) -> str:
    """A plain file of at most `most` bytes of UTF-8. No link is followed any more: what was checked is what is opened.
    `real`: as `inside` gives it. ValueError: it is no such file; OSError."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, file = real.split("/")
        for part in folders:
            fd, old = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), fd
            os.close(old)
        fd, old = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd), fd
        os.close(old)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("is not a file")
        data = b""
        while len(data) <= most and (more := os.read(fd, most + 1 - len(data))):
            data += more
    finally:
        os.close(fd)
    if len(data) > most:
        raise ValueError(f"is larger than {most >> 10} KiB, and is not read")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None

"""Files of a session on disk, and their names in the log: no links, no names that could lead elsewhere."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_PART = re.compile(r"[^/\0-\x1f\x7f]{1,255}")
MAX_FOLDERS = 6


def name_parts(name: str, deep: int = MAX_FOLDERS) -> tuple[str, ...]:
    """The parts of a logical name. ValueError for one that no session of ours has."""
    path = PurePosixPath(name)
    parts = path.parts
    sane = all(_PART.fullmatch(part) and part not in (".", "..") and len(part.encode()) <= 255 for part in parts)
    if not parts or not sane or str(path) != name or len(parts) > deep + 1:
        raise ValueError(f"{name!r} is no file of a session")
    return parts


def walk_files(base: Path, deep: int = MAX_FOLDERS) -> Iterator[Path]:
    """Regular files under a real folder."""
    try:
        if not stat.S_ISDIR(base.lstat().st_mode):
            return
        with os.scandir(base) as entries:
            inside = list(entries)
    except OSError:
        return
    for entry in inside:
        if not _PART.fullmatch(entry.name) or any("\udc80" <= c <= "\udcff" for c in entry.name):
            continue  # no name for the log, whose text is UTF-8
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        elif deep > 1 and entry.is_dir(follow_symlinks=False):
            yield from walk_files(Path(entry.path), deep - 1)


def largest_file(paths: Iterable[Path]) -> Path | None:
    """Of those that are still there: an agent may delete one while we look."""
    sizes: dict[Path, int] = {}
    for path in paths:
        with suppress(OSError):
            sizes[path] = path.stat().st_size
    return max(sizes, key=sizes.__getitem__, default=None)

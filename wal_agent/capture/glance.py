"""Tell that nothing in a small repository has changed by `lstat` alone, where a capture takes five processes of git.

It trusts what git trusts: a file with the same times, size, number and mode is the same. What changed just now has no
time of its own yet, so it counts for nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from wal_agent.capture.repository import PROGRESS_FOLDERS, Location

MAX_GLANCED = 3000  # files and folders; git is not slower where there are more
JUST_NOW = 0.1  # seconds; several ticks of the clock that the times of files are by
# Of a repository: all that a capture reads in its folders. Its objects never change.
_READ = ("refs", "reftable", "info", "logs/refs", *PROGRESS_FOLDERS)


def glance_at(place: Location) -> bytes | None:
    """What a repository and its files are known by; empty while something in it changes. None: it is too big."""
    seen, latest = hashlib.blake2b(digest_size=16), 0
    for count, (path, info) in enumerate(_entries(place)):
        if count >= MAX_GLANCED:
            return None
        latest = max(latest, info.st_ctime_ns)
        known = (path, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        seen.update(repr(known).encode())
    return seen.digest() if time.time_ns() - latest > JUST_NOW * 1e9 else b""


def _entries(place: Location) -> Iterator[tuple[str, os.stat_result]]:
    yield from _all_in(place.top, but=f"{place.top}/.git")
    yield from repository_entries(place)


def repository_entries(place: Location) -> Iterator[tuple[str, os.stat_result]]:
    """What a capture reads in the repository's folders, and what `lstat` says of each."""
    for folder in dict.fromkeys(filter(None, (place.git_dir, place.common))):
        for name in ("", "objects", "objects/pack"):
            yield from _all_in(folder / name, deep=False)
        for name in _READ:
            yield from _all_in(folder / name)


def _all_in(folder: Path, deep: bool = True, but: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """The folder and what is in it, but not below `but`. What is gone is passed over: its folder's times show that."""
    waiting = [os.fspath(folder)]
    while waiting:
        at = waiting.pop()
        try:
            yield at, os.lstat(at)
            entries = sorted(os.scandir(at), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
                deeper = deep and entry.is_dir(follow_symlinks=False) and entry.path != but
            except OSError:
                continue
            if deeper:
                waiting.append(entry.path)
            else:
                yield entry.path, info

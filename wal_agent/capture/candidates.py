"""Which files of a workspace are saved, and which are too big, too many, not readable, or no files at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from wal_agent.capture import left_out
from wal_agent.capture.left_out import LeftOut


@dataclass(frozen=True, slots=True)
class Caps:
    """Bytes: of all files, and of one."""

    total: int = 1 << 30
    file: int = 50 << 20


@dataclass(frozen=True, slots=True)
class Candidates:
    """`adds`: to be hashed, each with its size. `removes`: what leaves the index. `nested`: repositories inside."""

    adds: list[tuple[bytes, int]]
    removes: list[bytes]
    nested: list[tuple[bytes, int]]


def judge(
    folder: Path,
    found: Mapping[bytes, bytes],
    total: int,
    caps: Caps,
    out: LeftOut,
    edited: Callable[[], Collection[bytes]] = frozenset,
) -> Candidates:
    """What becomes of `found` (path below `folder`, and ls-files' letter). `total`: bytes of the files as of the last
    scan. What is left out goes to `out`. `edited`: files that the user tracks and that are not as git has them; asked
    where not all have room."""
    top = os.fsencode(folder)
    adds: list[tuple[bytes, int]] = []
    fresh: list[tuple[bytes, int]] = []
    removes: list[bytes] = []
    nested: list[tuple[bytes, int]] = []
    links: set[bytes] = set()
    for path, letter in found.items():
        path = path.rstrip(b"/")
        try:
            info = os.lstat(top + b"/" + path)
        except PermissionError:  # in a folder that was closed; it stays as it was captured
            if not within(path, out.why):
                out.add(path, left_out.UNREADABLE)
            continue
        except OSError:
            removes.append(path)
            continue
        if stat.S_ISLNK(info.st_mode):
            links.add(path)
        elif stat.S_ISDIR(info.st_mode):
            if os.path.lexists(top + b"/" + path + b"/.git"):
                nested.append((path, 0))
            else:
                removes.append(path)
            continue
        elif (why := _why_not(top + b"/" + path, info, caps)) is not None:
            out.add(path, why)
            removes.append(path)
            continue
        (fresh if letter == b"?" else adds).append((path, info.st_size))
    if fresh and sum(size for _, size in fresh) > caps.total - total:
        edits = edited()
        adds += [each for each in fresh if each[0] in edits]
        fresh = _fit([each for each in fresh if each[0] not in edits], caps.total - total, removes, out)
    chosen = [(path, size) for path, size in (*adds, *fresh) if not within(path, links, itself=False)]
    return Candidates(chosen, removes, nested)


def _why_not(path: bytes, info: os.stat_result, caps: Caps) -> str | None:
    if not stat.S_ISREG(info.st_mode):
        return left_out.SPECIAL
    if info.st_size > caps.file:
        return left_out.too_big(caps.file)
    return None if os.access(path, os.R_OK) else left_out.UNREADABLE


def _fit(fresh: list[tuple[bytes, int]], room: int, removes: list[bytes], out: LeftOut) -> list[tuple[bytes, int]]:
    """Of the files that are new here, the smallest first, so that a few giants do not cost the many small ones their
    place. Work on a file that is captured, or tracked, is never dropped for room: the bound of one file bounds it."""
    kept: list[tuple[bytes, int]] = []
    for path, size in sorted(fresh, key=lambda each: (each[1], each[0])):
        if size > room:
            out.add(path, left_out.FULL)
            removes.append(path)
        else:
            room -= size
            kept.append((path, size))
    return kept


def within(path: bytes, folders: Collection[bytes], itself: bool = True) -> bool:
    """Whether a path is below one of the folders (a set or the keys of a dict), or (`itself`) one of them."""
    parts = path.rstrip(b"/").split(b"/")
    return bool(folders) and any(b"/".join(parts[:n]) in folders for n in range(1, len(parts) + itself))

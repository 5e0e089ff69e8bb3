"""Which files of a workspace are saved, and which are too big, too many, not readable, or no files at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wal_agent.capture import left_out
from wal_agent.capture.left_out import LeftOut

FILE_COST = 1024  # bytes that a file counts for beside its own
_SIZES = (64 << 10, 1 << 20, 8 << 20)  # bytes; smaller files are saved first


@dataclass(frozen=True, slots=True)
class Caps:
    """Bytes: of all files, and of one."""

    total: int = 1 << 30
    file: int = 50 << 20


class Add(NamedTuple):
    """A file to be hashed. `new`: our index has none at this path. Times are seconds since 1970."""

    path: bytes
    size: int
    new: bool = False
    modified: float = 0.0
    changed: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """`adds`: to be hashed. `removes`: what leaves the index. `nested`: repositories inside."""

    adds: list[Add]
    removes: list[bytes]
    nested: list[Add]


def select_candidates(
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
    adds: list[Add] = []
    fresh: list[Add] = []
    removes: list[bytes] = []
    nested: list[Add] = []
    links: set[bytes] = set()
    for path, letter in found.items():
        path = path.rstrip(b"/")
        try:
            info = os.lstat(top + b"/" + path)
        except PermissionError:  # in a folder that was closed; it stays as it was captured
            if not is_within(path, out.why):
                out.add(path, left_out.UNREADABLE)
            continue
        except OSError:
            removes.append(path)
            continue
        if stat.S_ISLNK(info.st_mode):
            links.add(path)
        elif stat.S_ISDIR(info.st_mode):
            if os.path.lexists(top + b"/" + path + b"/.git"):
                nested.append(Add(path, 0))
            else:
                removes.append(path)
            continue
        elif (why := _reason_left_out(top + b"/" + path, info, caps)) is not None:
            out.add(path, why)
            removes.append(path)
            continue
        add = Add(path, info.st_size, letter == b"?", info.st_mtime, info.st_ctime)
        (fresh if add.new else adds).append(add)
    if fresh and sum(add.size for add in fresh) > caps.total - total:
        edits = edited()
        adds += [add for add in fresh if add.path in edits]
        fresh = _fit([add for add in fresh if add.path not in edits], caps.total - total, removes, out)
    chosen = [add for add in (*adds, *fresh) if not is_within(add.path, links, itself=False)]
    return Candidates(chosen, removes, nested)


def total_cost(adds: Iterable[Add]) -> int:
    return sum(add.size + FILE_COST for add in adds)


def take_first(
    adds: list[Add], budget: int, clean: Callable[[], Collection[bytes]] = frozenset
) -> tuple[list[Add], list[Add]]:
    """What one capture takes of `adds`, at most about `budget` bytes, and what is left for the next ones: small files
    before big ones, and the newest first. Half of the budget is for files that are new here, so that one which is
    written all the time does not keep them waiting. `clean`: files that the user's repository has as they are; they
    come last. Asked where not all fit."""
    if total_cost(adds) <= budget:
        return adds, []
    theirs = clean()
    ordered = sorted(adds, key=lambda add: (add.path in theirs, _size_class(add.size), -add.modified, add.path))
    taken, later = _take_within([add for add in ordered if not add.new], budget // 2)
    new, waiting = _take_within([add for add in ordered if add.new], budget - total_cost(taken))
    return [*taken, *new], [*later, *waiting]


def _take_within(ordered: list[Add], budget: int) -> tuple[list[Add], list[Add]]:
    """At least the first one."""
    for n, add in enumerate(ordered):
        budget -= add.size + FILE_COST
        if budget < 0 and n:
            return ordered[:n], ordered[n:]
    return ordered, []


def _size_class(size: int) -> int:
    return sum(size > most for most in _SIZES)


def _reason_left_out(path: bytes, info: os.stat_result, caps: Caps) -> str | None:
    if not stat.S_ISREG(info.st_mode):
        return left_out.SPECIAL
    if info.st_size > caps.file:
        return left_out.too_big_reason(caps.file)
    return None if os.access(path, os.R_OK) else left_out.UNREADABLE


def _fit(fresh: list[Add], room: int, removes: list[bytes], out: LeftOut) -> list[Add]:
    """Of the files that are new here, the smallest first, so that a few giants do not cost the many small ones their
    place. Work on a file that is captured, or tracked, is never dropped for room: the bound of one file bounds it."""
    kept: list[Add] = []
    for add in sorted(fresh, key=lambda add: (add.size, add.path)):
        if add.size > room:
            out.add(add.path, left_out.FULL)
            removes.append(add.path)
        else:
            room -= add.size
            kept.append(add)
    return kept


def is_within(path: bytes, folders: Collection[bytes], itself: bool = True) -> bool:
    """Whether a path is below one of the folders (a set or the keys of a dict), or (`itself`) one of them."""
    parts = path.rstrip(b"/").split(b"/")
    return bool(folders) and any(b"/".join(parts[:n]) in folders for n in range(1, len(parts) + itself))

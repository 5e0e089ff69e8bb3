"""Which files of a workspace are saved, and which are left out: too big, too many, not readable, or no files at all.

What is left out is reported to people: bounded, in a stable order.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from wal_agent.text import shorten

MAX_NAMED = 20  # that are named; the others are counted
MAX_PATH_LENGTH = 160  # characters of each path
MAX_PATHS_SIZE = 1 << 20  # bytes of a list of paths that goes into a capture
IGNORED = "ignored"
NESTED = "a repository of its own; only which commit it is at is saved"
NESTED_EMPTY = "a repository of its own without a commit"
OUTSIDE = "a linked worktree outside of this folder"
BROUGHT_IN = ".wal-agent/worktrees"  # where a linked worktree from outside the workspace is, in a record and restored
UNREADABLE = "cannot be read"
SPECIAL = "not a file, folder or link"
PRIVATE = "wal-agent's own, or the agent's"
HISTORY = "older commits that no remote has; `git push` saves them"
WISHED = (IGNORED, PRIVATE)
FULL = "no room: the workspace is over its cap"
FILE_COST = 1024  # bytes that a file counts for beside its own
_SIZES = (64 << 10, 1 << 20, 8 << 20)  # bytes; smaller files are saved first


class LeftOut(msgspec.Struct):
    """Paths (raw bytes, below the workspace) and why; a path counts once, the first reason counts."""

    why: dict[bytes, str] = msgspec.field(default_factory=dict)
    later: list[bytes] = msgspec.field(default_factory=list)  # new files that a later capture saves
    apart: list[bytes] = msgspec.field(default_factory=list)  # repositories inside that only their own captures hold

    def settle_inside(self, found: Iterable[bytes], saved: Collection[bytes]) -> None:
        """Of the repositories inside: those that are not `saved` by captures of their own are left out."""
        for path in found:
            if path not in saved:
                self.add(path, NESTED)
            elif self.why.pop(path, "") == NESTED_EMPTY:
                self.apart.append(path)

    def add(self, path: bytes, why: str) -> None:
        self.why.setdefault(path.rstrip(b"/"), why)

    def lines(self) -> tuple[str, ...]:
        """The first ones, by reason: what nobody chose to leave out comes first."""
        ordered = sorted(self.why.items(), key=lambda item: (item[1] in WISHED, item[1], item[0]))
        return tuple(f"{display_path(path)}: {why}" for path, why in ordered[:MAX_NAMED])

    @property
    def more(self) -> int:
        return max(0, len(self.why) - MAX_NAMED)

    @property
    def stays(self) -> tuple[bytes, ...]:
        """What a restore must leave alone: nobody chose to leave it out, and the tree does not have it. Where the names
        are too many, the folders that they are in."""
        paths = sorted(
            [
                *(path for path, why in self.why.items() if why not in (IGNORED, NESTED, OUTSIDE, HISTORY)),
                *self.later,
                *self.apart,
            ]
        )
        if sum(map(len, paths)) > MAX_PATHS_SIZE:
            paths = sorted({path.partition(b"/")[0] for path in paths})
        return bound_paths(paths)


def display_path(path: bytes) -> str:
    """A path for people."""
    return shorten(path.decode(errors="backslashreplace"), MAX_PATH_LENGTH)


def bound_paths(paths: Iterable[bytes]) -> tuple[bytes, ...]:
    """The first of them, MAX_PATHS_SIZE bytes in all."""
    found = tuple(paths)
    return found[: bisect_right([*accumulate(map(len, found))], MAX_PATHS_SIZE)]


def describe_unexpected(lines: Sequence[str], more: int, shown: int = 3) -> str:
    """Of what a capture left out, the files that a person may take for saved: the first ones, and how many more. "" for
    none. `lines` and `more`: as in records.Workspace, where what is ignored comes last."""
    wished = tuple(f": {why}" for why in WISHED)
    apart = (f": {NESTED}", f": {OUTSIDE}")
    found = [line for line in lines if not line.endswith((*wished, *apart))]
    count = len(found) + (0 if lines and lines[-1].endswith(wished) else more)
    named = found[:shown]
    return ", ".join(named) + (f" and {count - len(named)} more" if count > len(named) and found else "")


def describe_apart(lines: Sequence[str], why: str, shown: int = 3) -> str:
    """Of what a capture left out, the repositories that it left out for `why`: the first ones, and how many more. ""
    for none."""
    found = [line.removesuffix(f": {why}") for line in lines if line.endswith(f": {why}")]
    return ", ".join(found[:shown]) + (f" and {len(found) - shown} more" if len(found) > shown else "")


def too_big_reason(most: int) -> str:
    return f"bigger than {most / (1 << 20):.3g} MiB"


class Caps(msgspec.Struct, frozen=True):
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


class Candidates(msgspec.Struct, frozen=True):
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
                out.add(path, UNREADABLE)
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
        return SPECIAL
    if info.st_size > caps.file:
        return too_big_reason(caps.file)
    return None if os.access(path, os.R_OK) else UNREADABLE


def _fit(fresh: list[Add], room: int, removes: list[bytes], out: LeftOut) -> list[Add]:
    """Of the files that are new here, the smallest first, so that a few giants do not cost the many small ones their
    place. Work on a file that is captured, or tracked, is never dropped for room: the bound of one file bounds it."""
    kept: list[Add] = []
    for add in sorted(fresh, key=lambda add: (add.size, add.path)):
        if add.size > room:
            out.add(add.path, FULL)
            removes.append(add.path)
        else:
            room -= add.size
            kept.append(add)
    return kept


def is_within(path: bytes, folders: Collection[bytes], itself: bool = True) -> bool:
    """Whether a path is below one of the folders (a set or the keys of a dict), or (`itself`) one of them."""
    parts = path.rstrip(b"/").split(b"/")
    return bool(folders) and any(b"/".join(parts[:n]) in folders for n in range(1, len(parts) + itself))

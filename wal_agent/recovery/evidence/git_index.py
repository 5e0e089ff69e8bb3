"""Reads a git index by hand: what it lists, a hash over that which a refresh of times alone does not change, and
whether files are as they were when they were staged."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from wal_agent.evidence.git_repo import Repo, UnreadableRepo, read_from
from wal_agent.evidence.model import Budget

MOST_INDEX = 1 << 20  # bytes; about 10,000 files
_TIMES = 40  # bytes of an entry before the object's name: times, device, inode, mode, owner, size
_RACE = 20_000_000  # ns: what is changed within a tick after it was staged has the times that it had


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """`stat`: ctime, mtime (each seconds, ns), device, inode, mode, uid, gid, size, each cut to 32 bits."""

    path: bytes
    stat: tuple[int, ...]
    plain: bool  # a file or link, not in conflict, with no flag that makes git look away from it


def index_checksum(repo: Repo) -> str:
    """The end of the index: its checksum. "absent" where there is none, "" where it says nothing (index.skipHash)."""
    found = read_from(repo.own, "index", -32, 32)
    if found is None:
        return "absent"
    data, _ = found
    return "" if len(data) < 32 or data[-20:] == bytes(20) else data.hex()


def hash_index(repo: Repo, budget: Budget) -> str:
    """A hash over the paths, modes, objects and stages of an index; "" for one that is too big, split, sparse, or of
    another version than 2 or 3, "absent" for none."""
    try:
        found = read_from(repo.own, "index", 0, MOST_INDEX)
    except UnreadableRepo:
        return ""
    return "absent" if found is None else _listed(found[0], budget)


def read_index(repo: Repo, budget: Budget) -> tuple[IndexEntry, ...]:
    """Unreadable for an index of which `listed` says nothing."""
    found = read_from(repo.own, "index", 0, MOST_INDEX)
    if found is None:
        return ()
    data = found[0]
    width, spans = _spans(data, budget)
    if not width:
        raise UnreadableRepo
    all = []
    for at, stop in spans:
        flags = int.from_bytes(data[at + _TIMES + width : at + _TIMES + width + 2], "big")
        stat = struct.unpack_from(">10I", data, at)
        plain = stat[6] >> 12 in (0o10, 0o12) and not flags & 0xF000
        all.append(IndexEntry(data[at + _TIMES + width + (4 if flags & 0x4000 else 2) : stop], stat, plain))
    return tuple(all)


def is_staged(repo: Repo, entry: IndexEntry) -> bool:
    """Whether a file is as it was when it was staged, by its times, which git itself goes by."""
    try:
        s = os.lstat(os.fsencode(repo.tree) + b"/" + entry.path)
        written = os.lstat(repo.own / "index").st_mtime_ns
    except OSError:
        return False
    times = (s.st_ctime_ns, s.st_mtime_ns)
    now = (*(n for t in times for n in divmod(t, 1_000_000_000)), s.st_ino, s.st_size)
    then = (*entry.stat[:4], entry.stat[5], entry.stat[9])
    same = tuple(n & 0xFFFFFFFF for n in now) == then
    return entry.plain and same and max(times) + _RACE < written


def entries_below(all: Sequence[IndexEntry], path: str) -> list[IndexEntry]:
    """What is listed at a path of the worktree ("" for all of it) and in it."""
    name = os.fsencode(path)
    return [e for e in all if not name or e.path == name or e.path.startswith(name + b"/")]


def _listed(data: bytes, budget: Budget) -> str:
    width, spans = _spans(data, budget)
    if not width:
        return ""
    sha = hashlib.sha256()
    for at, stop in spans:
        sha.update(data[at + 24 : at + 28] + data[at + _TIMES : stop + 1])
    return sha.hexdigest()[:32]


def _spans(data: bytes, budget: Budget) -> tuple[int, list[tuple[int, int]]]:
    """The width of an object's name, which the index does not tell, and where each entry begins and its path ends; a
    width of 0 for what cannot be read."""
    for width in (20, 32):
        spans = _spans_of(data, width, budget)
        if spans is not None:
            return width, spans
    return 0, []


def _spans_of(data: bytes, width: int, budget: Budget) -> list[tuple[int, int]] | None:
    if len(data) < 12 + width or data[:4] != b"DIRC":
        return None
    version, count = struct.unpack_from(">II", data, 4)
    end = len(data) - width
    if version not in (2, 3) or count * (_TIMES + width + 2) > len(data):
        return None
    spans = []
    at = 12
    for n in range(count):
        flags_at = at + _TIMES + width
        if flags_at + 2 > end or (n % 512 == 0 and budget.over):
            return None
        flags = int.from_bytes(data[flags_at : flags_at + 2], "big")
        name_at = flags_at + (4 if flags & 0x4000 else 2)
        stop = data.find(b"\0", name_at, end)
        if stop < 0 or (flags & 0xFFF) not in (stop - name_at, 0xFFF):
            return None
        spans.append((at, stop))
        at += (stop - at + 8) & ~7
    while at + 8 <= end:  # extensions: name, size
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "big")
        if name[:1].islower():  # its entries are elsewhere (split), or stand for more (sparse)
            return None
        at += 8 + size
    return spans if at == end else None

"""Reads a git index by hand: a hash over what it lists, which a refresh of times alone does not change."""

from __future__ import annotations

import hashlib
import struct

from wal_agent.recovery.evidence.git_files import Repo, Unreadable, read_from
from wal_agent.recovery.step import Budget

MOST_INDEX = 1 << 20  # bytes; about 10,000 files
_TIMES = 40  # bytes of an entry before the object's name: times, device, inode, mode, owner, size


def tail(repo: Repo) -> str:
    """The end of the index: its checksum. "absent" where there is none, "" where it says nothing (index.skipHash)."""
    found = read_from(repo.own, "index", -32, 32)
    if found is None:
        return "absent"
    data, _ = found
    return "" if len(data) < 32 or data[-20:] == bytes(20) else data.hex()


def listed(repo: Repo, budget: Budget) -> str:
    """A hash over the paths, modes, objects and stages of an index; "" for one that is too big, split, sparse, or of
    another version than 2 or 3, "absent" for none."""
    try:
        found = read_from(repo.own, "index", 0, MOST_INDEX)
    except Unreadable:
        return ""
    if found is None:
        return "absent"
    data, _ = found
    for width in (20, 32):  # bytes of an object's name: the format of the repository, which the index does not tell
        said = _listed(data, width, budget)
        if said is not None:
            return said
    return ""


def _listed(data: bytes, width: int, budget: Budget) -> str | None:
    if len(data) < 12 + width or data[:4] != b"DIRC":
        return None
    version, count = struct.unpack_from(">II", data, 4)
    end = len(data) - width
    if version not in (2, 3) or count * (_TIMES + width + 2) > len(data):
        return None
    sha = hashlib.sha256()
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
        sha.update(data[at + 24 : at + 28] + data[at + _TIMES : stop + 1])
        at += (stop - at + 8) & ~7
    while at + 8 <= end:  # extensions: name, size
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "big")
        if name[:1].islower():  # its entries are elsewhere (split), or stand for more (sparse)
            return None
        at += 8 + size
    return sha.hexdigest()[:32] if at == end else None

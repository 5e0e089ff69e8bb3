"""Looks at files, within a budget (I9). Nothing here follows a link, opens a pipe or a device, or changes anything."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import islice

from wal_agent.evidence.file_state import FileNow, sha256
from wal_agent.evidence.model import Budget

_CHUNK = 256 << 10
MOST_ENTRIES = 2000  # of a folder's tree
_LIVE = ("/proc/", "/sys/")  # reading there can consume or change something
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}


def read_file(path: str, budget: Budget) -> FileNow:
    """A regular file's bytes, through one descriptor. Unreadable: links, other kinds, bigger than the budget has left,
    changed while it was read, or not read in time."""
    nothing = FileNow(path)
    if budget.files <= 0 or os.path.realpath(f"{path}/..").startswith(_LIVE) or path.startswith(_LIVE):
        return nothing
    budget.files -= 1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        return FileNow(path, absent=True)
    except (OSError, ValueError):
        return nothing
    try:
        first = os.fstat(fd)
        if not stat.S_ISREG(first.st_mode) or first.st_size > budget.size:
            return nothing
        parts: list[bytes] = []
        while part := os.read(fd, _CHUNK):
            parts.append(part)
            budget.size -= len(part)
            if budget.over or budget.size < 0:
                return nothing
        last = os.fstat(fd)
    except OSError:
        return nothing
    finally:
        os.close(fd)
    same = (first.st_size, first.st_mtime_ns) == (last.st_size, last.st_mtime_ns)
    return FileNow(path, b"".join(parts)) if same else nothing


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at a path: `kind` file, dir, link, other or absent; which one it is (`device`, `inode`, `links`:
    how many names it has), and its `state`: size, mode and times in ns, by which a change of it is seen."""

    kind: str
    device: int = 0
    inode: int = 0
    links: int = 0
    size: int = 0
    mode: int = 0
    mtime: int = 0
    ctime: int = 0

    @property
    def absent(self) -> bool:
        return self.kind == "absent"

    @property
    def value(self) -> str:
        """As a Fact says it."""
        if self.absent:
            return self.kind
        numbers = (self.device, self.inode, self.links, self.size, self.mode, self.mtime, self.ctime)
        return ":".join((self.kind, *map(str, numbers)))

    def same_one(self, other: Entry) -> bool:
        """Whether both are one file or folder, under whatever name."""
        return not self.absent and (self.kind, self.device, self.inode) == (other.kind, other.device, other.inode)


def stat_entry(path: str) -> Entry | None:
    """What stands at a path itself; None where it cannot be told (no permission, a file on the way, a bad name)."""
    try:
        s = os.lstat(path)
    except FileNotFoundError:
        return Entry("absent")
    except (OSError, ValueError):
        return None
    kind = _KINDS.get(stat.S_IFMT(s.st_mode), "other")
    return Entry(kind, s.st_dev, s.st_ino, s.st_nlink, s.st_size, s.st_mode, s.st_mtime_ns, s.st_ctime_ns)


def parse_entry(value: str) -> Entry | None:
    """The entry that a fact tells; None for anything else."""
    kind, _, rest = value.partition(":")
    if kind == "absent" and not rest:
        return Entry("absent")
    numbers = rest.split(":")
    if kind not in ("file", "dir", "link", "other") or len(numbers) != 7:
        return None
    if not all(n.isascii() and n.isdigit() and len(n) < 21 for n in numbers):
        return None
    return Entry(kind, *map(int, numbers))


def times_settled(found: Entry, now: int) -> bool:
    """Whether a change from `now` (ns since 1970) on shows in the times of what was found. File systems count in ticks
    of up to 10 ms, some in whole seconds: a change in the tick of the one before leaves no mark."""
    tick = 2_000_000_000 if found.ctime % 1_000_000_000 == 0 else 20_000_000
    return found.absent or now - found.ctime > tick


def hash_listing(path: str, budget: Budget) -> str | None:
    """A hash over a folder's tree: names and entries, no content. None for what is no folder, is too big, has folders
    that cannot be read, or another file system in it."""
    top = stat_entry(path)
    if top is None or top.kind != "dir":
        return None
    lines: list[str] = []
    todo = [path]
    while todo:
        folder = todo.pop()
        names = list_children(folder)
        if names is None or budget.over or len(lines) + len(names) > MOST_ENTRIES:
            return None
        for name in names:
            at = f"{folder}/{name}"
            one = stat_entry(at)
            if one is None or one.absent or one.device != top.device:
                return None
            lines.append(f"{at[len(path) :]}\0{one.value}")
            if one.kind == "dir":
                todo.append(at)
    return sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape"))


def list_children(path: str) -> list[str] | None:
    """The names in a folder; None where it cannot be read, or has too many."""
    try:
        with os.scandir(path) as found:
            names = [e.name for e in islice(found, MOST_ENTRIES + 1)]
    except (OSError, ValueError):
        return None
    return sorted(names) if len(names) <= MOST_ENTRIES else None

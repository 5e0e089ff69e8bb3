"""Record what is at paths before a step, within a budget (I9), and compare it with what is there now.

Nothing here follows a link, opens a pipe or a device, or changes anything. `completed` and `not_started` are returned
only with proof, since the agent acts on them; everything else is `unknown` (RECOVERY.md). `not_started` needs more
than equal bytes: every effect of the call must be in the file that was read, nothing else may have changed that file
back, and the process that ran the call must be gone.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal

import msgspec

from wal_agent.calls.quote import inline
from wal_agent.evidence.model import Budget, Context, Outcome, times_settled
from wal_agent.records import Fact
from wal_agent.wording import findings

ABSENT = "absent"
_MAX_PLACES = 16  # occurrences of a replacement's new text that are tried
_CHUNK = 256 << 10
MAX_ENTRIES = 2000  # of a folder's tree
_LIVE = ("/proc/", "/sys/")  # reading there can consume or change something
MAX_PATHS = 8  # of one step

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}


class FileNow(msgspec.Struct, frozen=True):
    """The file that a call names, as it is on this machine: `data` None and not `absent`: it could not be read."""

    path: str
    data: bytes | None = None
    absent: bool = False

    @property
    def value(self) -> str | None:
        """As a Fact says it: hash or "absent"; None where nothing is known."""
        return ABSENT if self.absent else None if self.data is None else sha256(self.data)


def assess_write(
    wanted: Sequence[bytes], before: Fact | None, now: FileNow, absolute: bool, around: Context
) -> Outcome:
    """What became of a step that was to leave a file with one of the contents `wanted`. `absolute`: its path means
    this file and no other one."""
    path = inline(now.path)
    if now.value is None:
        return _not_known(path, now)
    # A relative path may have meant another folder (plan mode); that the file changed to just this content proves it.
    changed = before is not None and before.value != now.value
    if now.data is not None and now.data in wanted and (absolute or changed):
        return Outcome("completed", findings.FILE_WRITTEN.format(path), either=not changed)
    if before is None:
        return _not_known(path, now)
    if before.value == now.value:
        return assess_unchanged(path, absolute, around)
    begun = now.data is not None and any(w.startswith(now.data) for w in wanted)
    if begun and absolute and around.same_place and around.gone and around.alone:
        return Outcome("partial", findings.FILE_BEGUN.format(path))
    return Outcome("unknown", findings.FILE_NEITHER_WRITTEN.format(path))


def _not_known(path: str, now: FileNow) -> Outcome:
    """One of the two sides that would be compared is missing."""
    if now.value is None:
        return Outcome("unknown", findings.FILE_UNREADABLE.format(path))
    return Outcome("unknown", findings.FILE_NOT_KNOWN.format(path))


def assess_replacement(
    old: str, new: str, before: Fact | None, now: FileNow, absolute: bool, around: Context
) -> Outcome:
    """What became of a step that was to put `new` in the place of `old` in a file."""
    path = inline(now.path)
    if before is None or now.value is None:
        return _not_known(path, now)
    if before.value == now.value:
        return assess_unchanged(path, absolute, around)
    if now.data is not None and any(sha256(d) == before.value for d in _undone(now.data, old, new)):
        if around.contested:
            return Outcome("unknown", findings.FILE_CONTESTED.format(path))
        return Outcome("completed", findings.FILE_REPLACED.format(path))
    return Outcome("unknown", findings.FILE_NEITHER_REPLACED.format(path))


def assess_append(added: bytes, before: Fact | None, size: int | None, now: FileNow, around: Context) -> Outcome:
    """What became of a step that was to put `added` at the end of a file, `size` bytes long before it where known. A
    second call may add the same bytes, so nothing is concluded unless this one is alone."""
    path = inline(now.path)
    if before is None or now.value is None:
        return _not_known(path, now)
    if before.value == now.value:
        return assess_unchanged(path, True, around)
    if now.data is not None and added and around.alone:
        head = now.data[: len(now.data) - len(added)]
        if now.data.endswith(added) and _was(before, head):
            return Outcome("completed", findings.FILE_APPENDED.format(path))
        at = 0 if before.value == ABSENT else size
        sure = around.same_place and around.gone and at is not None and at <= len(now.data)
        if sure and _was(before, now.data[:at]) and added.startswith(now.data[at:]):
            return Outcome("partial", findings.APPEND_BEGUN.format(path))
    return Outcome("unknown", findings.FILE_NEITHER_APPENDED.format(path))


def assess_unchanged(path: str, absolute: bool, around: Context) -> Outcome:
    """The finding for a file that is as it was before; `path` is safe to show."""
    return assess_as_before(findings.FILE_UNCHANGED.format(path), absolute, around)


def assess_as_before(same: str, absolute: bool, around: Context) -> Outcome:
    """`not_started` where nothing can have hidden what the call did; else unknown, and why. `same`: the sentence that
    says what is as it was, without its full stop."""
    if not around.same_place and not around.restored:
        return Outcome("unknown", findings.OTHER_PLACE.format(same))
    if not around.gone:
        return Outcome("unknown", findings.NOT_GONE.format(same))
    if not around.alone:
        return Outcome("unknown", findings.NOT_ALONE.format(same))
    if not absolute:
        return Outcome("unknown", findings.RELATIVE_PATH.format(same))
    return Outcome("not_started", findings.AS_BEFORE_RESTORED.format(same) if around.restored else f"{same}.")


def _was(before: Fact, data: bytes) -> bool:
    return before.value == sha256(data) or (before.value == ABSENT and not data)


def _undone(data: bytes, old: str, new: str) -> list[bytes]:
    """What the file may have been before `old` was replaced by `new` in it; empty where that is not known."""
    found = []
    for was, became in zip(line_end_variants(old), line_end_variants(new), strict=True):
        if became and was != became:
            found.append(data.replace(became, was))
            at = data.find(became)
            for _ in range(_MAX_PLACES):
                if at < 0:
                    break
                found.append(data[:at] + was + data[at + len(became) :])
                at = data.find(became, at + 1)
    return found


def line_end_variants(text: str) -> tuple[bytes, ...]:
    r"""As the agent writes it: with "\n", or with "\r\n" where the file had that; nothing for text that is no UTF-8."""
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        return ()
    lines = text.replace("\r\n", "\n")
    return (plain, lines.encode(), re.sub("\n", "\r\n", lines).encode())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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


class Entry(msgspec.Struct, frozen=True):
    """What is at a path: `kind` file, dir, link, other or absent; which one it is (`device`, `inode`, `links`:
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
    """Stat a path itself; None where that is not possible (no permission, a file on the way, a bad name)."""
    try:
        s = os.lstat(path)
    except FileNotFoundError:
        return Entry("absent")
    except (OSError, ValueError):
        return None
    kind = _KINDS.get(stat.S_IFMT(s.st_mode), "other")
    return Entry(kind, s.st_dev, s.st_ino, s.st_nlink, s.st_size, s.st_mode, s.st_mtime_ns, s.st_ctime_ns)


def parse_entry(value: str) -> Entry | None:
    """Parse the entry in a fact; None for anything else."""
    kind, _, rest = value.partition(":")
    if kind == "absent" and not rest:
        return Entry("absent")
    numbers = rest.split(":")
    if kind not in ("file", "dir", "link", "other") or len(numbers) != 7:
        return None
    if not all(n.isascii() and n.isdigit() and len(n) < 21 for n in numbers):
        return None
    return Entry(kind, *map(int, numbers))


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
        if names is None or budget.over or len(lines) + len(names) > MAX_ENTRIES:
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
            names = [e.name for e in islice(found, MAX_ENTRIES + 1)]
    except (OSError, ValueError):
        return None
    return sorted(names) if len(names) <= MAX_ENTRIES else None


PathState = Literal["done", "untouched", "partly", "either", "unknown"]


def entry_fact(path: str, budget: Budget) -> Fact | None:
    """Record what is at a path: "entry", or "fresh" where it changed so lately that its times prove nothing."""
    found = stat_entry(path)
    if found is None or budget.over:
        return None
    still = found.absent or times_settled(found.ctime, int(budget.clock.now() * 1e9))
    what = "entry" if still else "fresh"
    return Fact(what=what, where=path, value=found.value)


def content_fact(path: str, budget: Budget) -> Fact | None:
    """A regular file's hash, or "absent"."""
    value = read_file(path, budget).value
    return None if value is None else Fact(what="file", where=path, value=value)


def path_facts(paths: Sequence[str], budget: Budget, content: bool = False) -> tuple[Fact, ...]:
    """All or nothing of the entries; hashes besides where they can be had."""
    found: list[Fact] = []
    for path in paths:
        if (fact := entry_fact(path, budget)) is None or len(paths) > MAX_PATHS:
            return ()
        found.append(fact)
    if content:
        found += [f for path in paths if (f := content_fact(path, budget)) is not None]
    return tuple(found)


class PathFacts(msgspec.Struct, frozen=True):
    """What the facts hold about one path. `fresh`: its times prove nothing."""

    path: str
    entry: Entry
    fresh: bool = False
    content: Fact | None = None

    def unmoved(self, now: Entry) -> bool:
        """Whether nothing was done to it since, as its times say. Absent both times is for others to judge: what was
        made may have been removed again."""
        return not self.fresh and not now.absent and self.entry == now


def read_facts(facts: Sequence[Fact], path: str) -> PathFacts | None:
    mine = [f for f in facts if f.where == path]
    content = next((f for f in mine if f.what == "file"), None)
    for fact in mine:
        if fact.what in ("entry", "fresh") and (found := parse_entry(fact.value)) is not None:
            return PathFacts(path, found, fact.what == "fresh", content)
    return None


def is_untouched(was: PathFacts, now: Entry | None, around: Context, budget: Budget) -> bool:
    """Whether what is at a path is what was there, as far as that can be seen: by its times on the machine of the
    call, by its content in a tree that was put back."""
    if now is None:
        return False
    if was.entry.absent or now.absent:
        return was.entry.absent and now.absent
    if around.same_place:
        return was.entry == now
    return (
        was.content is not None
        and was.content.value != ABSENT
        and read_file(was.path, budget).value == was.content.value
    )


def assess_paths(states: Sequence[tuple[str, PathState]], around: Context, done: str, verb: str) -> Outcome:
    """One finding for what became of several paths. `done`: completes "`a`, `b` ..."; `verb`: what was to be done to
    each, as in "`a` was removed"."""
    if not states or any(s == "unknown" for _, s in states):
        dark = next((p for p, s in states if s == "unknown"), "")
        return Outcome("unknown", findings.PATH_NOT_CLEAR.format(inline(dark)) if dark else "")
    open_ = [(p, s) for p, s in states if s != "either"]
    if not open_:
        return Outcome(
            "completed", findings.PATHS_EITHER.format(quote_paths([p for p, _ in states]), done), either=True
        )
    kinds = {s for _, s in open_}
    paths = [p for p, _ in open_]
    shown = quote_paths(paths)
    if kinds == {"done"}:
        if around.contested:
            return Outcome("unknown", findings.PATHS_CONTESTED.format(shown, done))
        return Outcome("completed", f"{shown} {done}.")
    if kinds == {"untouched"}:
        same = findings.PATH_UNCHANGED if len(paths) == 1 else findings.PATHS_UNCHANGED
        return assess_as_before(same.format(shown), True, around)
    if around.same_place and around.gone and around.alone:
        ends: dict[PathState, str] = {"done": verb, "partly": f"{verb} in part", "untouched": "not yet"}
        parts = [
            f"{quote_paths([p for p, s in open_ if s == state])} {end}" for state, end in ends.items() if state in kinds
        ]
        return Outcome("partial", f"{'; '.join(parts)}.")
    return Outcome("unknown", findings.PATHS_MIXED.format(shown))


def quote_paths(paths: Sequence[str]) -> str:
    shown = [inline(p) for p in paths[:3]] + ([f"{len(paths) - 3} more"] if len(paths) > 3 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def compare_paths(
    paths: Sequence[str], facts: Sequence[Fact], state: Callable[[PathFacts, Entry], PathState]
) -> list[tuple[str, PathState]]:
    """The state of each path, by what was noted of it and what is there now."""
    found: list[tuple[str, PathState]] = []
    for path in paths:
        was, now = read_facts(facts, path), stat_entry(path)
        found.append((path, "unknown" if was is None or now is None else state(was, now)))
    return found


def parent(path: str) -> str:
    return os.path.normpath(f"{path}/..")


def have_other_names(paths: Sequence[str], facts: Iterable[Fact]) -> bool:
    """Whether a file at or noted below one of the paths has, or had before the call, another name besides. Folders are
    not searched."""
    noted = [
        f
        for f in facts
        if f.what in ("entry", "fresh") and any(f.where == p or f.where.startswith(f"{p}/") for p in paths)
    ]
    return any(_has_names(e) for e in (*(parse_entry(f.value) for f in noted), *map(stat_entry, paths)))


def share_a_file(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether a path of the one and a path of the other are now names of one file."""
    return bool(_files(one) & _files(other))


def _files(paths: Iterable[str]) -> set[tuple[int, int]]:
    found = (stat_entry(p) for p in paths)
    return {(e.device, e.inode) for e in found if e is not None and _has_names(e)}


def _has_names(found: Entry | None) -> bool:
    return found is not None and found.kind not in ("dir", "absent") and found.links > 1

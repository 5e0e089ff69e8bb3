"""Read a repository's own files: refs, operations in progress, the index and reflogs. No process is started, reads are
bounded, and no link inside of the repository is followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from wal_agent.evidence.model import Budget, times_settled
from wal_agent.wording import findings

MAX_SMALL = 8192  # bytes of HEAD, a ref, a .git file
MAX_PACKED = 4 << 20  # bytes of packed-refs
MAX_WALKED = 4000  # files and folders below refs and logs
_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_GONE = (errno.ENOENT, errno.ENOTDIR)
MAX_INDEX = 1 << 20  # bytes; about 10,000 files
_TIMES = 40  # bytes of an entry before the object's name: times, device, inode, mode, owner, size
_RACE = 20_000_000  # ns: what is changed within a tick after it was staged has the times that it had
MAX_LOG = 256 << 10  # bytes that a reflog may have grown by
_END = 16 << 10  # bytes of its end that are read
_TAIL = 1024  # bytes of it that show whether it is still the same one

_LINE = re.compile(rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64}) [^\n]*?> -?\d+ [+-]\d+(?:\t([^\n]*))?")


class UnreadableRepo(Exception):
    """There is something that is not safe or not possible to read here."""


class Repo(msgspec.Struct, frozen=True):
    """`own`: the git dir of this worktree; `common`: that of the repository, often the same. `tree`: the worktree."""

    own: Path
    common: Path
    tree: Path

    def at(self, ref: str) -> Path:
        """The folder that a ref's file is in: those of one worktree are its own."""
        own = ref.startswith(("refs/bisect/", "refs/worktree/", "refs/rewritten/")) or not ref.startswith("refs/")
        return self.own if own else self.common


def find_repo(cwd: Path) -> Repo | None:
    """The repository that git would work in there; None where there is none. Raises UnreadableRepo
    for links, a bare repository, the inside of a git dir, or anything that git may read in another way."""
    for folder in (cwd, *cwd.parents):
        try:
            s = os.lstat(folder / ".git")
        except OSError as e:
            if e.errno not in _GONE:
                raise UnreadableRepo from None
            if (folder / "HEAD").exists() and (folder / "objects").exists():
                raise UnreadableRepo from None
            continue
        if stat.S_ISDIR(s.st_mode):
            own = folder / ".git"
            if not _is_folder(own / "objects") or not _is_folder(own / "refs") or (own / "commondir").exists():
                raise UnreadableRepo
            return Repo(own, own, folder)
        return _linked(folder)
    return None


def _linked(folder: Path) -> Repo:
    """A worktree or a submodule: its .git is a file that names the git dir, which must name it back."""
    text = (read_small(folder, ".git", MAX_SMALL) or b"").decode("utf-8", "surrogateescape")
    if not text.startswith("gitdir: ") or "\0" in text:
        raise UnreadableRepo
    own = Path(os.path.normpath(folder / text.removeprefix("gitdir: ").rstrip("\n")))
    try:
        back = read_small(own, "gitdir", MAX_SMALL)
        shared = read_small(own, "commondir", MAX_SMALL)
    except OSError:
        raise UnreadableRepo from None
    if back is None and shared is None and "modules" in own.parts:
        if not _is_folder(own / "objects") or not _is_folder(own / "refs"):
            raise UnreadableRepo
        return Repo(own, own, folder)
    if back is None or shared is None:
        raise UnreadableRepo
    named = Path(os.path.normpath(own / os.fsdecode(back).rstrip("\n")))
    common = Path(os.path.normpath(own / os.fsdecode(shared).rstrip("\n")))
    same = os.path.realpath(named) == os.path.realpath(folder / ".git")
    if not same or own.parent != common / "worktrees" or not _is_folder(common / "objects"):
        raise UnreadableRepo
    return Repo(own, common, folder)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _open(folder: Path, name: str) -> int | None:
    """A file's descriptor, no link followed below `folder`."""
    *way, last = name.split("/")
    if not last or any(part in ("", ".", "..") or "\0" in part for part in (*way, last)):
        raise UnreadableRepo
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        if e.errno in _GONE:
            return None
        raise UnreadableRepo from None
    try:
        for part in way:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = deeper
        return os.open(last, _READ, dir_fd=at)
    except OSError as e:
        # A folder that is a link gives ENOTDIR, too: not there is all that is known then, and is what git would report
        # of a file in its place; links are found by `walk`.
        if e.errno in _GONE:
            return None
        raise UnreadableRepo from None
    except ValueError:
        raise UnreadableRepo from None
    finally:
        os.close(at)


def read_small(folder: Path, name: str, most: int) -> bytes | None:
    """A small regular file whole."""
    found = read_from(folder, name, 0, most)
    return None if found is None else found[0]


def read_from(folder: Path, name: str, start: int, most: int) -> tuple[bytes, int] | None:
    """Bytes from `start` (negative: from the end) on, and the file's size. Raises UnreadableRepo if more than `most`
    follow."""
    fd = _open(folder, name)
    if fd is None:
        return None
    try:
        s = os.fstat(fd)
        first = max(0, s.st_size + start) if start < 0 else start
        if not stat.S_ISREG(s.st_mode) or s.st_size - first > most:
            raise UnreadableRepo
        return os.pread(fd, max(0, s.st_size - first), first), s.st_size
    except OSError:
        raise UnreadableRepo from None
    finally:
        os.close(fd)


def is_ref(name: str) -> bool:
    """Whether git takes it as a full ref name that stays in its folder."""
    if len(name) > 200 or _REF.fullmatch(name) is None or "@{" in name or name.endswith("/"):
        return False
    return not any(p == "" or p.startswith(".") or p.endswith((".", ".lock")) or ".." in p for p in name.split("/"))


def read_head(repo: Repo) -> str:
    """The ref that HEAD names, or the object if it is detached."""
    text = (read_small(repo.own, "HEAD", MAX_SMALL) or b"").decode("ascii", "replace").rstrip("\n")
    if text.startswith("ref: "):
        name = text.removeprefix("ref: ").strip()
        if not is_ref(name):  # the one of reftable is refs/heads/.invalid
            raise UnreadableRepo
        return name
    if _OID.fullmatch(text) is None:
        raise UnreadableRepo
    return text


def resolve_ref(repo: Repo, ref: str) -> str:
    """The object that a ref (or an object's name itself) stands for; "" where there is none. A ref that names another
    one, other than HEAD, raises UnreadableRepo."""
    if _OID.fullmatch(ref):
        return ref
    if not is_ref(ref):
        raise UnreadableRepo
    loose = read_small(repo.at(ref), ref, MAX_SMALL)
    if loose is not None:
        text = loose.decode("ascii", "replace").rstrip("\n")
        if _OID.fullmatch(text) is None:
            raise UnreadableRepo
        return text
    packed = read_small(repo.common, "packed-refs", MAX_PACKED) or b""
    at = packed.find(b" " + ref.encode() + b"\n")
    if at < 0:
        return ""
    text = packed[packed.rfind(b"\n", 0, at) + 1 : at].decode("ascii", "replace")
    if _OID.fullmatch(text) is None:
        raise UnreadableRepo
    return text


class GitDirState(msgspec.Struct, frozen=True):
    """`states`: what is in progress. `locks`: lock files, by their paths in the git dir. `still`: a hash over times,
    sizes and inodes of all that git writes in place (not the objects): the same one means that nothing was written, if
    the newest of the times is far enough back for the next change to leave a mark (`settled`)."""

    states: tuple[str, ...]
    locks: tuple[str, ...]
    still: str
    settled: bool


def scan_git_dir(repo: Repo, budget: Budget) -> GitDirState:
    states: set[str] = set()
    locks: set[str] = set()
    lines: list[str] = []
    settled, now = True, time.time_ns()
    for root in dict.fromkeys((repo.own, repo.common)):
        s = os.lstat(root)
        lines.append(_stat_line("", s))
        settled = settled and times_settled(s.st_ctime_ns, now)
        todo = [""]
        while todo:
            inside = todo.pop()
            try:
                with os.scandir(root / inside) as found:
                    entries = sorted((e.name, e.stat(follow_symlinks=False)) for e in found)
            except OSError:
                raise UnreadableRepo from None
            if budget.over or len(lines) + len(entries) > MAX_WALKED:
                raise UnreadableRepo
            for name, s in entries:
                path = f"{inside}/{name}" if inside else name
                if stat.S_ISLNK(s.st_mode) and (inside or name in ("refs", "logs", "HEAD", "index", "packed-refs")):
                    raise UnreadableRepo
                if name == "reftable" and not inside:
                    raise UnreadableRepo
                if path == "objects":
                    continue
                if root == repo.own and path in findings.GIT_STATES:
                    states.add(name)
                if name.endswith(".lock"):
                    locks.add(path if root == repo.own else f"{root.name}/{path}")
                lines.append(_stat_line(path, s))
                settled = settled and times_settled(s.st_ctime_ns, now)
                if stat.S_ISDIR(s.st_mode) and (inside or name in ("refs", "logs")):
                    todo.append(path)
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return GitDirState(tuple(sorted(states)), tuple(sorted(locks)), hashlib.sha256(text).hexdigest()[:32], settled)


def _stat_line(path: str, s: os.stat_result) -> str:
    numbers = (s.st_mode, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
    return "\0".join((path, *map(str, numbers)))


class IndexEntry(msgspec.Struct, frozen=True):
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
        found = read_from(repo.own, "index", 0, MAX_INDEX)
    except UnreadableRepo:
        return ""
    if found is None:
        return "absent"
    data = found[0]
    width, spans = _spans(data, budget)
    sha = hashlib.sha256()
    for at, stop in spans:
        sha.update(data[at + 24 : at + 28] + data[at + _TIMES : stop + 1])
    return sha.hexdigest()[:32] if width else ""


def read_index(repo: Repo, budget: Budget) -> tuple[IndexEntry, ...]:
    """Raises UnreadableRepo for an index of which `hash_index` says nothing."""
    found = read_from(repo.own, "index", 0, MAX_INDEX)
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


def _spans(data: bytes, budget: Budget) -> tuple[int, list[tuple[int, int]]]:
    """The width of an object's name, which is not in the index, and where each entry begins and its path ends; a
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


class LogMark(msgspec.Struct, frozen=True):
    """How far a reflog goes, with a hash of its end; `last`: where its last line begins, with a hash of what is in
    front of that."""

    size: int
    end: str
    last: int
    front: str


class LogLine(msgspec.Struct, frozen=True):
    """One movement of a ref."""

    old: str
    new: str
    message: str


def mark_log(repo: Repo, ref: str) -> LogMark:
    """Of a reflog as it is now; sizes of 0 where there is none."""
    found = read_from(repo.at(ref), f"logs/{ref}", -_END, _END)
    if found is None or not found[1]:
        return LogMark(0, "", 0, "")
    data, size = found
    if not data.endswith(b"\n"):
        raise UnreadableRepo  # a line is being written, or was torn
    cut = data.rfind(b"\n", 0, -1) + 1
    if not cut and size > len(data):
        raise UnreadableRepo
    return LogMark(size, _digest(data), size - len(data) + cut, _digest(data[:cut]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data[-_TAIL:]).hexdigest()[:16]


def read_log_since(repo: Repo, ref: str, then: LogMark) -> tuple[LogLine, ...] | None:
    """The lines that a reflog got since; None where it is not the same one any more."""
    start = max(0, then.size - _END)
    found = read_from(repo.at(ref), f"logs/{ref}", start, MAX_LOG)
    if found is None:
        return () if not then.size else None
    data, size = found
    old, new = data[: then.size - start], data[then.size - start :]
    if size < then.size or (then.size and _digest(old) != then.end) or (new and not new.endswith(b"\n")):
        return None
    lines = []
    for text in new.splitlines():
        match = _LINE.fullmatch(text)
        if match is None:
            return None
        lines.append(LogLine(match[1].decode(), match[2].decode(), (match[3] or b"").decode("utf-8", "replace")))
    return tuple(lines)


def lost_last_line(repo: Repo, ref: str, then: LogMark) -> bool:
    """Whether a reflog is what it was without its last line."""
    now = mark_log(repo, ref)
    return bool(then.size) and (now.size, now.end) == (then.last, then.front if then.last else "")

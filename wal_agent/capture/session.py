"""Capture all files of a session in one go: what changed, what is gone, the main file last.

What changed in a file since its last capture becomes a FileDelta (I4: exact; I9: cost is what is new). A file that was
only appended to costs the new bytes. Anything else (shrunk, replaced, rewritten) costs one read of the whole file, and
sends the blocks that changed. Of a captured version only hashes are remembered, so that memory stays small whatever the
file's size (I9).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from wal_agent.records import Edit, FileDelta, FileGone, Payload

if TYPE_CHECKING:
    Hash = hashlib._Hash

BLOCK = 128 << 10  # unit in which a rewritten file is compared; more than a record carries inline (wal/blobs.py)
TAIL = 4 << 10  # bytes before the end that must stand unchanged for a grown file to count as appended to
DIGEST = 32
NO_TIME = -1  # ns; of a file that grew while it was read: no stat result can match
PIECE = 4 << 20  # most bytes of one edit, and most bytes held in memory
MAX_EDITS = 128  # scattered edits of one delta; keeps its record far below a segment's size
TRIES = 3


class KnownVersion(msgspec.Struct):
    """The first `size` bytes of a file, in running hashes: 32 bytes are kept for each block.

    `inode` is (device, inode); `mtime` in ns, or NO_TIME.
    """

    inode: tuple[int, int]
    mtime: int = NO_TIME
    size: int = 0
    tail: bytes = b""
    sha: Hash = msgspec.field(default_factory=hashlib.sha256)
    _whole: bytearray = msgspec.field(default_factory=bytearray)  # digests of the blocks that are full
    _last: Hash = msgspec.field(default_factory=hashlib.sha256)  # of the block that is not full yet

    def copy(self) -> KnownVersion:
        """A copy that can be fed without touching this one."""
        return KnownVersion(
            self.inode, self.mtime, self.size, self.tail, self.sha.copy(), bytearray(self._whole), self._last.copy()
        )

    def feed(self, data: bytes) -> None:
        """Append `data` to what is described."""
        self.sha.update(data)
        view = memoryview(data)
        while view:
            room = BLOCK - self.size % BLOCK
            part, view = view[:room], view[room:]
            self._last.update(part)
            self.size += len(part)
            if self.size % BLOCK == 0:
                self._whole += self._last.digest()
                self._last = hashlib.sha256()
        self.tail = (self.tail + data[-TAIL:])[-TAIL:]

    def block(self, offset: int) -> tuple[int, bytes]:
        """Length and sha256 of what is known of the block at `offset` (a multiple of BLOCK); 0 past the end."""
        at = offset // BLOCK * DIGEST
        if at < len(self._whole):
            return BLOCK, bytes(self._whole[at : at + DIGEST])
        length = max(0, self.size - offset)
        return length, self._last.digest() if length else b""

    @property
    def sha256(self) -> str:
        return self.sha.hexdigest()


PutPayload = Callable[[bytes], Payload]


class Edits:
    """Edits in ascending order of their offset.

    Up to PIECE bytes wait until `done`, so that a read that turns out to be torn has mostly stored nothing.
    """

    def __init__(self, put: PutPayload) -> None:
        self._put = put
        self._stored: list[Edit] = []
        self._waiting: list[tuple[int, bytearray]] = []
        self._held = 0

    @property
    def scattered(self) -> bool:
        """Whether there are so many edits that what follows had better be sent in one run."""
        return len(self._stored) + len(self._waiting) >= MAX_EDITS

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """The bytes at `offset`, which is not below the end of what was added before, are `data` now."""
        while data:
            run = self._waiting[-1] if self._waiting else None
            if run is None or run[0] + len(run[1]) != offset:
                run = (offset, bytearray())
                self._waiting.append(run)
            part = data[: PIECE - self._held]
            run[1].extend(part)
            self._held += len(part)
            offset, data = offset + len(part), data[len(part) :]
            if self._held == PIECE:
                self._flush()

    def done(self) -> tuple[Edit, ...]:
        self._flush()
        return tuple(self._stored)

    def _flush(self) -> None:
        for offset, data in self._waiting:
            self._stored.append(Edit(offset=offset, data=self._put(bytes(data))))
        self._waiting, self._held = [], 0


class Captured(Protocol):
    """What the log says of a file's newest version (wal.state.FileState is one)."""

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...


class NotCapturable(OSError):
    """The path is no regular file, or is a link; it is never read."""


class LostBeginning(Exception):
    """The file was begun anew without its old content, and what the log has of that was never read here: the log's
    version is worth more."""


class Staged:
    """A capture that its tracker does not build on yet: `commit` once its delta is sure to be queued."""

    def __init__(self, tracker: FileTracker, known: KnownVersion, delta: FileDelta) -> None:
        self.delta = delta
        self._tracker, self._known = tracker, known

    def commit(self) -> None:
        self._tracker.build_on(self._known, self.delta.settled)


class FileTracker:
    """Follows one session file. Not for two threads at once: deltas build on each other, so whoever captures and queues
    them holds one lock over both.

    `follow` takes another path when the file moves; `name` is the logical name in the log. `moving` says that the last
    capture gave up because the file was rewritten under its eyes; the next one tries again.

    `begins` (SessionFile) may say that the file goes on where a deleted one ended. Then what was captured of that one
    stays: the log's version is both, one behind the other.
    """

    def __init__(self, path: Path, name: str, session: str) -> None:
        self.path, self.name, self.session = path, name, session
        self.moving = False
        self._begins: Callable[[int], bool] | None = None
        self._lost: KnownVersion | None = None  # what the log has from before the file's first byte
        self._known: KnownVersion | None = None
        self._resuming: Captured | None = None
        self._exact: Path | None = None
        self._settled_upto = 0
        self._distrust = False
        self._forgotten = False

    def follow(self, path: Path, begins: Callable[[int], bool] | None) -> None:
        """Where the file is now, and how to find out that it was begun anew."""
        self.path, self._begins = path, begins

    def build_on(self, known: KnownVersion, settled: int) -> None:
        """The next delta goes from `known` on; the log has `settled`, or will have it."""
        self._known, self._settled_upto = known, max(self._settled_upto, settled)

    @property
    def captured(self) -> bool:
        """Whether the log holds a version of this file, or may hold one."""
        return self._known is not None or self._resuming is not None or self._forgotten

    def forget(self) -> None:
        """A delta that was committed did not reach the log: what the log holds is not known any more, so the next
        capture sends all of the file."""
        self._forgotten = self.captured
        self._known, self._resuming, self._settled_upto = None, None, 0

    def capture(self, put_payload: Callable[[bytes], Payload], now: float, settled: int = 0) -> FileDelta | None:
        """What changed since the last capture; None when nothing did (and `settled` is not news), or while `moving`.

        Edits are at most 4 MiB each. FileNotFoundError when the file is gone, NotCapturable for what is no plain file,
        and whatever `put_payload` raises; the tracker is then as before, and the next capture finds the same again.
        """
        staged = self.stage(put_payload, now, settled)
        if staged is None:
            return None
        staged.commit()
        return staged.delta

    def stage(self, put_payload: Callable[[bytes], Payload], now: float, settled: int = 0) -> Staged | None:
        """Like `capture`, but the tracker moves on only at `Staged.commit`."""
        with _opened(self.path) as fd:
            self._behind(fd)
            self._resume(fd)
            for _ in range(TRIES):
                edits = Edits(put_payload)
                new = self._read(fd, edits)
                if new is not None:
                    self.moving = self._distrust = False
                    return self._staged(new, edits.done(), now, settled)
        self.moving = True
        return None

    def verify(self) -> bool:
        """Read the whole file: is it byte for byte what was captured last? If not, the next capture compares all."""
        same = False
        if self.captured:
            try:
                with _opened(self.path) as fd:
                    self._behind(fd)
                    self._resume(fd)
                    known, size = self._known, self._at + os.fstat(fd).st_size
                    same = known is not None and size == known.size and self._all(fd).sha256 == known.sha256
            except (OSError, LostBeginning):
                same = False
        self._distrust = not same
        return same

    def resume_from(self, captured: Captured, exact: Path | None = None) -> None:
        """Go on from the log's version. The next capture checks whether the file is that, or extends it. If it is
        neither (a recovery repaired it), the blocks that differ from `exact`, a copy of the log's version on this
        machine, are sent; without one, all of it. Nothing is read before: who starts an agent need not wait for that.
        """
        self._known, self._resuming, self._exact = None, captured, exact

    @property
    def _at(self) -> int:
        """The offset of the file's first byte in the log's version."""
        return self._lost.size if self._lost else 0

    def _all(self, fd: int) -> KnownVersion:
        new = self._lost.copy() if self._lost else KnownVersion((0, 0))
        for data in _pieces(fd, 0, os.fstat(fd).st_size, PIECE):
            new.feed(data)
        return new

    def _behind(self, fd: int) -> None:
        """Find out whether the file begins with its first byte, or goes on behind what was captured."""
        if self._begins is None or self._begins(fd):
            self._lost = None
            return
        now = os.fstat(fd)
        if self._resuming or (self._forgotten and not self._lost):
            raise LostBeginning
        if self._known and not _begins_with(fd, now, self._known, self._at):
            self._lost, self._known = self._known, self._known.copy()
            self._known.inode, self._known.mtime = _inode(now), NO_TIME

    def _resume(self, fd: int) -> None:
        if (captured := self._resuming) is None:
            return
        self._known = _version(fd, captured)
        if self._known is None and self._exact is not None:
            with suppress(OSError), _opened(self._exact) as copy:
                self._known = _version(copy, captured)
        self._resuming = self._exact = None

    def _staged(self, new: KnownVersion, edits: tuple[Edit, ...], now: float, settled: int) -> Staged | None:
        old = self._known
        if old is not None and (new.size, new.sha256) == (old.size, old.sha256) and settled <= self._settled_upto:
            self._known = new  # same bytes; its inode or mtime may be news
            return None
        delta = FileDelta(
            time=now,
            path=self.name,
            size=new.size,
            sha256=new.sha256,
            edits=edits,
            session=self.session,
            settled=settled,
        )
        return Staged(self, new, delta)

    def _read(self, fd: int, edits: Edits) -> KnownVersion | None:
        """The file's bytes as of now, the changed ones put into `edits`; None when it moved meanwhile."""
        old, before, at = self._known, os.fstat(fd), self._at
        if old is None or self._distrust or not _begins_with(fd, before, old, at):
            new = _compare(fd, before, old, edits, self._lost)
        elif at + before.st_size > old.size:
            new = _append(fd, before, old, edits, at)
        elif before.st_mtime_ns == old.mtime:
            return old
        else:
            new = _compare(fd, before, old, edits, self._lost)
        return _finish_read(fd, before, new, at)


def _append(fd: int, before: os.stat_result, old: KnownVersion, edits: Edits, at: int) -> KnownVersion:
    new = old.copy()
    for data in _pieces(fd, new.size - at, before.st_size, PIECE):
        edits.add(new.size, data)
        new.feed(data)
    return new


def _compare(
    fd: int, before: os.stat_result, old: KnownVersion | None, edits: Edits, lost: KnownVersion | None
) -> KnownVersion:
    """Read all of it, block by block, against the digests of `old`; behind `lost`, whose blocks end elsewhere, sent."""
    new = lost.copy() if lost else KnownVersion(_inode(before))
    nothing = KnownVersion(_inode(before))
    new.inode, old = nothing.inode, nothing if lost else old or nothing
    for data in _pieces(fd, 0, before.st_size, BLOCK):
        length, digest = old.block(new.size)
        comparable = 0 < length <= len(data) and not edits.scattered
        same = length if comparable and hashlib.sha256(data[:length]).digest() == digest else 0
        edits.add(new.size + same, data[same:])
        new.feed(data)
    return new


def _finish_read(fd: int, before: os.stat_result, new: KnownVersion, at: int) -> KnownVersion | None:
    """`new` if it is a state the file was in: nothing moved, or bytes were only added behind it."""
    after = os.fstat(fd)
    if new.size != at + before.st_size:
        return None
    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
        new.mtime = after.st_mtime_ns
        return new
    new.mtime = NO_TIME
    return new if after.st_size > before.st_size and _begins_with(fd, after, new, at) else None


def _begins_with(fd: int, now: os.stat_result, known: KnownVersion, at: int) -> bool:
    """Whether the file is the same one, not shorter, and still holds the last bytes of what is known. `at`: its first
    byte's place in that."""
    here = known.size - at
    if _inode(now) != known.inode or now.st_size < here:
        return False
    tail = known.tail[-here:] if here else b""
    return os.pread(fd, len(tail), here - len(tail)) == tail


def _version(fd: int, captured: Captured) -> KnownVersion | None:
    """The log's version, where the file begins with it; checked by its hash."""
    known = _front(fd, captured.size)
    return known if (known.size, known.sha256) == (captured.size, captured.sha256) else None


def _front(fd: int, size: int) -> KnownVersion:
    """The file's first `size` bytes (fewer if it is shorter)."""
    now = os.fstat(fd)
    known = KnownVersion(_inode(now))
    for data in _pieces(fd, 0, size, PIECE):
        known.feed(data)
    known.mtime = now.st_mtime_ns if now.st_size == size else NO_TIME
    return known


def _pieces(fd: int, start: int, end: int, length: int) -> Iterator[bytes]:
    """The bytes from `start` to `end` in pieces of exactly `length` but the last; ends early where the file does."""
    while start < end:
        want = min(length, end - start)
        data = os.pread(fd, want, start)
        while 0 < len(data) < want and (more := os.pread(fd, want - len(data), start + len(data))):
            data += more
        if not data:
            return
        yield data
        start += len(data)


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor on a regular file; a link is not followed, a pipe or device neither read nor waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EMLINK):
            raise NotCapturable(error.errno, "not a regular file", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotCapturable(errno.EINVAL, "not a regular file", str(path))
        yield fd
    finally:
        os.close(fd)


class SessionFile(Protocol):
    """One file of a session: its logical name (posix, the same on every machine), and where it is here. `begins`: see
    FileTracker."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def begins(self) -> Callable[[int], bool] | None: ...


class SessionCapture:
    """The files of one session, which may appear and vanish between calls.

    All or nothing: when storing a payload fails, no tracker moves on, and the next call finds everything again. The
    caller holds one lock over a capture and the queuing of its records: deltas build on each other. When a record could
    not be queued, it calls `forget`.

    `problems` says of the last call, in sentences, what could not be captured and why; `vanished` that the main file
    is gone, "" where it is not.
    """

    def __init__(self, session: str, put_payload: Callable[[bytes], Payload]) -> None:
        self.session = session
        self.problems: tuple[str, ...] = ()
        self.vanished = ""
        self._put = put_payload
        self._trackers: dict[str, FileTracker] = {}
        self._gone: dict[str, FileTracker] = {}  # what the last call reported as gone
        self._main = ""

    def resume_from(
        self, files: Sequence[SessionFile], captured: Mapping[str, Captured], exact: Path | None = None
    ) -> None:
        """Go on from what the log holds (State.files); the next call checks which files are that, or extend it. Of
        others it sends what differs from the copies in the folder `exact`; without these, they are sent whole."""
        for file in files:
            if file.name in captured:
                self._tracker(file).resume_from(captured[file.name], exact and exact / file.name)

    def forget(self) -> None:
        """Records of the last call did not all reach the log: the next call sends every file whole, and reports
        again what is gone."""
        self._trackers = {**self._gone, **self._trackers}
        self._gone = {}
        for tracker in self._trackers.values():
            tracker.forget()

    def capture(
        self, files: Sequence[SessionFile], now: float, settled: int = 0, verify: bool = False
    ) -> list[FileDelta | FileGone]:
        """Records for everything that changed since the last call; `files` has the main file first, as agents give it.

        The main file's record comes last, so that whatever it names is there before it; it alone carries `settled`.
        A file that vanished from the disk is reported as gone, the main file never: an agent that deletes its own
        session must not take the log's copy with it. `verify` reads every file whole (at the end of a run)."""
        problems: list[str] = []
        staged: list[Staged] = []
        main = files[0].name if files else ""
        for file in (*files[1:], *files[:1]):
            tracker = self._tracker(file)
            if verify:
                tracker.verify()
            try:
                found = tracker.stage(self._put, now, settled if file.name == main else 0)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except NotCapturable:
                problems.append(f"{file.path} is not a regular file, so it is not saved.")
                continue
            except PermissionError as error:
                problems.append(f"{file.path} is not saved: {error.strerror}.")
                continue
            except LostBeginning:
                problems.append(
                    f"{file.path} was deleted by another program and begun anew, without what stood in it; the log "
                    "keeps the session as it was captured last."
                )
                continue
            if tracker.moving:
                problems.append(f"{file.path} was rewritten while it was read; it is saved at the next capture.")
            if found is not None:
                staged.append(found)
        self._main = main or self._main
        gone = self._find_gone({each.delta.path for each in staged}, now)
        for each in staged:
            each.commit()
        self.problems = tuple(problems)
        return [*gone, *(each.delta for each in staged)]

    def _tracker(self, file: SessionFile) -> FileTracker:
        tracker = self._trackers.setdefault(file.name, FileTracker(file.path, file.name, self.session))
        tracker.follow(file.path, file.begins)
        return tracker

    def _find_gone(self, seen: set[str], now: float) -> list[FileGone]:
        """Files that were captured and are no longer on the disk, whether they are still listed or not."""
        gone = []
        self._gone, self.vanished = {}, ""
        for name, tracker in list(self._trackers.items()):
            if name in seen or not tracker.captured or _may_exist(tracker.path):
                continue
            if name == self._main:
                self.vanished = f"{tracker.path} is gone; the log keeps the session as it was captured last."
                continue
            self._gone[name] = self._trackers.pop(name)
            gone.append(FileGone(time=now, path=name))
        return gone


def _may_exist(path: Path) -> bool:
    """Whether anything is there. What cannot be known (permission, I/O) is not taken for gone."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True

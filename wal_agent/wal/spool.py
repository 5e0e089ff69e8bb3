"""What a run wrote down on this machine while the bucket was away (R9): a suffix of its log, byte for byte.

    <state>/wal-agent/spools/<job>-<run>/   0700, on a local disk; the lease names it from the opening on
      lock            held by flock while a run uses the folder; free proves that its owner is gone
      owner.json      the job and the bucket that it belongs to
      <epoch>/<seq>   one segment each, the very bytes that are put into the bucket; 20 digits
      <epoch>.new/    an unfinished move of what is left to a later epoch; never read

Only the highest <epoch> counts. Segments leave it in their order once the bucket has them, so what is in front of a
gap was acknowledged, and only the last unbroken row of numbers may hold anything that the log lacks.

A run that opens the job on this machine takes the folder as it is, and so the lease goes on naming it. What the log had
not taken when the opening landed is encoded once more, as the segments that follow the own opening, into <epoch>.new,
which one rename makes the epoch that counts. From then on it is what a run of that epoch spooled itself: sent in order,
one seq one content (R3). A crash before the rename leaves the old epoch, one behind it the new one; either way each
record is in exactly one place that counts, so it comes into the log once, however often this is cut off.

A disk may be copied. What another epoch has carried in from another copy is moved into a folder of its own,
<job>-<run>.aside-<n>, that no lease names and only a person removes.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.folder import Tree, read_file, sync, temp_file
from wal_agent.budget import FOREIGN
from wal_agent.errors import ConfigError, Damaged, Exhausted
from wal_agent.failpoints import failpoint
from wal_agent.safefs import flock_state, try_lock
from wal_agent.wal import codec
from wal_agent.wal.codec import Segment

MAX_SPOOL = 128 << 20  # bytes on the disk; a run keeps what it has not sent in memory as well (I9)
BLOCK = 4096  # bytes that a disk takes for the smallest file; more than a segment costs in memory beside its own bytes
_NUMBER = re.compile(r"[0-9]{20}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_LOCK, _OWNER, _NEW, _ASIDE = "lock", "owner.json", ".new", ".aside-"

Presence = Literal["free", "held", "absent"]


class SpoolOwner(msgspec.Struct, frozen=True):
    """owner.json: which log the segments belong to."""

    job: str
    bucket: str  # URL


_OWNED = msgspec_compat.of_json(SpoolOwner)


class SpoolContent(msgspec.Struct, frozen=True):
    """What a spool holds: the numbers of the segments of `epoch`, in order; they are whole and chained."""

    epoch: int = 0
    seqs: tuple[int, ...] = ()


class Spool:
    """A folder whose lock this process holds. `store` and `drop` may be called by different threads."""

    def __init__(self, folder: Path, owner: SpoolOwner, lock: int, *, adopted: bool) -> None:
        self.folder, self.owner = folder, owner
        self.adopted = adopted
        """Whether an earlier run may have left something here."""
        self._lock: int | None = lock
        self._tree = Tree(folder)
        self._epoch = 0
        self._sizes: dict[int, int] = {}
        self._taken = 0  # their sum
        self._counting = threading.Lock()

    @classmethod
    def create(cls, spools: Path, run: str, owner: SpoolOwner) -> Spool:
        """A new, empty one below the folder `spools`; ConfigError where it cannot be made."""
        folder = spools / f"{owner.job}-{run}"
        try:
            with Tree(spools).open((folder.name,), make=True) as fd:
                lock = _locked(fd)
                with temp_file(fd, msgspec.json.encode(owner)) as temp:
                    os.rename(temp, _OWNER, src_dir_fd=fd, dst_dir_fd=fd)
                sync(fd)
        except OSError as error:
            raise ConfigError(
                f"The folder {folder} for --on-outage spool cannot be made: {error.strerror}.",
                "Make room for it, or leave --on-outage spool out.",
            ) from error
        assert lock is not None, "nobody else knows this folder"
        return cls(folder, owner, lock, adopted=False)

    @classmethod
    def adopt(cls, spools: Path, named: str, owner: SpoolOwner) -> Spool | None:
        """The one that a lease names, if it is here and nobody uses it; else None. ConfigError: it cannot be used."""
        if spool_presence(spools, named, owner) != "free":
            return None
        folder = Path(named)
        try:
            with Tree(folder).open(()) as fd:
                lock = _locked(fd)
        except FileNotFoundError:
            return None  # another start has carried it in and removed it since
        except OSError as error:
            raise ConfigError(
                f"The spool in {folder} holds records of job {owner.job} and cannot be locked: {error.strerror}.",
                "Make the folder writable, and start again.",
            ) from error
        return None if lock is None else cls(folder, owner, lock, adopted=True)

    # --- while a run writes

    def store(self, seq: int, data: bytes) -> None:
        """Make the segment durable here. OSError: it is not."""
        with self._counting:
            if self._taken + _on_disk(len(data)) > MAX_SPOOL:
                raise OSError(errno.EDQUOT, "the spool is full")
        failpoint("spool.before_store")
        with self._tree.open((_number(self._epoch),), make=True) as fd:
            _write(fd, seq, data)
            sync(fd)
        with self._counting:
            self._sizes[seq] = _on_disk(len(data))
            self._taken += self._sizes[seq]
        failpoint("spool.after_store")

    def drop(self, seq: int) -> None:
        """The bucket has this segment. One that stays by a crash, or because the disk refuses, does no harm."""
        failpoint("spool.before_drop")
        with self._counting:
            self._taken -= self._sizes.pop(seq, 0)
        with suppress(OSError), self._tree.open((_number(self._epoch),)) as fd:
            os.unlink(_number(seq), dir_fd=fd)

    # --- from owner to owner

    def read(self) -> SpoolContent:
        """What is left by the newest epoch here. Damaged when a file is not the segment that its name says, or one
        does not chain to the one before; Damaged also when it cannot be read: it is never passed over."""
        epochs = _epochs(self.folder)
        if not epochs:
            return SpoolContent()
        epoch = epochs[-1]
        try:
            with self._tree.open((_number(epoch),)) as fd:
                seqs = tuple(last_contiguous(_numbers(_inside(fd))))
                before: bytes | None = None
                for seq in seqs:
                    data = _read(fd, seq)
                    found = codec.decode_segment(data, job=self.owner.job, seq=seq)
                    if before is not None and found.prev != before:
                        raise Damaged(f"record {seq} does not chain to record {seq - 1}")
                    if found.epoch != epoch or found.opening is not None:
                        raise Damaged(f"it holds a record that no run of epoch {epoch} can have spooled")
                    before = codec.digest(data)
        except (OSError, Damaged) as error:
            raise self.damaged(str(error)) from error
        return SpoolContent(epoch, seqs)

    def segment(self, epoch: int, seq: int) -> Segment:
        """One that `read` found. Damaged: it can be read no more."""
        try:
            with self._tree.open((_number(epoch),)) as fd:
                return codec.decode_segment(_read(fd, seq), job=self.owner.job, seq=seq)
        except (OSError, Damaged) as error:
            raise self.damaged(str(error)) from error

    def require_room(self) -> None:
        """Exhausted when `begin`, which writes all that is here once more, would find the disk full."""
        try:
            needed, free = _taken(self.folder), shutil.disk_usage(self.folder).free
        except OSError:
            return  # reading it says why
        if needed > free:
            raise Exhausted(
                f"The spool in {self.folder} cannot be carried into the log: that takes {needed} bytes on its disk, "
                f"which has {free} free.",
                "Make room there, and start again.",
            )

    def require_known(self) -> None:
        """Newer, when a newer wal-agent wrote what `read` would find; whether it is damaged, `read` finds."""
        with suppress(Damaged):
            self.read()

    def begin(self, epoch: int, segments: list[tuple[int, bytes]]) -> None:
        """From now on `epoch` counts here, with these segments and no others. ConfigError: the disk refuses, and it is
        as it was."""
        failpoint("spool.before_begin")
        try:
            self._begin(epoch, segments)
        except OSError as error:
            raise ConfigError(
                f"The spool in {self.folder} cannot be written: {error.strerror}.", "Make room there, and start again."
            ) from error
        with self._counting:
            self._epoch = epoch
            self._sizes = {seq: _on_disk(len(data)) for seq, data in segments}
            self._taken = sum(self._sizes.values())

    def _begin(self, epoch: int, segments: list[tuple[int, bytes]]) -> None:
        name, new = _number(epoch), _number(epoch) + _NEW
        shutil.rmtree(self.folder / new, ignore_errors=True)
        with self._tree.open((new,), make=True) as fd:
            for seq, data in segments:
                _write(fd, seq, data)
            sync(fd)
        with self._tree.open(()) as fd:
            failpoint("spool.before_rename")
            os.rename(new, name, src_dir_fd=fd, dst_dir_fd=fd)
            sync(fd)
            failpoint("spool.after_rename")
            for old in _inside(fd):
                if old not in (name, _LOCK, _OWNER):
                    shutil.rmtree(self.folder / old, ignore_errors=True)
        self._tree = Tree(self.folder)

    def set_aside(self, epoch: int) -> None:
        """Move what `epoch` left here into a folder of its own. ConfigError: the disk refuses, and it is as it was."""
        run, name = self.folder.name.removeprefix(f"{self.owner.job}-") + _ASIDE, _number(epoch)
        taken = (self.folder.parent / f"{self.owner.job}-{run}{n}" / name for n in itertools.count(1))
        number = next(n for n, path in enumerate(taken, 1) if not path.exists())
        aside = Spool.create(self.folder.parent, f"{run}{number}", self.owner)
        try:
            with self._tree.open(()) as here, Tree(aside.folder).open(()) as there:
                os.rename(name, name, src_dir_fd=here, dst_dir_fd=there)
                sync(there)
                sync(here)
        except OSError as error:
            raise ConfigError(
                f"The spool in {self.folder} cannot be moved to {aside.folder}: {error.strerror}.",
                "Make both writable, and start again.",
            ) from error
        finally:
            aside.release()

    @property
    def count(self) -> int:
        """How many segments are here that count."""
        return len(self._sizes) if self._epoch else count_segments(self.folder)

    @property
    def empty(self) -> bool:
        """Whether it is sure that nothing is here which the log lacks."""
        return not self._sizes and (self._epoch > 0 or not self.adopted)

    def damaged(self, why: str) -> Damaged:
        return Damaged(
            f"The spool of job {self.owner.job} in {self.folder} is damaged: {why.rstrip('.')}.",
            "Move the folder away and use --accept-loss to go on without what only it holds.",
        )

    def release(self) -> None:
        """Let go of it; what it holds stays for the next run. Twice is fine."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def remove(self) -> None:
        """The lease names it no more and the bucket has all that it held."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.release()


def spool_presence(spools: Path, named: str, owner: SpoolOwner) -> Presence:
    """Whether the spool that a lease names is on this machine, and whether its owner lives. `named` comes from a
    bucket, so nothing but a private folder of our own directly below `spools` is opened."""
    folder = Path(named)
    if folder.parent != spools or not _NAME.fullmatch(folder.name):
        return "absent"
    try:
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
            return "absent"
        with Tree(folder).open(()) as fd:
            found = _OWNED.decode(read_file(fd, _OWNER)[0])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return "absent"
    state = flock_state(folder / _LOCK)
    return "absent" if found != owner or state == "unknown" else state


def orphaned_spools(spools: Path, owner: SpoolOwner, used: Path | None) -> list[Path]:
    """Spools of this job that no lease names any more (`used`: the one that this run's lease names) and that hold
    records: they are kept for a person. Empty ones are removed."""
    kept: list[Path] = []
    with suppress(OSError):
        for folder in sorted(spools.iterdir()):
            if folder == used or spool_presence(spools, str(folder), owner) != "free":
                continue
            if count_segments(folder):
                kept.append(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    return kept


def describe_kept(folder: Path) -> str:
    """For a person: what one of `orphaned_spools` is."""
    if _ASIDE in folder.name:
        return (
            "this disk is or was an older copy: what it spooled came into the log from another copy of it, and is not "
            f"taken in again. It is kept in {folder}; delete that when the log has all that you miss"
        )
    return f"this machine keeps records of an earlier run that never came into the log: {folder}"


def count_segments(folder: Path) -> int:
    """How many segments count in a spool; 0 where there is none."""
    epochs = _epochs(folder)
    return len(_numbers(_names(folder / _number(epochs[-1])))) if epochs else 0


def last_contiguous(numbers: list[int]) -> list[int]:
    """The last unbroken row of ascending numbers."""
    begin = len(numbers) - 1
    while begin > 0 and numbers[begin - 1] == numbers[begin] - 1:
        begin -= 1
    return numbers[max(begin, 0) :]


def _epochs(folder: Path) -> list[int]:
    return _numbers(_names(folder))


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return [path.name for path in folder.iterdir()]
    return []


def _inside(folder: int) -> list[str]:
    with os.scandir(folder) as found:
        return [entry.name for entry in found]


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _number(value: int) -> str:
    return f"{value:020d}"


def _taken(folder: Path) -> int:
    """Bytes of disk that the segments of the newest epoch take."""
    epochs = _epochs(folder)
    files = (folder / _number(epochs[-1])).iterdir() if epochs else ()
    return sum(_on_disk(path.lstat().st_size) for path in files)


def _on_disk(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _write(folder: int, seq: int, data: bytes) -> None:
    with temp_file(folder, data) as temp:
        os.rename(temp, _number(seq), src_dir_fd=folder, dst_dir_fd=folder)


def _read(folder: int, seq: int) -> bytes:
    name = _number(seq)
    if os.stat(name, dir_fd=folder, follow_symlinks=False).st_size > FOREIGN.segment:
        raise Damaged(f"record {seq} is too large")
    return read_file(folder, name)[0]


def _locked(folder: int) -> int | None:
    """A descriptor that holds the folder's lock; None when another process does."""
    fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    mine = False
    try:
        mine = try_lock(fd)
    finally:
        if not mine:
            os.close(fd)
    return fd if mine else None

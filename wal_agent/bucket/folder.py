"""The folder of a file:// bucket: POSIX without links, durable writes, locks that die with their owner, and the proof
that it is still the same folder on the same disk (I3).

A disk can be unmounted while a run lives, or not be mounted yet when one starts. Its mount point is then an ordinary,
empty folder, in which a log would begin anew. So the root holds a marker, a file with a random id, and

* a root whose id is known (from this process's first put, or from an earlier run) is never made again,
* every access compares the root's device, inode and marker with what is known, and works relative to that descriptor,
* a folder in which this process has put something is never made again either,
* a put is acknowledged only where the path leads to what was put.

A disk that comes back may have another device number (and some file systems give a folder another inode). It counts as
the same one if its marker is the same and it holds the newest object that this process put there.

No descriptor is kept: it would keep the disk from being unmounted.

What this machine knows of the buckets that its runs used, of any kind, is in the state folder, so that a bucket that
was emptied is not taken for a new one either:

    buckets/<hash of the URL>/id           the id of the bucket's marker, where its kind has one
    buckets/<hash of the URL>/jobs/<job>   the newest epoch that a run here had of the job
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shlex
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec

from wal_agent import msgspec_compat
from wal_agent.errors import BucketError, Damaged, Denied, Newer, Unavailable, Unmounted
from wal_agent.paths import state_dir
from wal_agent.safefs import read_plain

ABANDONED_AFTER = 3600.0  # seconds
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe that someone left in the bucket must not hang its reader.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is mounted read-only",
    errno.EIO: "the disk reports an input/output error",
    errno.EMFILE: "this process has too many open files",
}
MARKER = ".bucket"
TEMPS = ".tmp"
MAX_MARKER = 4096  # bytes
MARKER_FORMAT = 1
_ID, _JOBS, _CONDITIONS = "id", "jobs", "conditions"
TRIED_FOR = 86_400.0  # seconds, after which a machine tries a store's conditions again


def bucket_error(doing: str, root: Path, path: Path, error: OSError) -> BucketError:
    """The bucket's error for one of the kernel's: Denied where a person must act, Unavailable otherwise."""
    hint = f"Look at owner and mode: ls -ld {shlex.quote(str(root))} {shlex.quote(str(path))}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"Cannot {doing} {path}: permission denied.", hint, "permission denied")
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return Denied(f"Cannot {doing} {path}: a link, or another kind of file than expected, is in the way.", hint)
    why = _WHY.get(error.errno or 0) or (error.strerror or str(error)).lower()
    return Unavailable(f"Cannot {doing} {path}: {why}.", why=why)


def sync(fd: int) -> None:
    """Make a file, or the names in a folder, survive a power loss."""
    if sys.platform == "darwin":  # fsync there stops at the drive's cache
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def read_file(folder: int, name: str, most: int = -1) -> tuple[bytes, float]:
    """Bytes (at most so many) and mtime of one regular file; a rename meanwhile does not matter, since both come from
    one descriptor."""
    fd = os.open(name, _READ, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return file.read(most), status.st_mtime


def open_child(folder: int, name: str) -> int:
    """A descriptor of the folder `name` in an open folder, never through a link."""
    return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def make_child(folder: int, name: str) -> int:
    """The same, made where it is missing: private (0700), and durable before this returns."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    sync(folder)  # also when it existed already: who made it may have been killed before its own sync
    return open_child(folder, name)


class Tree:
    """The folders under `root`. What it makes is private (0700), and durable before `open` yields it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._settled: set[tuple[str, ...]] = set()

    @contextmanager
    def open(self, parts: tuple[str, ...], make: bool = False) -> Iterator[int]:
        """A descriptor of the folder root/parts; FileNotFoundError when it is missing and not to be made."""
        if make and () not in self._settled:
            make_root(self.root)
            self._settled.add(())
        try:
            fd = os.open(self.root, FOLDER)
            try:
                for depth, part in enumerate(parts, 1):
                    new = make and parts[:depth] not in self._settled
                    child = make_child(fd, part) if new else open_child(fd, part)
                    self._settled.add(parts[:depth])
                    os.close(fd)
                    fd = child
                yield fd
            finally:
                os.close(fd)
        except FileNotFoundError:
            if make:  # someone removed a folder under us: the next call makes it again
                self._settled.clear()
            raise


def make_root(root: Path) -> None:
    """Make what is missing of a folder's path, durably."""
    chain = (root, *root.parents)
    missing = [folder for folder in chain if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        sync_folder(folder.parent)
    for folder in chain[len(missing) + 1 :]:
        # Names that another process made and did not sync. No reason to fail: / may be unreadable.
        with suppress(OSError):
            sync_folder(folder)


def hard_link(temps: int, temp: str, folder: int, name: str, root: Path) -> None:
    """Give a file of `temps` the name `name` in `folder`, both below `root`. FileExistsError; Denied: no hard links."""
    try:
        os.link(temp, name, src_dir_fd=temps, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
            raise
        what = f"The file system of {root} makes no hard links, which a file:// bucket needs."
        raise Denied(what, "Choose a folder on a local disk.") from error


def sync_folder(path: Path) -> None:
    fd = os.open(path, FOLDER)
    try:
        sync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(folder: int, name: str, timeout: float) -> Iterator[None]:
    """Hold the flock on the sidecar `name`, which is never unlinked; the kernel frees it when its owner dies.

    TimeoutError after `timeout` seconds: a process that is stopped while it holds the lock must not hang all others.
    Each call opens its own descriptor, so that threads exclude each other too.
    """
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        deadline, pause = time.monotonic() + timeout, 0.0002
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"another process has held its lock for {timeout:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        try:
            yield
        finally:
            # Closing is not enough: a child forked by another thread may hold a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def temp_file(folder: int, data: bytes) -> Iterator[str]:
    """The name of a new durable file that holds `data`; unlinked at the end unless it was renamed away."""
    name = f"{os.getpid()}-{secrets.token_hex(8)}"
    fd = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        _try_lock(fd)  # shows sweep() that its writer lives
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        sync(fd)
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        os.close(fd)


def sweep(folder: int, now: float) -> None:
    """Unlink the temp files of dead writers: unlocked, and so old that a clock set forward does not hit a new one."""
    with os.scandir(folder) as found:
        names = [entry.name for entry in found]
    for name in names:
        with suppress(OSError):
            fd = os.open(name, _READ, dir_fd=folder)
            try:
                if now - os.fstat(fd).st_mtime > ABANDONED_AFTER and _try_lock(fd):
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(fd)


Parts = tuple[str, ...]
FileId = tuple[int, int]  # device and inode


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


_MARKER = msgspec_compat.of_json(Marker)


class Disk:
    """`known`: the id of the marker that must be there; "" where this machine has not used the bucket before.

    `holds(folder, name, version)`: whether the object is in this open folder. Threads may share it."""

    def __init__(self, root: Path, url: str, holds: Callable[[int, str, str], bool], known: str = "") -> None:
        self.root, self._url, self._holds = root, url, holds
        self.id = known
        self._places: dict[
            Parts, FileId
        ] = {}  # of the root, and of the folders in which this process has put something
        self._newest: dict[Parts, tuple[Parts, str, str]] = {}  # below each of them: folder, name and version
        self._lock = threading.Lock()

    @contextmanager
    def opened(self, make: bool = False) -> Iterator[int]:
        """A descriptor of the root. FileNotFoundError: it is missing, was never seen and is not to be made;
        Unavailable: it is not the one that is known."""
        if make and not self.id:
            make_root(self.root)
        try:
            # The user may have put the whole bucket behind a link; inside it no link is followed.
            fd = os.open(self.root, FOLDER)
        except FileNotFoundError:
            if self.id:
                raise self._gone(f"{self.root} does not exist") from None
            raise
        try:
            self._check_root(fd, make)
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def folder(self, root: int, parts: Parts, make: bool = False) -> Iterator[int]:
        """A descriptor of root/parts; FileNotFoundError when it is missing and not to be made."""
        fd = os.dup(root)
        try:
            for depth in range(1, len(parts) + 1):
                child = self._child(root, fd, parts[:depth], make)
                os.close(fd)
                fd = child
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def scratch(self, root: int, name: str) -> Iterator[int]:
        """A descriptor of a folder that holds no objects: one that was removed is made again."""
        try:
            fd = open_child(root, name)
        except FileNotFoundError:
            fd = make_child(root, name)
        try:
            yield fd
        finally:
            os.close(fd)

    def acknowledge(self, folder: int, parts: Parts, name: str, version: str) -> None:
        """Note what was put into the open folder root/parts. Unavailable: the path does not lead to it (any more)."""
        path = self.root.joinpath(*parts, name)
        try:
            same = file_id(path.lstat()) == file_id(os.stat(name, dir_fd=folder, follow_symlinks=False))
        except OSError as error:
            raise self._gone(f"{path} cannot be found ({error.strerror})") from error
        if not same:
            raise self._gone(f"{path} is not the file that was written")
        with self._lock:
            for depth in range(len(parts) + 1):
                self._newest[parts[:depth]] = (parts, name, version)

    # --- the root

    def _check_root(self, fd: int, make: bool) -> None:
        if not self.id:
            found = self.marker(fd)
            if not make:
                return
            with self._lock:
                self.id = self.id or found or self._mark(fd)
        found = self.marker(fd)
        if found != self.id:
            other = "the marker of another bucket" if found else f"no {MARKER}"
            raise self._gone(f"{self.root} has {other}")
        self._check_place(fd, fd, (), make)

    def marker(self, fd: int) -> str:
        """Its id, from an open root; "" where there is none. Damaged; Newer."""
        try:
            data = read_file(fd, MARKER, MAX_MARKER)[0]
        except FileNotFoundError:
            return ""
        try:
            found = _MARKER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Damaged(f"The marker {self.root / MARKER} is damaged.", self._forget()) from error
        if found.format > MARKER_FORMAT:
            raise Newer.of(f"The marker {self.root / MARKER}", f"format {found.format}")
        return found.id

    def _mark(self, fd: int) -> str:
        """Create the marker; the id that is there then. Another process may be faster."""
        made = Marker(format=MARKER_FORMAT, id=secrets.token_hex(16))
        with (
            self.scratch(fd, TEMPS) as temps,
            temp_file(temps, msgspec.json.encode(made) + b"\n") as temp,
            suppress(FileExistsError),
        ):
            hard_link(temps, temp, fd, MARKER, self.root)
        sync(fd)
        return self.marker(fd)

    # --- folders

    def _child(self, root: int, above: int, parts: Parts, make: bool) -> int:
        try:
            child = make_child(above, parts[-1]) if make and parts not in self._places else open_child(above, parts[-1])
        except FileNotFoundError:
            if parts in self._places:
                raise self._gone(f"{self.root.joinpath(*parts)} does not exist") from None
            raise
        try:
            self._check_place(root, child, parts, make)
        except BaseException:
            os.close(child)
            raise
        return child

    def _check_place(self, root: int, fd: int, parts: Parts, make: bool) -> None:
        place = file_id(os.fstat(fd))
        with self._lock:
            known = self._places.setdefault(parts, place) if make else self._places.get(parts, place)
        if known == place:
            return
        if not self._holds_newest(root, parts):
            raise self._gone(f"{self.root.joinpath(*parts)} is another folder than before")
        with self._lock:
            self._places[parts] = place

    def _holds_newest(self, root: int, parts: Parts) -> bool:
        """Whether what this process put last below `parts` is there."""
        with self._lock:
            newest = self._newest.get(parts)
        if newest is None:
            return False
        folders, name, version = newest
        fd = os.dup(root)
        try:
            for part in folders:
                child = open_child(fd, part)
                os.close(fd)
                fd = child
            return self._holds(fd, name, version)
        except (OSError, Damaged):
            return False
        finally:
            os.close(fd)

    def _gone(self, why: str) -> Unmounted:
        return Unmounted(f"The disk of bucket {self._url} is gone: {why}.", f"Is it mounted? {self._forget()}")

    def _forget(self) -> str:
        from wal_agent.text import bucket_option, command  # with redaction, which is large

        forget = command("doctor --forget", bucket_option(self._url))
        return f"If the bucket was deleted or replaced on purpose: {forget}"


def file_id(status: os.stat_result) -> FileId:
    return (status.st_dev, status.st_ino)


def known_bucket_id(url: str, env: Mapping[str, str]) -> str:
    """Of the marker that the bucket must have; "" where nothing is known."""
    return _read_text(_bucket_folder(url, env) / _ID)


def known_epoch(url: str, job: str, env: Mapping[str, str]) -> int:
    """The newest epoch that a run of this machine had of the job; 0: it had none."""
    text = _read_text(_bucket_folder(url, env) / _JOBS / job)
    return int(text) if text.isascii() and text.isdigit() else 0


def remember_run(url: str, id: str, job: str, epoch: int, env: Mapping[str, str]) -> None:
    """OSError: the state folder cannot be written."""
    if url.startswith("memory:"):
        return  # it ends with its process
    folder = _bucket_folder(url, env)
    tree = Tree(folder.parent)
    for parts, name, text in (((folder.name,), _ID, id), ((folder.name, _JOBS), job, str(epoch))):
        if not text or _read_text(folder.parent.joinpath(*parts, name)) == text:
            continue
        with tree.open(parts, make=True) as fd, temp_file(fd, text.encode()) as temp:
            os.rename(temp, name, src_dir_fd=fd, dst_dir_fd=fd)
            sync(fd)


def conditions_due(url: str, env: Mapping[str, str], now: float) -> bool:
    """Whether a start of this machine is to try the bucket's conditions, although its job is known. Only an s3:// store
    may lose them: by versioning (Ceph), or as another server answers at its address."""
    if not url.startswith("s3:"):
        return False
    tried = _read_text(_bucket_folder(url, env) / _CONDITIONS)
    return not (tried.isascii() and tried.isdigit() and 0 <= now - int(tried) < TRIED_FOR)


def note_conditions(url: str, env: Mapping[str, str], now: float) -> None:
    """This machine has tried them. OSError: the state folder cannot be written."""
    folder = _bucket_folder(url, env)
    with (
        Tree(folder.parent).open((folder.name,), make=True) as fd,
        temp_file(fd, str(int(now)).encode()) as temp,
    ):
        os.rename(temp, _CONDITIONS, src_dir_fd=fd, dst_dir_fd=fd)


def forget_bucket(url: str, job: str | None, env: Mapping[str, str]) -> bool:
    """Forget the job, or the whole bucket; whether anything was known of it. OSError."""
    folder = _bucket_folder(url, env)
    gone = folder if job is None else folder / _JOBS / job
    if not gone.exists():
        return False
    if job is None:
        shutil.rmtree(gone)
    else:
        with suppress(FileNotFoundError):
            gone.unlink()
    return True


def missing_job_error(url: str, job: str, epoch: int) -> Unavailable:
    """For a job that ran here and of which the bucket holds neither lease nor log."""
    from wal_agent.text import job_command

    return Unavailable(
        f"Job {job} has run on this machine (epoch {epoch}), but {url} holds neither its lease nor its log.",
        "Is the disk mounted, and is it the right bucket? If the job was deleted on purpose: "
        + job_command("doctor --forget", job, url),
    )


def _bucket_folder(url: str, env: Mapping[str, str]) -> Path:
    return state_dir(env) / "buckets" / hashlib.sha256(url.encode()).hexdigest()[:32]


def _read_text(path: Path) -> str:
    return (read_plain(path, 100) or b"").decode("ascii", "replace")

"""What FileBucket needs of POSIX: folders without links, durable writes, locks that die with their owner."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wal_agent.errors import BucketError, Denied, Unavailable

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


def bucket_error(doing: str, root: Path, path: Path, error: OSError) -> BucketError:
    """The bucket's error for one of the kernel's: Denied where a person must act, Unavailable otherwise."""
    hint = f"Look at owner and mode: ls -ld {shlex.quote(str(root))} {shlex.quote(str(path))}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"Cannot {doing} {path}: permission denied.", hint)
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return Denied(f"Cannot {doing} {path}: a link, or another kind of file than expected, is in the way.", hint)
    why = _WHY.get(error.errno or 0) or (error.strerror or str(error)).lower()
    return Unavailable(f"Cannot {doing} {path}: {why}.")


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

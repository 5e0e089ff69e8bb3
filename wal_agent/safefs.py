"""Files that others may have put in place: read without following links, read inside a root, replace, probe a lock."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

from wal_agent.errors import ConfigError

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_PIECE = 4 << 20  # bytes that are copied at a time
_LOOKS = (0.01, 0.03, 0.1, 0.2)  # seconds; who only looks (`flock_state`) holds the lock for some microseconds


def real_path(path: str | Path) -> Path:
    """Return the path without links, as far as it exists. `Path.resolve` raises RuntimeError for links in a circle,
    up to Python 3.12; anyone's repository or PATH may have some."""
    return Path(os.path.realpath(path))


def open_plain(path: Path | str, follow: bool = False) -> BinaryIO:
    """A regular file, to be read. `follow`: links too. OSError: there is none, or something else."""
    fd = os.open(path, READ & ~os.O_NOFOLLOW if follow else READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_plain(path: Path | str, most: int | None = None) -> bytes | None:
    """A regular file's bytes; None for anything else, for one that cannot be opened, and for one with more than `most`
    bytes."""
    try:
        file = open_plain(path)
    except OSError:
        return None
    with file:
        data = file.read() if most is None else file.read(most + 1)
    return data if most is None or len(data) <= most else None


Buffer = bytes | mmap.mmap
"""A file's bytes, in memory or mapped: both can be searched, and a slice is bytes."""
Pieces = Iterable[bytes | memoryview | mmap.mmap]


def map_file(path: Path) -> Buffer:
    """Map a file that this process owns and leaves as it is: one that is cut off meanwhile kills the reader."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release(data: object) -> None:
    """Let the pages of a mapped file leave memory; they are read again where they are needed."""
    if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED)


def read_end(path: Path | str, most: int) -> bytes:
    """The last bytes of a regular file, at most `most`; none of anything else, or of one that cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most)
    except OSError:
        return b""


Signature = tuple[tuple[int, ...], ...]


def file_signature(*paths: Path) -> Signature:
    """Return values that show a change of files; empty tuples for those that are not there."""
    found: list[tuple[int, ...]] = []
    for path in paths:
        try:
            info = path.stat()
        except OSError:
            found.append(())
        else:
            found.append((info.st_ino, info.st_size, info.st_mtime_ns))
    return tuple(found)


def path_in_root(root: Path, name: str) -> str | None:
    """The path of what `name` leads to, relative to `root` (a real path); None when there is nothing. ValueError: it
    leads out."""
    real = real_path(root / name)
    if not real.is_relative_to(root):
        raise ValueError("is a link that leads out of the workspace, and is not followed")
    return str(real.relative_to(root)) if real.exists() else None


def read_in_root(root: Path, real: str, most: int) -> str:
    """A plain file of at most `most` bytes of UTF-8. No link is followed any more: what was checked is what is opened.
    `real`: as `inside` gives it. ValueError: it is no such file; OSError."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, file = real.split("/")
        for part in folders:
            fd, old = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), fd
            os.close(old)
        fd, old = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd), fd
        os.close(old)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("is not a file")
        data = b""
        while len(data) <= most and (more := os.read(fd, most + 1 - len(data))):
            data += more
    finally:
        os.close(fd)
    if len(data) > most:
        raise ValueError(f"is larger than {most >> 10} KiB, and is not read")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, for this user only."""
    for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)


def write_new_file(path: Path, data: bytes) -> None:
    """Write a new file (0600), durably. OSError where something is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def write_pieces(
    path: Path, pieces: Iterable[bytes | memoryview | mmap.mmap], behind: Callable[[], object] = lambda: None
) -> str:
    """`write_new_file` of `pieces`, one after the other; return the hash (SHA-256) of all. `behind` is called after
    each 8 MiB."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    digest, size = hashlib.sha256(), 0
    with os.fdopen(fd, "wb", buffering=1 << 20) as file:
        for piece in pieces:
            view = memoryview(piece)
            for at in range(0, len(view), _PIECE):
                part = view[at : at + _PIECE]
                file.write(part)
                digest.update(part)
                size += len(part)
                if size >= 2 * _PIECE:
                    size = 0
                    behind()
        file.flush()
        os.fsync(fd)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def swap_file(path: Path, data: bytes) -> None:
    """Make `data` the content of a file of wal-agent's own (0600, in folders of 0700), durably and in one step.
    OSError."""
    make_private_folder(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # of a process that died
    write_new_file(fresh, data)
    fresh.replace(path)
    sync_folder(path.parent)


def replace_file(path: Path, data: bytes, expected: bytes | None) -> None:
    """Make `data` the content of `path`, which held `expected` when it was read (None: there was no file).

    A new file is 0600 in folders of 0700. ConfigError when the file is no longer what was read, or cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if expected is not None:
                _copy_mode(path, name)
            if (path.read_bytes() if path.exists() else None) != expected:
                raise ConfigError(f"{path} was changed by someone else just now, so it was left alone.", "Try again.")
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
        sync_folder(real_path(path.parent))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None


def _copy_mode(path: Path, name: str) -> None:
    old = path.stat()
    Path(name).chmod(old.st_mode & 0o7777)
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.chown(name, old.st_uid, old.st_gid)


FlockState = Literal["held", "free", "unknown"]
Life = Literal["alive", "dead", "unknown"]  # of the process that is to hold it


def try_lock(fd: int) -> bool:
    """Take the lock of an open file for this process's life; False where a living process has it."""
    for pause in (*_LOOKS, 0.0):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(pause)
    return False


def flock_state(path: Path | str) -> FlockState:
    """`unknown`: not there, not a plain file of this user's, or not readable. Never blocks, follows no link; the path
    may come from a bucket, so what it names is only ever opened for reading."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return "unknown"
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid():
            return "unknown"
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError:
        return "unknown"
    finally:
        os.close(fd)
    return "free"

"""The folder that a file:// bucket is in, and the proof that it is still the same one on the same disk (I3).

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

import hashlib
import os
import secrets
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.folder import (
    FOLDER,
    Tree,
    hard_link,
    make_child,
    make_root,
    open_child,
    read_file,
    sync,
    temp_file,
)
from wal_agent.errors import Damaged, Newer, Unavailable
from wal_agent.paths import state_dir
from wal_agent.safefs import read_plain

MARKER = ".bucket"
TEMPS = ".tmp"
MAX_MARKER = 4096  # bytes
MARKER_FORMAT = 1

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

    def _gone(self, why: str) -> Unavailable:
        return Unavailable(f"The disk of bucket {self._url} is gone: {why}.", f"Is it mounted? {self._forget()}")

    def _forget(self) -> str:
        command = f"wal-agent doctor --forget --bucket {shlex.quote(self._url)}"
        return f"If the bucket was deleted or replaced on purpose: {command}"


def file_id(status: os.stat_result) -> FileId:
    return (status.st_dev, status.st_ino)


_ID, _JOBS = "id", "jobs"


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
    command = f"wal-agent doctor --forget --bucket {shlex.quote(url)} --job {job}"
    return Unavailable(
        f"Job {job} has run on this machine (epoch {epoch}), but {url} holds neither its lease nor its log.",
        f"Is the disk mounted, and is it the right bucket? If the job was deleted on purpose: {command}",
    )


def _bucket_folder(url: str, env: Mapping[str, str]) -> Path:
    return state_dir(env) / "buckets" / hashlib.sha256(url.encode()).hexdigest()[:32]


def _read_text(path: Path) -> str:
    return (read_plain(path, 100) or b"").decode("ascii", "replace")

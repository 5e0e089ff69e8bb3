"""A bucket in a folder of a local disk, safe for many processes, SIGKILL at any point, and power loss.

    root/<key>=            an object. The `=`, which no key holds, lets `a` and `a/b` both exist.
    root/.locks/<00..ff>   sidecars for flock, striped by the hash of the key and never unlinked. Every mutator takes
                           its own, else a create could be renamed over by a replace that checked before it.
    root/.bucket           the marker (disk.py): which bucket this is.
    root/.tmp/<pid>-<hex>  what is being written; synced, then linked (create) or renamed (replace) to its name.

A network file system is not enough: flock and link must be those of one kernel. Names that differ in case only are one
object where the file system says so (macOS).

An object is a header that says which put this is, then the payload, both under one checksum:

    0   8  magic "walobj\\r\\n"
    8   2  format, 1
    10  8  generation: 1 when created, one more with each replacement
    18  8  nonce, random: a key that was deleted and created again never repeats a version
    26  8  length of the payload in bytes
    34  32 SHA-256 of bytes 0-33 and the payload
    66     payload

All integers are unsigned and big-endian.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from wal_agent.bucket.base import (
    Entry,
    Object,
    Version,
    check_folder,
    check_key,
    check_prefix,
    is_key,
    too_large_error,
)
from wal_agent.bucket.folder import (
    TEMPS,
    Disk,
    bucket_error,
    hard_link,
    locked,
    open_child,
    read_file,
    sweep,
    sync,
    temp_file,
)
from wal_agent.budget import FOREIGN
from wal_agent.errors import Conflict, Damaged, Newer, NotFound

_MAGIC = b"walobj\r\n"
_FORMAT = 1
_HEAD = struct.Struct(">8sHQ8sQ")
_CHECKSUM_SIZE = 32
FRAME_OVERHEAD = _HEAD.size + _CHECKSUM_SIZE
FRAME_NONCE = 8
_OBJECT = "="
_LOCKS = ".locks"


class Frame(msgspec.Struct, frozen=True):
    generation: int
    nonce: bytes
    payload: bytes

    @property
    def version(self) -> Version:
        return f"{self.generation}-{self.nonce.hex()}"


def generation_of(version: Version) -> int:
    """The generation that a version names; 0, which no object has, for a text that is no version."""
    digits, _, nonce = version.partition("-")
    valid = digits.isascii() and digits.isdigit() and len(digits) < 20 and len(nonce) == 2 * FRAME_NONCE
    return int(digits) if valid else 0


def encode_frame(frame: Frame) -> bytes:
    head = _HEAD.pack(_MAGIC, _FORMAT, frame.generation, frame.nonce, len(frame.payload))
    return b"".join((head, _checksum(head, frame.payload), frame.payload))


def decode_frame(raw: bytes, name: str) -> Frame:
    """The frame in `raw`; Damaged, saying what is wrong with the object `name`, when it does not hold; Newer."""
    if len(raw) < FRAME_OVERHEAD:
        raise Damaged(f"{name} is cut off: {len(raw)} bytes are less than a header.")
    head, payload = raw[: _HEAD.size], raw[FRAME_OVERHEAD:]
    magic, form, generation, nonce, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise Damaged(f"{name} is not an object of wal-agent: it begins with other bytes.")
    if form != _FORMAT and not _is_flipped(head, payload, raw[_HEAD.size : FRAME_OVERHEAD]) and form > _FORMAT:
        raise Newer.of(name, f"format {form}")
    if form != _FORMAT:
        raise Damaged(f"{name} is damaged: there is no format {form}.")
    if length != len(payload):
        raise Damaged(f"{name} should hold {length} bytes and holds {len(payload)}.")
    if raw[_HEAD.size : FRAME_OVERHEAD] != _checksum(head, payload):
        raise Damaged(f"{name} does not match its checksum.")
    return Frame(generation, nonce, payload)


def _is_flipped(head: bytes, payload: bytes, stored: bytes) -> bool:
    """Whether it is a frame of this format but for the bytes that say so."""
    return stored == _checksum(head[: len(_MAGIC)] + _FORMAT.to_bytes(2, "big") + head[len(_MAGIC) + 2 :], payload)


def _checksum(head: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(payload)
    return digest.digest()


class FileBucket:
    """The folder is made by the first put, but where `known`, the id of its marker, says that it must be there.
    `lock_timeout`: seconds to wait for other processes before Unavailable."""

    def __init__(self, root: Path, lock_timeout: float = 5.0, known: str = "") -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()
        self._lock_timeout = lock_timeout
        self._disk = Disk(self.root, self.url, _has_version, known)
        self._swept = False

    def marker(self) -> str:
        """The id of the bucket's marker; "" where it has none, or there is no bucket."""
        with suppress(FileNotFoundError), self._explained("read", self.root), self._disk.opened() as root:
            return self._disk.marker(root)
        return ""

    def _read(self, folder: int, name: str, key: str) -> tuple[bytes, float]:
        most = FOREIGN.of_object(key)
        raw, updated = read_file(folder, name, most + FRAME_OVERHEAD + 1)
        if len(raw) > most + FRAME_OVERHEAD:
            raise too_large_error(str(self._path(key)), most)
        return raw, updated

    def get(self, key: str) -> Object:
        folders, name = _locate(key)
        try:
            with self._explained("read", self._path(key)), self._folder(folders) as folder:
                raw, updated = self._read(folder, name, key)
        except FileNotFoundError:
            raise NotFound(f"{self.url} holds no {key}.") from None
        frame = decode_frame(raw, str(self._path(key)))
        return Object(frame.payload, frame.version, updated, self.time())

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        folders, name = _locate(key)
        generation = 1 if if_version is None else generation_of(if_version) + 1
        frame = Frame(generation, os.urandom(FRAME_NONCE), bytes(data))
        explained = self._explained("write", self._path(key), missing_is_an_error=True)
        with explained, self._disk.opened(make=True) as root, self._disk.folder(root, folders, make=True) as folder:
            self._check(folder, name, key, if_version)  # spares writing what would be refused
            with self._written(root, frame) as (temps, temp), self._locked(root, key):
                self._check(folder, name, key, if_version)
                if if_version is None:
                    self._link(temps, temp, folder, name)
                else:
                    os.rename(temp, name, src_dir_fd=temps, dst_dir_fd=folder)
                sync(folder)
                self._disk.acknowledge(folder, folders, name, frame.version)
        return frame.version

    def delete(self, *keys: str) -> None:
        for key, place in [(key, _locate(key)) for key in keys]:
            self._delete(key, *place)

    def _delete(self, key: str, folders: tuple[str, ...], name: str) -> None:
        with (
            suppress(FileNotFoundError),
            self._explained("delete", self._path(key)),
            self._disk.opened() as root,
            self._disk.folder(root, folders) as folder,
            self._locked(root, key),
        ):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            sync(folder)  # also when it was gone: a delete that was killed may have come only so far

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        base = check_prefix(prefix).rpartition("/")[0]
        return self._list(tuple(base.split("/")) if base else (), prefix, start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._folders(tuple(check_folder(prefix).split("/")[:-1]), prefix)

    def time(self) -> float:
        """This host's clock, which also stamps the files of a local disk."""
        return time.time()

    def close(self) -> None:
        pass

    def _check(self, folder: int, name: str, key: str, if_version: Version | None) -> None:
        """Raise Conflict, once the stored object is durable, unless the condition of a put holds."""
        stored: Version | None = None
        with suppress(FileNotFoundError):
            if if_version is None:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
                stored = "something"
            else:
                stored = decode_frame(self._read(folder, name, key)[0], str(self._path(key))).version
        if stored != if_version:
            # Its writer may have been killed before its sync, and a caller takes what it reads back for acknowledged.
            sync(folder)
            raise Conflict(f"{key} in {self.url} is {'absent' if stored is None else 'another version'}.")

    def _link(self, temps: int, temp: str, folder: int, name: str) -> None:
        try:
            hard_link(temps, temp, folder, name, self.root)
        except FileExistsError:  # its writer does not take our locks, but no create may ever win over another
            sync(folder)
            raise Conflict(f"{name.removesuffix(_OBJECT)} in {self.url} is another version.") from None

    @contextmanager
    def _folder(self, folders: tuple[str, ...]) -> Iterator[int]:
        """To read in."""
        with self._disk.opened() as root, self._disk.folder(root, folders) as folder:
            yield folder

    @contextmanager
    def _written(self, root: int, frame: Frame) -> Iterator[tuple[int, str]]:
        with self._disk.scratch(root, TEMPS) as temps:
            if not self._swept:
                self._swept = True
                sweep(temps, self.time())
            with temp_file(temps, encode_frame(frame)) as temp:
                yield temps, temp

    @contextmanager
    def _locked(self, root: int, key: str) -> Iterator[None]:
        stripe = hashlib.sha256(key.encode()).hexdigest()[:2]
        with self._disk.scratch(root, _LOCKS) as locks, locked(locks, stripe, self._lock_timeout):
            yield

    def _list(self, folders: tuple[str, ...], prefix: str, start_after: str) -> Iterator[Entry]:
        base = "".join(f"{part}/" for part in folders)
        with (
            suppress(FileNotFoundError),
            self._explained("list", self.root / prefix),
            self._folder(folders) as folder,
        ):
            yield from _walk(folder, base, prefix, start_after)

    def _folders(self, folders: tuple[str, ...], prefix: str) -> Iterator[str]:
        with (
            suppress(FileNotFoundError),
            self._explained("list", self.root / prefix),
            self._folder(folders) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                if is_key(prefix + entry.name) and entry.is_dir(follow_symlinks=False):
                    yield entry.name

    @contextmanager
    def _explained(self, doing: str, path: Path, missing_is_an_error: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not missing_is_an_error:
                raise
            raise bucket_error(doing, self.root, path, error) from error

    def _path(self, key: str) -> Path:
        return self.root / f"{key}{_OBJECT}"


def _locate(key: str) -> tuple[tuple[str, ...], str]:
    *folders, name = check_key(key).split("/")
    return tuple(folders), name + _OBJECT


def _has_version(folder: int, name: str, version: Version) -> bool:
    return decode_frame(read_file(folder, name)[0], name).version == version


def _walk(folder: int, base: str, prefix: str, start_after: str) -> Iterator[Entry]:
    """Entries under one open folder whose keys begin with `base`; strangers' files and links are passed over."""
    found: list[tuple[str, str]] = []  # sorts by key, a folder as `name/`, which is where its keys belong
    with os.scandir(folder) as entries:
        for entry in entries:
            key = base + entry.name.removesuffix(_OBJECT)
            if not is_key(key):
                continue
            if entry.name.endswith(_OBJECT):
                wanted = key.startswith(prefix) and key > start_after
            else:
                key += "/"
                wanted = key.startswith(prefix) and (key > start_after or start_after.startswith(key))
                wanted = wanted and entry.is_dir(follow_symlinks=False)
            if wanted:
                found.append((key, entry.name))
    for key, name in sorted(found):
        with suppress(FileNotFoundError):  # deleted meanwhile
            if key.endswith("/"):
                child = open_child(folder, name)
                try:
                    yield from _walk(child, key, prefix, start_after)
                finally:
                    os.close(child)
            else:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield Entry(key, status.st_size, status.st_mtime)

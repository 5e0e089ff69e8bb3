"""What a bucket is: byte objects under string keys, put conditionally. Safety (I2, I3) rests on `put` alone.

The contract, which tests/contract/test_bucket.py runs against every implementation:

* Keys are relative posix paths of the characters A-Z a-z 0-9 . _ - with `/` between parts; no part is empty, begins
  with a dot, or is longer than MAX_PART. Anything else is a ValueError (a bug of the caller), before any I/O. `a` and
  `a/b` may both be keys.
* `put` is atomic: a reader sees all of an object or nothing of it; of any number of writers that race for one condition
  at most one succeeds. When it returns, the object is durable. `Conflict` says that the condition did not hold *and*
  that the stored object is durable. A `get` alone does not: what it shows may be a put that is still undecided.
* A version names one put of one key and is never used again for that key, also not after a delete. (S3 is the
  exception: its version is a hash of the bytes, so whoever replaces objects there puts a fresh nonce into each.)
* `Unavailable` decides nothing: the put may have landed, may land later, or never (a lost reply is not a failure).
  Every other error says that this call changed nothing.
* After a put returned, every get and list, by anyone, sees it; after a delete returned, nobody sees the object again.
* Implementations never retry on their own; decorators do, and never for a conditional put's outcome.
* Every method may be called from any thread.

`MemoryBucket` is in this process's memory: for tests and the seeded simulation, cheap and the same on every run. What
buckets in object stores over HTTP share is at the end: whole seconds, bounds, and listings that are not trusted.
"""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Protocol, TypeVar

import msgspec

from wal_agent.errors import ConfigError, Conflict, Damaged, NotFound, Unavailable

T = TypeVar("T")
Version = str

MAX_KEY = 512
MAX_PART = 200
_PART = rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{MAX_PART - 1}}}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")
PAGE_SIZE = 1000  # entries; the most that the stores put into one page
MAX_IDLE_PAGES = 1000  # in a row that bring nothing new
CONNECTIONS = 32  # kept open; blobs are uploaded in parallel beside the writer, the renewer and the reader
# An append has 20 s: a connection or a reply that does not come leaves time for another send of the same bytes.
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 10.0  # seconds
NOT_THE_STORE = "A proxy or a login page may be between this machine and the store: check the network and the endpoint."
DELETERS = 16  # at a time, of objects that go one by one


def is_key(text: str) -> bool:
    return len(text) <= MAX_KEY and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Give `key` back, or raise ValueError when it is not one (see the contract above)."""
    if not is_key(key):
        raise ValueError(f"not a bucket key: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Give `prefix` back, or raise ValueError when no key can begin with it. The empty one is fine."""
    if len(prefix) > MAX_KEY or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"not a prefix of bucket keys: {prefix!r}")
    return prefix


def check_folder(prefix: str) -> str:
    """Give `prefix` back, or raise ValueError when it is neither empty nor a folder's (with the slash at its end)."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"not the prefix of a folder: {prefix!r}")
    return check_prefix(prefix)


class Object(msgspec.Struct, frozen=True):
    """An object as read. `updated` and `now` are seconds since 1970, both by the *store's* own clock."""

    data: bytes
    version: Version
    updated: float
    now: float


class Entry(msgspec.Struct, frozen=True):
    """An object as listed: its key, its size in bytes as stored, and `updated` by the store's clock."""

    key: str
    size: int
    updated: float


class Bucket(Protocol):
    """Seven methods; each raises Unavailable or Denied (Misconfigured is one) besides what it names."""

    url: str

    def get(self, key: str) -> Object:
        """The object; NotFound; Damaged when its bytes are not those that were put; Newer."""

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        """Create the object (`if_version` None: only if absent) or replace exactly that version; Conflict otherwise.

        Replacing an absent object is a Conflict too, and so is a version that another store gave out. Damaged when what
        would be replaced cannot be read.
        """

    def delete(self, *keys: str) -> None:
        """Remove the objects, in as few requests as the store allows; absent is fine. After an error some may be gone.

        Unconditional: nothing rests on conditional deletes."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Entries whose key begins with `prefix` and is > `start_after`, in ascending key order (code points).

        `start_after` may be any text. A bad prefix is refused at the call, the bucket's errors come while iterating.
        What is put or deleted meanwhile may be seen or not; everything else is listed exactly once.
        """

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the folders right below `prefix`, which is empty or ends with a slash: of each key
        `<prefix><name>/...` its `<name>`, each once, in no order to rely on.

        Requests grow with the number of folders (one for each 1000 or so), whatever lies in them. One that holds
        nothing any more may be named; what is no part of a key is not. A bad prefix is refused at the call, the
        bucket's errors come while iterating.
        """

    def time(self) -> float:
        """Now by the store's clock, seconds since 1970."""

    def close(self) -> None:
        """Let connections go. Twice is fine; nothing else may be called afterwards."""


class BucketDecorator:
    """A bucket around another one, which does what is not overridden."""

    def __init__(self, inner: Bucket) -> None:
        self.url = inner.url
        self._inner = inner

    @property
    def wrapped(self) -> Bucket:
        return self._inner

    def get(self, key: str) -> Object:
        return self._inner.get(key)

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        return self._inner.put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        self._inner.delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._inner.list(prefix, start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._inner.folders(prefix)

    def time(self) -> float:
        return self._inner.time()

    def close(self) -> None:
        self._inner.close()


class _Stored(msgspec.Struct, frozen=True):
    data: bytes
    version: Version
    updated: float


class MemoryBucket:
    """Versions are one counter for the whole bucket, so that none returns after a delete."""

    def __init__(self, clock: Callable[[], float] = time.time, url: str = "memory://") -> None:
        self.url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, _Stored] = {}
        self._keys: list[str] = []  # those of _objects, sorted: a listing costs what it lists
        self._puts = 0

    def get(self, key: str) -> Object:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
            now = self._clock()
        if found is None:
            raise NotFound(f"{self.url} holds no {key}.")
        return Object(found.data, found.version, found.updated, now)

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
            if (found.version if found else None) != if_version:
                raise Conflict(f"{key} in {self.url} is {'another version' if found else 'absent'}.")
            self._puts += 1
            stored = _Stored(bytes(data), str(self._puts), self._clock())
            self._objects[key] = stored
            if found is None:
                insort(self._keys, key)
            return stored.version

    def delete(self, *keys: str) -> None:
        for key in [check_key(key) for key in keys]:
            with self._lock:
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        check_prefix(prefix)
        entries = []
        with self._lock:
            first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
            for key in self._keys[first:]:
                if not key.startswith(prefix):
                    break
                stored = self._objects[key]
                entries.append(Entry(key, len(stored.data), stored.updated))
        return iter(entries)

    def folders(self, prefix: str) -> Iterator[str]:
        check_folder(prefix)
        below = (entry.key[len(prefix) :].partition("/") for entry in self.list(prefix))
        return iter(dict.fromkeys(name for name, slash, _ in below if slash))

    def time(self) -> float:
        return self._clock()

    def close(self) -> None:
        pass


def object_in_seconds(data: bytes, version: Version, updated: float, date: float) -> Object:
    """An object of a store that cuts its times to whole seconds.

    An age that is too high would make a live owner seem dead, so `now` is a second early: then the age is at most the
    true one, and at most two seconds less."""
    return Object(data, version, updated, max(updated, date - 1.0))


def http_date(header: str) -> float:
    """Seconds since 1970 of an HTTP date, which is always in GMT; ValueError or TypeError when it is none."""
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(header).replace(tzinfo=UTC).timestamp()


def request_options(variable: str, allowed: Mapping[str, str]) -> Mapping[str, str]:
    """The settings in an environment variable, `name=value&name=value`, by name; `allowed` has each with a pattern of
    its values. ConfigError."""
    from urllib.parse import parse_qsl

    text = os.environ.get(variable, "")
    if not text:
        return {}
    try:
        found = parse_qsl(text, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        found = []
    if not found or len(dict(found)) < len(found):
        raise ConfigError(f"{variable} is {text!r}, which cannot be read.", "Write it as name=value&name=value.")
    for name, value in found:
        if name not in allowed:
            raise ConfigError(f"{variable} sets {name!r}, which is unknown.", f"Known are: {', '.join(allowed)}.")
        if not re.fullmatch(allowed[name], value, re.ASCII):
            raise ConfigError(f"{variable} sets {name} to {value!r}, which cannot be.", f"It matches {allowed[name]}.")
    return dict(found)


def delete_each(delete: Callable[[str], None], names: Sequence[str]) -> None:
    """Delete each name once, several at a time."""
    from wal_agent.concurrency import prefetch_map

    for _ in prefetch_map(delete, dict.fromkeys(names), min(DELETERS, len(names))):
        pass


def too_large_error(what: str, most: int) -> Damaged:
    return Damaged(f"{what} is larger than {most >> 20} MiB; wal-agent writes no such object.")


def checked_entries(
    pages: Iterable[Iterable[Entry]], prefix: str, start_after: str, unordered: Callable[[], Exception]
) -> Iterator[Entry]:
    """The entries that were asked for, without what a stranger put there. Raises what `unordered` gives where the store
    does not list in the order of names: the end of a log could not be found there."""
    last = start_after

    def wanted(entry: Entry) -> bool:
        nonlocal last
        if not is_key(entry.key) or not entry.key.startswith(prefix) or entry.key <= start_after:
            return False
        if entry.key <= last:
            raise unordered()
        last = entry.key
        return True

    return _listed(pages, wanted)


def checked_folders(pages: Iterable[Iterable[str]], base: str, prefix: str) -> Iterator[str]:
    """The names of folders right below `prefix` (`base` in the store), each once: emulators repeat a folder on each
    page that has objects of it."""
    given = set[str]()

    def wanted(name: str) -> bool:
        below = name.removeprefix(base).removesuffix("/")
        if name != f"{base}{below}/" or "/" in below or not is_key(prefix + below) or below in given:
            return False
        given.add(below)
        return True

    return (name.removeprefix(base).removesuffix("/") for name in _listed(pages, wanted))


def _listed(pages: Iterable[Iterable[T]], wanted: Callable[[T], bool]) -> Iterator[T]:
    """What is wanted of each page. Pages without any of it may be many (names that were deleted, or are no keys), but
    not without end."""
    idle = 0
    for page in pages:
        idle += 1
        for one in page:
            if wanted(one):
                idle = 0
                yield one
        if idle >= MAX_IDLE_PAGES:
            raise Unavailable(f"The store's listing does not end: {idle} pages in a row had nothing new.")

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
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

Version = str

MAX_KEY = 512
MAX_PART = 200
_PART = rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{MAX_PART - 1}}}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")


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


@dataclass(frozen=True, slots=True)
class Object:
    """An object as read. `updated` and `now` are seconds since 1970, both by the *store's* own clock."""

    data: bytes
    version: Version
    updated: float
    now: float


@dataclass(frozen=True, slots=True)
class Entry:
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

"""What a bucket is: byte objects under string keys, put conditionally. Safety (I2, I3) rests on `put` alone.

The contract, which tests/contract/test_bucket.py runs against every implementation:

* Keys are relative posix paths of the characters A-Z a-z 0-9 . _ - with `/` between parts; no part is empty, `.` or `..`
  or begins with a dot. Anything else is a ValueError (a bug of the caller), before any I/O.
* `put` is atomic: a reader sees all of an object or nothing of it; of any number of writers that race for one condition at
  most one succeeds. When it returns, the object is durable. `Conflict` says that the condition did not hold *and* that
  what stands there now is durable.
* `Unavailable` decides nothing: the put may have landed, may land later, or never (a lost reply is not a failure).
* After a put returned, every get and list, by anyone, sees it.
* Implementations never retry on their own; decorators do, and never for a conditional put's outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

Version = str

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
MAX_KEY = 512


def check_key(key: str) -> str:
    """Give `key` back, or raise ValueError when it is not one (see the contract above)."""
    if len(key) > MAX_KEY or not _KEY.fullmatch(key):
        raise ValueError(f"not a bucket key: {key!r}")
    return key


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
    """Six methods; each raises Unavailable or Denied besides what it names."""

    url: str

    def get(self, key: str) -> Object:
        """The object; NotFound; Damaged when its bytes are not those that were put."""

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        """Create the object (`if_version` None: only if absent) or replace exactly that version; Conflict otherwise."""

    def delete(self, key: str) -> None:
        """Remove the object; absent is fine. Unconditional: nothing rests on conditional deletes."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Entries whose key begins with `prefix` and is > `start_after`, in ascending key order (code points)."""

    def time(self) -> float:
        """Now by the store's clock, seconds since 1970."""

    def close(self) -> None: ...

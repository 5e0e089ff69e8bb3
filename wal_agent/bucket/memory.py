"""A bucket in this process's memory: for tests and the seeded simulation, cheap and the same on every run."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wal_agent.bucket.base import Entry, Object, Version, check_folder, check_key, check_prefix
from wal_agent.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True)
class _Stored:
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

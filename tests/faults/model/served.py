"""A world's store on a real server: every byte, condition and version is the server's, every time is the world's."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from tests.faults.model.world import Clock
from wal_agent.bucket.base import Bucket, Entry, Object, Version
from wal_agent.errors import Unavailable


class ServedStore:
    """`bucket` with the ages of its objects in simulated time: a world lives through an hour in a second.

    What goes wrong in a world is rolled before a call comes here, so a server that fails by itself is no part of a
    history: RuntimeError.
    """

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.url = bucket.url
        self._bucket, self._clock = bucket, clock
        self._updated: dict[str, float] = {}

    def get(self, key: str) -> Object:
        try:
            found = self._bucket.get(key)
        except Unavailable as error:
            raise RuntimeError(f"get {key}") from error
        return replace(found, updated=self._updated[key], now=self._clock())

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        try:
            version = self._bucket.put(key, data, if_version=if_version)
        except Unavailable as error:
            raise RuntimeError(f"put {key}") from error
        self._updated[key] = self._clock()
        return version

    def delete(self, *keys: str) -> None:
        try:
            self._bucket.delete(*keys)
        except Unavailable as error:
            raise RuntimeError(f"delete {keys}") from error

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        try:
            found = [*self._bucket.list(prefix, start_after)]
        except Unavailable as error:
            raise RuntimeError(f"list {prefix}") from error
        return iter([replace(entry, updated=self._updated[entry.key]) for entry in found])

    def folders(self, prefix: str) -> Iterator[str]:
        return self._bucket.folders(prefix)

    def time(self) -> float:
        return self._clock()

    def close(self) -> None:
        self._bucket.close()

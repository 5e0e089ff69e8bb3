"""Counts what goes through a bucket: the numbers behind the claims on cost per tool call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from wal_agent.bucket.base import Bucket, Entry, Object, Version


@dataclass(frozen=True, slots=True)
class OpUsage:
    """Of one method: calls, payload bytes each way, and what was raised, by the name of its class."""

    requests: int = 0
    sent: int = 0
    received: int = 0
    errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Usage:
    """What a MeterBucket had counted at one moment; a failed put counts as sent."""

    get: OpUsage
    put: OpUsage
    delete: OpUsage
    list: OpUsage
    time: OpUsage

    @property
    def requests(self) -> int:
        return sum(op.requests for op in (self.get, self.put, self.delete, self.list, self.time))

    @property
    def sent(self) -> int:
        return self.put.sent


class MeterBucket:
    """A listing is one request, however many pages the store makes of it; its received bytes are those of its keys."""

    def __init__(self, inner: Bucket) -> None:
        self.url = inner.url
        self._inner = inner
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()

    def snapshot(self) -> Usage:
        with self._lock:
            return Usage(*(self._usage(op) for op in ("get", "put", "delete", "list", "time")))

    def get(self, key: str) -> Object:
        with self._counted("get"):
            found = self._inner.get(key)
            self._count("get", "received", len(found.data))
            return found

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        with self._counted("put"):
            self._count("put", "sent", len(data))
            return self._inner.put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        with self._counted("delete"):
            self._inner.delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        with self._counted("list"):
            entries = self._inner.list(prefix, start_after)
        return self._list(entries)

    def time(self) -> float:
        with self._counted("time"):
            return self._inner.time()

    def close(self) -> None:
        self._inner.close()

    def _list(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        with self._errors_counted("list"):
            for entry in entries:
                self._count("list", "received", len(entry.key))
                yield entry

    @contextmanager
    def _counted(self, op: str) -> Iterator[None]:
        self._count(op, "requests", 1)
        with self._errors_counted(op):
            yield

    @contextmanager
    def _errors_counted(self, op: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            with self._lock:
                self._errors[op, type(error).__name__] += 1
            raise

    def _count(self, op: str, what: str, by: int) -> None:
        with self._lock:
            self._counts[op, what] += by

    def _usage(self, op: str) -> OpUsage:
        errors = {name: count for (which, name), count in self._errors.items() if which == op}
        requests, sent, received = (self._counts[op, what] for what in ("requests", "sent", "received"))
        return OpUsage(requests, sent, received, MappingProxyType(errors))

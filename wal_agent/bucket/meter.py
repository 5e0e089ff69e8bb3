"""Counts what goes through a bucket: the numbers behind the claims on cost per tool call."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from wal_agent.bucket.base import Bucket, BucketDecorator, Entry, Object, Version
from wal_agent.errors import Unavailable

REMEMBERED = 1024  # unanswered requests of which it is known that a further one is a retry


@dataclass(frozen=True, slots=True)
class OpUsage:
    """Of one method: calls, payload bytes each way, and what was raised, by the name of its class. `answered`: calls
    that ended well, so `requests` less these and the errors are under way; `retries`: calls for what the last call for
    it got no answer on (Unavailable)."""

    requests: int = 0
    sent: int = 0
    received: int = 0
    errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    answered: int = 0
    retries: int = 0


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


class MeterBucket(BucketDecorator):
    """A listing is one request, however many pages the store makes of it; its received bytes are those of its keys."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._unanswered: OrderedDict[tuple[str, str], None] = OrderedDict()  # oldest first

    def snapshot(self) -> Usage:
        with self._lock:
            return Usage(*(self._usage(op) for op in ("get", "put", "delete", "list", "time")))

    def get(self, key: str) -> Object:
        with self._counted("get", key):
            found = self._inner.get(key)
            self._count("get", "received", len(found.data))
            return found

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        with self._counted("put", key):
            self._count("put", "sent", len(data))
            return self._inner.put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        with self._counted("delete", keys[0] if keys else ""):
            self._inner.delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self._begun("list", prefix)
        with self._errors_counted("list", prefix):
            entries = self._inner.list(prefix, start_after)
        return self._list(entries, prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """Counted as a listing."""
        self._begun("list", prefix)
        with self._errors_counted("list", prefix):
            names = self._inner.folders(prefix)
        return self._folders(names, prefix)

    def time(self) -> float:
        with self._counted("time", ""):
            return self._inner.time()

    def _list(self, entries: Iterator[Entry], prefix: str) -> Iterator[Entry]:
        with self._errors_counted("list", prefix):
            for entry in entries:
                self._count("list", "received", len(entry.key))
                yield entry
        self._count("list", "answered", 1)

    def _folders(self, names: Iterator[str], prefix: str) -> Iterator[str]:
        with self._errors_counted("list", prefix):
            for name in names:
                self._count("list", "received", len(name))
                yield name
        self._count("list", "answered", 1)

    @contextmanager
    def _counted(self, op: str, key: str) -> Iterator[None]:
        self._begun(op, key)
        with self._errors_counted(op, key):
            yield
        self._count(op, "answered", 1)

    def _begun(self, op: str, key: str) -> None:
        with self._lock:
            self._counts[op, "requests"] += 1
            if (op, key) in self._unanswered:
                del self._unanswered[op, key]
                self._counts[op, "retries"] += 1

    @contextmanager
    def _errors_counted(self, op: str, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            with self._lock:
                self._errors[op, type(error).__name__] += 1
                if isinstance(error, Unavailable):
                    self._unanswered[op, key] = None
                    if len(self._unanswered) > REMEMBERED:
                        self._unanswered.popitem(last=False)
            raise

    def _count(self, op: str, what: str, by: int) -> None:
        with self._lock:
            self._counts[op, what] += by

    def _usage(self, op: str) -> OpUsage:
        errors = {name: count for (which, name), count in self._errors.items() if which == op}
        requests, sent, received, answered, retries = (
            self._counts[op, what] for what in ("requests", "sent", "received", "answered", "retries")
        )
        return OpUsage(requests, sent, received, MappingProxyType(errors), answered, retries)

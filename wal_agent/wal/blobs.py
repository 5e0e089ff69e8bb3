"""Bulk bytes under their hash: durable before a record names them, verified when read back (I3, I4).

A name also says which run created it, and in which of its rounds (one between two runs of its retention), so that a
blob which somebody decided to delete is never created, found there and named again: a delete may arrive late.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Collection, Iterable

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.retry import RetryBucket, RetryBudget
from wal_agent.clock import Clock
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Conflict, Damaged, NotFound, Unavailable
from wal_agent.failpoints import failpoint
from wal_agent.records import Payload
from wal_agent.wal.keys import Keys, blob_epoch, blob_name, blob_sha256

INLINE = 64 << 10  # bytes; more becomes a blob


class Names:
    """The names that one run gives to blobs. Each is pinned when it is given: a record is about to name it."""

    def __init__(self, epoch: int, clock: Clock) -> None:
        self.epoch = epoch
        self._clock = clock
        self._round = 0
        self._pins: dict[str, float] = {}
        self._lock = threading.Lock()

    def give(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        with self._lock:
            name = blob_name(sha256, self.epoch, self._round)
            self._pins[name] = self._clock.boot()
        return name

    def next_round(self) -> None:
        """No name of the rounds before is given again; their pins can only go from now on."""
        with self._lock:
            self._round += 1

    def may_go(self, name: str) -> bool:
        """Whether `name` is one of a round that is over, and not pinned."""
        with self._lock:
            current = name == blob_name(blob_sha256(name), self.epoch, self._round)
            return blob_epoch(name) == self.epoch and not current and name not in self._pins

    def unpin(self, named: Collection[str], age: float) -> None:
        """Let go what was last given more than `age` seconds ago and is named now. What never comes to be named stays
        pinned: its record may still be on the way, however long that takes."""
        with self._lock:
            edge = self._clock.boot() - age
            for name in [name for name, at in self._pins.items() if at < edge and name in named]:
                del self._pins[name]


class Blobs:
    """A job's blobs. Threads may share it."""

    def __init__(
        self,
        bucket: Bucket,
        keys: Keys,
        clock: Clock,
        rng: random.Random,
        *,
        epoch: int = 0,
        budget: float = 20.0,
        parallel: int = 4,
    ) -> None:
        """`epoch`: of the run that puts; 0 can only read."""
        self._bucket, self._keys, self._clock, self._rng = bucket, keys, clock, rng
        self._budget, self.parallel = budget, parallel
        self._steady = RetryBucket(bucket, clock, rng, deadline=budget)
        self.names = Names(epoch, clock)

    def put(self, data: bytes, budget: float | None = None) -> str:
        """Store `data`; its name once it is durable. Unavailable after the budget (seconds in which it is tried again;
        the last request may outlast it); Denied."""
        name = self.names.give(data)
        patience = RetryBudget(self._clock, self._rng, self._budget if budget is None else budget)
        while True:
            try:
                self._bucket.put(self._keys.blob(name), data)
            except Conflict:
                break  # put by this run in this round: the same bytes, and durable
            except Unavailable as error:
                patience.pause(error)  # the content is in the name: sending again can do no harm
            else:
                break
        failpoint("blob.after_put")
        return name

    def put_payload(self, data: bytes, budget: float | None = None) -> Payload:
        """`data` as a record carries it: inline up to INLINE bytes, else a blob that is durable already."""
        if len(data) <= INLINE:
            return Payload(size=len(data), data=data)
        return Payload(size=len(data), blob=self.put(data, budget))

    def put_each(self, datas: Iterable[bytes]) -> list[str]:
        """`put` of each, several at a time; the names in order. Holds only as many of `datas` as are on their way."""
        return [*prefetch_map(self.put, datas, self.parallel)]

    def get(self, name: str) -> bytes:
        """The blob's bytes; Damaged when it is missing or is not what its name says; Unavailable after the budget."""
        try:
            data = self._steady.get(self._keys.blob(name)).data
        except (NotFound, ValueError) as error:
            raise Damaged(f"Blob {name[:64]} of job {self._keys.job} is missing.") from error
        if hashlib.sha256(data).hexdigest() != blob_sha256(name):
            raise Damaged(f"Blob {name} of job {self._keys.job} is damaged: its bytes have another hash.")
        return data

    def fetch(self, payload: Payload) -> bytes:
        """The payload's bytes; Damaged when it holds none, or others than it says."""
        if (payload.data is None) == (payload.blob is None):
            raise Damaged(f"A payload of job {self._keys.job} is damaged: it has not exactly one of data and blob.")
        data = payload.data if payload.blob is None else self.get(payload.blob)
        if data is None or len(data) != payload.size:
            raise Damaged(f"A payload of job {self._keys.job} is damaged: it has not the {payload.size} bytes it says.")
        return data

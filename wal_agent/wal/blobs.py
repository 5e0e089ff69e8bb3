"""Bulk bytes under their hash: durable before a record names them, verified when read back (I3, I4)."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterable

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.errors import Conflict, Damaged, NotFound, Unavailable
from wal_agent.failpoints import failpoint
from wal_agent.records import Payload
from wal_agent.wal.ahead import ahead
from wal_agent.wal.keys import Keys
from wal_agent.wal.patience import Patience

INLINE = 64 << 10  # bytes; more becomes a blob
PIN = 7 * 86_400.0  # seconds that a name used here is safe from this process's own retention


class Blobs:
    """A job's blobs. Threads may share it."""

    def __init__(
        self, bucket: Bucket, keys: Keys, clock: Clock, rng: random.Random, *, budget: float = 20.0, parallel: int = 4
    ) -> None:
        self._bucket, self._keys, self._clock, self._rng = bucket, keys, clock, rng
        self._budget, self.parallel = budget, parallel
        self._pins: dict[str, float] = {}
        self._lock = threading.Lock()

    def put(self, data: bytes) -> str:
        """Store `data`; its name (sha256 hex) once it is durable. Unavailable after the budget; Denied."""
        name = hashlib.sha256(data).hexdigest()
        self.pin(name)
        patience = Patience(self._clock, self._rng, self._budget)
        while True:
            try:
                self._bucket.put(self._keys.blob(name), data)
            except Conflict:
                break  # the same bytes are there already, and durable
            except Unavailable as error:
                patience.pause(error)  # the content is in the name: sending again can do no harm
            else:
                break
        failpoint("blob.after_put")
        return name

    def put_payload(self, data: bytes) -> Payload:
        """`data` as a record carries it: inline up to INLINE bytes, else a blob that is durable already."""
        if len(data) <= INLINE:
            return Payload(size=len(data), data=data)
        return Payload(size=len(data), blob=self.put(data))

    def put_each(self, datas: Iterable[bytes]) -> list[str]:
        """`put` of each, several at a time; the names in order. Holds only as many of `datas` as are on their way."""
        return [*ahead(self.put, datas, self.parallel)]

    def get(self, name: str) -> bytes:
        """The blob's bytes; Damaged when it is missing or is not what its name says."""
        try:
            data = self._bucket.get(self._keys.blob(name)).data
        except (NotFound, ValueError) as error:
            raise Damaged(f"Blob {name[:64]} of job {self._keys.job} is missing.") from error
        if hashlib.sha256(data).hexdigest() != name:
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

    def pin(self, name: str) -> None:
        """Keep this process's retention off `name`: it may be old and unnamed now, and about to be named again."""
        with self._lock:
            self._pins[name] = self._clock.boot()

    def pinned(self, name: str) -> bool:
        with self._lock:
            return name in self._pins

    def forget_old_pins(self) -> None:
        """Drop pins older than PIN: by now a record names the blob, or nothing ever will."""
        with self._lock:
            edge = self._clock.boot() - PIN
            for name in [name for name, at in self._pins.items() if at < edge]:
                del self._pins[name]

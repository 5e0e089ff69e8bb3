"""Hear the heartbeats of runs on a NATS server, and name the jobs whose beats stopped without a last word.

Who is silent is suspect and no more: a lost connection looks the same, and only the lease decides who owns a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from wal_agent import msgspec_compat
from wal_agent.messages.connection import Setup
from wal_agent.messages.status import EVERY, LIVE

SILENT: Final = 3 * EVERY  # seconds without a beat
MOST: Final = 10_000  # jobs that are remembered; those on a server are foreign
MAX_BYTES: Final = 16 << 10


class Link(Protocol):
    """What of a connection is used here."""

    @property
    def connected(self) -> bool: ...

    def serve(self, setup: Setup) -> None: ...


class Beat(msgspec.Struct, frozen=True):
    """What of a heartbeat or a status counts here."""

    job: str
    epoch: int
    state: str


_BEAT = msgspec_compat.of_json(Beat)


class Beats:
    """The newest beat of each run, by `now` (seconds that only go forward)."""

    def __init__(self, link: Link, now: Callable[[], float]) -> None:
        self._link, self._now = link, now
        self._lock = threading.Lock()
        self._last: dict[tuple[str, int], float] = {}
        link.serve(self._subscribe)

    def silent(self) -> set[tuple[str, int]]:
        """Job and epoch of each run that had a heartbeat and has none any more; none while the server is away."""
        if not self._link.connected:
            return set()
        with self._lock:
            return {run for run, at in self._last.items() if self._now() - at >= SILENT}

    def heard(self, data: bytes) -> None:
        """Take a heartbeat or a status; anything else is passed over."""
        try:
            beat = _BEAT.decode(data) if len(data) <= MAX_BYTES else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            beat = None
        if beat is None:
            return
        run = beat.job, beat.epoch
        with self._lock:
            if beat.state not in LIVE:
                self._last.pop(run, None)
            elif run in self._last or len(self._last) < MOST:
                self._last[run] = self._now()

    async def _subscribe(self, client: Client) -> None:
        with self._lock:
            self._last.clear()  # what was sent meanwhile is not known

        async def came(message: Msg) -> None:
            self.heard(message.data)

        for subject in ("agent.*.heartbeat", "agent.*.status"):
            await client.subscribe(subject, cb=came)

"""Collects changed bytes into edits of bounded size, and hands them on as late as memory allows."""

from __future__ import annotations

from collections.abc import Callable

from wal_agent.records import Edit, Payload

PutPayload = Callable[[bytes], Payload]

PIECE = 4 * 1024 * 1024  # most bytes of one edit, and most bytes held in memory
MAX_EDITS = 128  # scattered edits of one delta; keeps its record far below a segment's size


class Edits:
    """Edits in ascending order of their offset.

    Up to PIECE bytes wait until `done`, so that a read that turns out to be torn has mostly stored nothing.
    """

    def __init__(self, put: PutPayload) -> None:
        self._put = put
        self._stored: list[Edit] = []
        self._waiting: list[tuple[int, bytearray]] = []
        self._held = 0

    @property
    def scattered(self) -> bool:
        """Whether there are so many edits that what follows had better be sent in one run."""
        return len(self._stored) + len(self._waiting) >= MAX_EDITS

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """The bytes at `offset`, which is not below the end of what was added before, are `data` now."""
        while data:
            run = self._waiting[-1] if self._waiting else None
            if run is None or run[0] + len(run[1]) != offset:
                run = (offset, bytearray())
                self._waiting.append(run)
            part = data[: PIECE - self._held]
            run[1].extend(part)
            self._held += len(part)
            offset, data = offset + len(part), data[len(part) :]
            if self._held == PIECE:
                self._flush()

    def done(self) -> tuple[Edit, ...]:
        self._flush()
        return tuple(self._stored)

    def _flush(self) -> None:
        for offset, data in self._waiting:
            self._stored.append(Edit(offset=offset, data=self._put(bytes(data))))
        self._waiting, self._held = [], 0

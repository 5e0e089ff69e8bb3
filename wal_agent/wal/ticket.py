"""What an append gives its caller: word of whether the record is acknowledged yet."""

from __future__ import annotations

import threading
from typing import Literal

from wal_agent.errors import WalAgentError

Word = Literal["acked", "spooled", "undecided"]
"""`spooled`: durable on this machine only, while the bucket is away (R9)."""


class Ticket:
    """Of one append. `seq` is the segment that holds it, once acknowledged; 0 before."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: WalAgentError | None = None
        self._spooled = False
        self.seq = 0

    @property
    def word(self) -> Word:
        """As of now; raises Fenced or Damaged when it will never be acknowledged."""
        if self._error is not None:
            raise self._error
        if self.seq:
            return "acked"
        return "spooled" if self._spooled else "undecided"

    def wait(self, timeout: float) -> Word:
        """`word` once it is acked or spooled, or after `timeout` seconds. "undecided" is no failure: the record stays
        in the queue and may still be acknowledged (R3); the caller ends its call as denied."""
        self._event.wait(timeout)
        return self.word

    def ack(self, seq: int) -> None:
        self.seq = seq
        self._event.set()

    def spool(self) -> None:
        self._spooled = True
        self._event.set()

    def fail(self, error: WalAgentError) -> None:
        self._error = error
        self._event.set()

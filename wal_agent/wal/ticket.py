"""What an append gives its caller: word of whether the record is acknowledged yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from wal_agent.errors import WalAgentError

AckStatus = Literal["acked", "spooled", "undecided"]
"""`spooled`: durable on this machine only, while the bucket is away (R9)."""

_deciding = threading.Lock()  # one for all tickets: it is held for two assignments


class Ticket:
    """Of one append. `seq` is the segment that holds it, once acknowledged; 0 before."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: WalAgentError | None = None
        self._spooled = False
        self._then: Callable[[], None] | None = None
        self.seq = 0

    @property
    def word(self) -> AckStatus:
        """As of now; raises Fenced or Damaged when it will never be acknowledged."""
        if self._error is not None:
            raise self._error
        if self.seq:
            return "acked"
        return "spooled" if self._spooled else "undecided"

    def wait(self, timeout: float) -> AckStatus:
        """`word` once it is acked or spooled, or after `timeout` seconds. "undecided" is no failure: the record stays
        in the queue and may still be acknowledged (R3); the caller ends its call as denied."""
        self._event.wait(timeout)
        return self.word

    def then(self, act: Callable[[], None]) -> None:
        """Do `act` once it is acknowledged, in the thread that commits; at once where it is. It must be quick, and must
        not fail."""
        with _deciding:
            if not self.seq:
                self._then = act
                return
        act()

    def ack(self, seq: int) -> None:
        with _deciding:
            self.seq = seq
            then, self._then = self._then, None
        self._event.set()
        if then is not None:
            then()

    def spool(self) -> None:
        self._spooled = True
        self._event.set()

    def fail(self, error: WalAgentError) -> None:
        self._error = error
        self._event.set()

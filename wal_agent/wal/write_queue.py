"""What moves through the writer, as data: queued appends, their tickets, and encoded segments without an ack yet.

The rules of R3 and R9 for them are pure functions at the end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from wal_agent.errors import WalAgentError
from wal_agent.wal.state import State

AckStatus = Literal["acked", "spooled", "undecided"]
"""`spooled`: durable on this machine only, while the bucket is away (R9)."""

_deciding = threading.Lock()  # one for all tickets: it is held for two assignments


class Ticket:
    """Of one append. `seq` is the segment that holds it, once acknowledged; 0 before."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: WalAgentError | None = None
        self._spooled = False
        self._when_acked: Callable[[], None] | None = None
        self.seq = 0

    @property
    def status(self) -> AckStatus:
        """As of now; raises Fenced or Damaged when it will never be acknowledged."""
        if self._error is not None:
            raise self._error
        if self.seq:
            return "acked"
        return "spooled" if self._spooled else "undecided"

    def wait(self, timeout: float) -> AckStatus:
        """`status` once it is acked or spooled, or after `timeout` seconds. "undecided" is no failure: the record stays
        in the queue and may still be acknowledged (R3); the caller ends its call as denied."""
        self._event.wait(timeout)
        return self.status

    def when_acked(self, act: Callable[[], None]) -> None:
        """Do `act` once it is acknowledged, in the thread that commits; at once where it is. It must be quick, and must
        not fail."""
        with _deciding:
            if not self.seq:
                self._when_acked = act
                return
        act()

    def ack(self, seq: int) -> None:
        with _deciding:
            self.seq = seq
            act, self._when_acked = self._when_acked, None
        self._event.set()
        if act is not None:
            act()

    def spool(self) -> None:
        self._spooled = True
        self._event.set()

    def fail(self, error: WalAgentError) -> None:
        self._error = error
        self._event.set()


class Sealed(WalAgentError):
    """Appending to a writer that was sealed (R6)."""


@dataclass(frozen=True, slots=True)
class Acked:
    """The log as acknowledged to this writer, and only that: what a snapshot may cover (R5)."""

    seq: int
    hash: bytes
    state: State
    segments: int  # since the snapshot that replay began from
    size: int  # their bytes
    time: float  # of segment `seq`


@dataclass(frozen=True, slots=True)
class QueuedAppend:
    """One append on its way: all of its records go into one segment."""

    raw: tuple[bytes, ...]  # the MessagePack of each record
    ticket: Ticket
    since: float  # boot time
    defer: bool = False  # not worth a put of its own

    @property
    def size(self) -> int:
        return sum(len(r) for r in self.raw)


@dataclass(frozen=True, slots=True)
class InFlight:
    """An encoded segment (R3): its number and its bytes never change. They are all that is kept of its records (I9)."""

    seq: int
    data: bytes
    tickets: tuple[Ticket, ...]  # one for each append in it
    since: float  # boot time of the oldest append
    size: int  # bytes of the records before they were packed
    records: int
    time: float
    carried: int = 0  # the epoch that its records are of, where that is an earlier one


@dataclass(slots=True)
class UnackedSegments:
    """The segments that are encoded and not acknowledged, oldest first. Only the first is ever put; there are others
    only while the run spools (R9). The first `stored` of them are in the spool."""

    segments: deque[InFlight] = field(default_factory=deque)
    stored: int = 0

    @property
    def first(self) -> InFlight | None:
        return self.segments[0] if self.segments else None

    @property
    def last(self) -> InFlight | None:
        return self.segments[-1] if self.segments else None

    @property
    def unstored(self) -> InFlight | None:
        """The oldest one that is not in the spool."""
        return self.segments[self.stored] if self.stored < len(self.segments) else None

    @property
    def tickets(self) -> list[Ticket]:
        return [ticket for segment in self.segments for ticket in segment.tickets]

    @property
    def unspooled(self) -> int:
        """How many records are in none of the stored segments."""
        return sum(segment.records for segment in islice(self.segments, self.stored, None))

    def leave(self) -> bool:
        """The first one is acknowledged; whether it is in the spool."""
        self.segments.popleft()
        self.stored -= 1 if (was := self.stored > 0) else 0
        return was

    def store(self, segment: InFlight) -> bool:
        """`segment`, the oldest unstored one, is in the spool now. False: it has left the line meanwhile."""
        still = self.unstored is segment
        self.stored += still
        return still

    def clear(self) -> None:
        self.segments.clear()
        self.stored = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is appended but not acknowledged: bytes, appends, and the age of the oldest in seconds."""

    size: int
    items: int
    age: float


# --- pure rules


def put_is_due(queue: Sequence[QueuedAppend], now: float, latest: float) -> bool:
    """Whether a put is due: for anything but records that can wait, or for those when they have waited `latest` s."""
    return any(not item.defer for item in queue) or (bool(queue) and now - queue[0].since >= latest)


def must_spool(line: UnackedSegments, queue: Sequence[QueuedAppend], now: float, after: float) -> bool:
    """R9: whether what waits goes into the spool: at once while something is there already, so that the order stays;
    else when the outage has lasted, by what the oldest append has waited."""
    if line.stored:
        return True
    oldest = line.first or next((item for item in queue if not item.defer), None)
    return oldest is not None and now - oldest.since >= after


def resolve_conflict(found: bytes, found_epoch: int, found_run: str, sent: InFlight, epoch: int, run: str) -> str:
    """R3: what stands at my seq is "mine" (byte for byte), of a higher epoch ("fenced"), or "damage"."""
    if found == sent.data:
        return "mine"
    return "fenced" if found_epoch > epoch else "damage"

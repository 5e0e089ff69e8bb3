"""What moves through the writer, as data, and what R3 says of an undecided put, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from wal_agent.errors import WalAgentError
from wal_agent.records import AnyRecord
from wal_agent.wal.state import State
from wal_agent.wal.ticket import Ticket


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
class Item:
    """One append on its way: all of its records go into one segment."""

    records: tuple[AnyRecord, ...]
    raw: tuple[bytes, ...]
    ticket: Ticket
    since: float  # boot time

    @property
    def size(self) -> int:
        return sum(len(r) for r in self.raw)


@dataclass(frozen=True, slots=True)
class InFlight:
    """The one undecided segment (R3): its number and its bytes never change."""

    seq: int
    data: bytes
    items: tuple[Item, ...]
    time: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is appended but not acknowledged: bytes, appends, and the age of the oldest in seconds."""

    size: int
    items: int
    age: float


# --- pure rules


def judge(found: bytes, found_epoch: int, found_run: str, sent: InFlight, epoch: int, run: str) -> str:
    """R3: what stands at my seq is "mine" (byte for byte), of a higher epoch ("fenced"), or "damage"."""
    if found == sent.data:
        return "mine"
    return "fenced" if found_epoch > epoch else "damage"


def keep_undecided(sent: InFlight) -> InFlight | None:
    """R3: what stays in flight after an undecided put: the same bytes for the same seq."""
    return sent

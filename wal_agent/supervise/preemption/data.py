"""What a cloud says of this machine's end, and where it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Cloud = Literal["gcp", "aws"]

MARGIN = 5.0  # seconds of a notice that are left to the machine's own shutdown
LEAST = 2.0  # seconds; a notice that comes too late is tried all the same


@dataclass(frozen=True, slots=True)
class Notice:
    """`source` as in happened.NoticeReceived. `left`: seconds until the machine goes, 0 where that is not said.
    `drain`: it goes for certain; else what there is is saved now, and the work goes on."""

    source: Literal["gcp", "aws", "aws-rebalance"]
    left: float
    drain: bool


@dataclass(frozen=True, slots=True)
class Server:
    """A metadata server: plain HTTP, on the machine's own link."""

    host: str
    port: int = 80


class MetadataError(Exception):
    """The metadata server did not answer as it should; it is asked again later."""


class NoticeSource(Protocol):
    """One cloud's notices. `look` and `close` may be in two threads."""

    period: float
    """Seconds from one look to the next, at least."""

    def look(self) -> Notice | None:
        """Ask once; may wait for a change for about a minute. Each notice is given once. Trouble."""

    def close(self) -> None:
        """End a look that waits; it may raise Trouble then."""


def drain_budget(left: float, drain: float) -> float:
    """Seconds for a drain, which may take `drain`, on a machine that goes in `left` seconds."""
    return max(LEAST, min(drain, left - MARGIN))

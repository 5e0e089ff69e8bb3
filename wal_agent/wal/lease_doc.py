"""What lease.json says, its bytes, and the rules of timing as pure functions (R1, R6, R7, R10)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.base import Version
from wal_agent.errors import Damaged, Newer
from wal_agent.records import FORMAT, Host
from wal_agent.text import shorten
from wal_agent.wal.keys import MAX_SEQ

LeaseState = Literal["held", "closed", "released", "unlocked"]

MAX_BYTES = 64 << 10
MAX_TTL = 86_400.0
DUE_NOW = 0.001  # seconds: a pause that was over when it was written, so the job is due; no pause would not say so


class LeaseDoc(msgspec.Struct, frozen=True, kw_only=True):
    """What lease.json says. Unknown fields are ignored: safety rests on the log, and a fleet may mix versions."""

    format: Literal[1]
    job: str
    epoch: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
    run: str
    nonce: str
    state: LeaseState
    host: Host
    agent: str
    workspace: str
    started: float  # when this epoch was acquired; like `time` by the owner's clock, for people
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL)]  # seconds
    beat: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] = 0  # number of the renewal
    phase: str = ""
    since: float = 0.0  # when the phase began; like `time` by the owner's clock
    tool: str = ""
    seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] = 0  # an acknowledged record: the log ends there or behind it
    end: str = ""  # settled: sha256 (hex) of record `seq`, the last one of the owner
    reason: str = ""  # why it was settled or unlocked
    until: float = 0.0  # settled, and paused so long (like `time` by the writer's clock): nobody starts it earlier
    time: float = 0.0  # of this write
    off: bool = False  # unlocked, and a person said that the old host is off: nobody need wait
    spool: str = ""  # folder, on the owner's host, that may hold records which are not in the bucket yet (R9)
    key: str = ""  # id of the key that the job's objects are encrypted with; never the key


class _Head(msgspec.Struct, frozen=True):
    format: int


_DOC = msgspec_compat.of_json(LeaseDoc)
_HEAD = msgspec_compat.of_json(_Head)


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as read. `updated` and `now` are by the store's clock."""

    doc: LeaseDoc
    version: Version
    updated: float
    now: float


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a run that acquires the lease writes into it."""

    run: str
    host: Host
    agent: str
    workspace: str
    ttl: float
    spool: str = ""
    key: str = ""


# --- pure rules


def timing_holds(ttl: float, deadline: float, period: float) -> bool:
    """Whether a renewal every `period` s that gives up after `deadline` s is done before `ttl` s have passed."""
    return ttl > deadline > 1.2 * period > 0


def may_allow(now: float, sent: float, ttl: float, margin: float) -> bool:
    """R7: whether an allow may still be sent at `now`, when the last renewal that succeeded was *sent* at `sent` (both
    boot time of this host, so that suspended time counts)."""
    return 0 <= now - sent < ttl - margin


def is_mine(doc: LeaseDoc, run: str, epoch: int) -> bool:
    """R10: same run and epoch, whatever the nonce: an own write that was thought lost may have landed late."""
    return doc.run == run and doc.epoch == epoch


def next_epoch(lease_epoch: int, log_epoch: int) -> int:
    """R1: above everything ever seen, also when the lease was deleted by hand or by a lifecycle rule."""
    return max(lease_epoch, log_epoch) + 1


def final_lease_state(wanted: Literal["closed", "released"], open_calls: int) -> Literal["closed", "released"]:
    """R6: `closed` is written only if no intent is open."""
    return "released" if open_calls else wanted


# --- bytes

_TTL = re.compile(rb'"ttl"\s*:\s*([0-9]{1,6}(?:\.[0-9]{1,20})?)\s*[,}]')


def find_ttl(damaged: bytes) -> float | None:
    """What bytes that are no lease still say of the longest time that their owner may go on; None: nothing."""
    found = [float(number) for number in _TTL.findall(damaged[:MAX_BYTES])]
    return max((ttl for ttl in found if 0 < ttl <= MAX_TTL), default=None)


def find_format(data: bytes) -> int:
    """The number of the format of a JSON object; 0 where it has none."""
    try:
        return _HEAD.decode(data).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0


def encode_lease(doc: LeaseDoc) -> bytes:
    return msgspec.json.format(msgspec.json.encode(doc), indent=1)


def decode_lease(data: bytes, job: str) -> LeaseDoc:
    """The lease in `data`; Damaged for anything that is not one of this job; Newer."""
    if len(data) > MAX_BYTES:
        raise Damaged(f"The lease of job {job} is damaged: {len(data)} bytes.")
    if (found := find_format(data)) > FORMAT:
        raise Newer.of(f"The lease of job {job}", f"format {found}")
    try:
        doc = _DOC.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"The lease of job {job} is damaged: {shorten(str(error))}.") from error
    if not 0 <= doc.host.pid <= MAX_SEQ or not all(map(math.isfinite, (doc.started, doc.time, doc.since, doc.until))):
        raise Damaged(f"The lease of job {job} is damaged: a number in it is none that can be written.")
    if doc.job != job:
        raise Damaged(f"The lease of job {job} is damaged: it names job {shorten(repr(doc.job))}.")
    return doc

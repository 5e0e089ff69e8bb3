"""Count what crashes cost, from the logs alone: how long recoveries took, what was lost, what was done again.

Pure, but for `read_job`. A log is counted as far as it is kept: what `gc` has deleted is not in the numbers, which
`since` says.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.errors import Damaged
from wal_agent.records import AnyRecord, End, FileDelta, Intent, Opening, Recovery, RunEnded
from wal_agent.recovery.lease_policy import CRASH_CLASSES
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import iter_readable

MACHINE = "machine lost"  # nothing says how the run ended: the machine, or wal-agent itself, is gone
MOST_SHAPES = 10_000  # calls in flight that are watched for being repeated


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a measured quantity, by the nearest rank; zeros where nothing was measured."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What `wal-agent stats` prints. Times in seconds.

    `recovery`: of each part of a recovery (`tree`, `session`, `all`). `lost_seconds`, `lost_calls`: for each crash,
    from the newest capture of the session that was acknowledged to the last record, and the calls that began in
    between. `put_back`: calls whose results came back into a conversation. `repeated`: calls that are the same as
    one that a recovery had found in flight, made in a later run."""

    jobs: int
    runs: int
    calls: int
    crashes: dict[str, int]
    recoveries: int
    recovery: dict[str, Spread]
    lost_seconds: Spread
    lost_calls: Spread
    put_back: int
    verdicts: dict[str, int]
    repeated: int
    since: float = 0.0
    unreadable: tuple[str, ...] = ()


@dataclass(slots=True)
class Count:
    """Counts one log; `add` its records in order."""

    runs: int = 0
    calls: int = 0
    recoveries: int = 0
    put_back: int = 0
    repeated: int = 0
    since: float = 0.0
    crashes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    lost_seconds: list[float] = field(default_factory=list)
    lost_calls: list[float] = field(default_factory=list)
    _last: float = 0.0  # time of the newest record but openings
    _saved: float = 0.0  # time of the newest capture of the session, in this run
    _behind: int = 0  # calls since
    _ended: RunEnded | None = None
    _open: dict[int, str] = field(default_factory=dict)  # shape of each call in flight
    _asked: set[str] = field(default_factory=set)  # shapes of calls that a recovery found in flight

    def add(self, record: AnyRecord) -> None:
        self.since = self.since or record.time
        match record:
            case Opening():
                self._opening(record)
                return
            case Intent():
                self.calls += 1
                self._behind += 1
                shape = _shape(record)
                if shape in self._asked:
                    self.repeated += 1
                    self._asked.discard(shape)
                if len(self._open) < MOST_SHAPES:
                    self._open[record.call] = shape
            case End():
                self._open.pop(record.call, None)
            case FileDelta():
                self._saved, self._behind = record.time, 0
            case Recovery():
                self._recovery(record)
            case RunEnded():
                self._ended = record
            case _:
                pass
        self._last = max(self._last, record.time)

    def _opening(self, record: Opening) -> None:
        self.runs += 1
        ended = self._ended
        died = ended is not None and ended.cls in CRASH_CLASSES
        if record.cause == "dead" or died:
            self.crashes[ended.cls if ended is not None and ended.cls else MACHINE] += 1
            self.lost_seconds.append(max(0.0, self._last - self._saved) if self._saved else 0.0)
            self.lost_calls.append(self._behind)
        self._ended, self._saved, self._behind = None, 0.0, 0

    def _recovery(self, record: Recovery) -> None:
        self.recoveries += 1
        self.put_back += max(0, record.put_back)
        for part, seconds in list(record.seconds.items())[:16]:
            self.seconds.setdefault(part[:40], []).append(max(0.0, seconds))
        for verdict in record.verdicts:
            self.verdicts[verdict.finding] += 1
            if (shape := self._open.get(verdict.call)) is not None:
                self._asked.add(shape)


def _shape(intent: Intent) -> str:
    """What two calls have in common that do the same."""
    data = intent.input.data if intent.input.data is not None else (intent.input.blob or "").partition("-")[0].encode()
    return hashlib.sha256(intent.tool.encode("utf-8", "replace") + b"\0" + data).hexdigest()


def spread(values: Sequence[float]) -> Spread:
    """The percentiles of `values`."""
    if not values:
        return Spread()
    ranked = sorted(values)

    def at(share: float) -> float:
        return round(ranked[max(0, ceil(share * len(ranked)) - 1)], 3)

    return Spread(len(ranked), at(0.5), at(0.95), at(0.99), round(ranked[-1], 3))


def summarize(counts: Iterable[Count], unreadable: Sequence[str] = ()) -> Stats:
    """All logs together."""
    every = list(counts)
    seconds: dict[str, list[float]] = {}
    crashes: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    for one in every:
        crashes += one.crashes
        verdicts += one.verdicts
        for part, values in one.seconds.items():
            seconds.setdefault(part, []).extend(values)
    begun = [one.since for one in every if one.since]
    return Stats(
        jobs=len(every),
        runs=sum(one.runs for one in every),
        calls=sum(one.calls for one in every),
        crashes=dict(crashes.most_common()),
        recoveries=sum(one.recoveries for one in every),
        recovery={part: spread(values) for part, values in sorted(seconds.items())},
        lost_seconds=spread([value for one in every for value in one.lost_seconds]),
        lost_calls=spread([value for one in every for value in one.lost_calls]),
        put_back=sum(one.put_back for one in every),
        verdicts=dict(verdicts.most_common()),
        repeated=sum(one.repeated for one in every),
        since=min(begun, default=0.0),
        unreadable=tuple(unreadable),
    )


def read_job(bucket: Bucket, keys: Keys) -> Count:
    """Count one job's log; what cannot be read of it is passed over (`wal-agent log` names it). BucketError."""
    found = Count()
    for _, segment in iter_readable(bucket, keys):
        if not isinstance(segment, Damaged):
            for record in segment.records:
                found.add(record)
    return found

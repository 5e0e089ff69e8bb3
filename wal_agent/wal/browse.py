"""The log for people, read from its end: what is near the end costs the same however long the log is.

Each segment that is read is checked against the one before it, and each number that is not there and should be is
named; what was not read is not checked, which `Page.since` and `Page.passed` say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wal_agent.bucket.base import Bucket
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Damaged
from wal_agent.records import AnyRecord, Opening, Recovery, RunEnded
from wal_agent.wal import lease as leases
from wal_agent.wal import reader
from wal_agent.wal.codec import Segment, Snapshot
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Fetched, KnownEnd
from wal_agent.wal.state import State

PARALLEL = 8  # snapshots that are read at a time


def is_crash_record(record: AnyRecord) -> bool:
    """Starts, ends and recoveries: State counts or keeps each, so two snapshots say whether any lies between them."""
    return isinstance(record, Opening | Recovery | RunEnded)


@dataclass(slots=True)
class Page:
    """A part of the log. `segments`: those that were read, oldest first. `damaged`: sentences on what cannot be read or
    is missing. `since`: from this record on all was read and checked, but for `passed` records, in which there is none
    of what was asked for, by the snapshots around them. `whole`: nothing is kept before `since`. `last`: the newest."""

    segments: list[tuple[int, Segment]] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)
    since: int = 1
    passed: int = 0
    whole: bool = True
    last: int = 0


@dataclass(frozen=True, slots=True)
class _Range:
    """The records behind `low`, up to `high`. `seqs`: those that are there; None: they need not be read."""

    low: int
    high: int
    seqs: list[int] | None


def read_newest(bucket: Bucket, keys: Keys, count: int, only_crashes: bool = False) -> Page:
    """At least the newest `count` records (0: all that are kept), or as many starts, ends and recoveries, and what is
    in the same segments. Unavailable, Denied."""
    pages = _PageReader(bucket, keys)
    ranges = pages.by_snapshots() if only_crashes else pages.backwards(count)
    return pages.page(ranges, is_crash_record if only_crashes else lambda _: True, count)


class _PageReader:
    def __init__(self, bucket: Bucket, keys: Keys) -> None:
        self._bucket, self._keys = bucket, keys
        try:
            seen = leases.read_lease(bucket, keys)
        except Damaged:
            seen = None  # the log can be read without it
        self._reached = KnownEnd.by(seen)
        self._stored = sorted(s for e in bucket.list(keys.snapshots) if (s := keys.seq_of(e.key)) is not None)

    def page(self, ranges: Iterator[_Range], wanted: Callable[[AnyRecord], bool], count: int) -> Page:
        page, found, holes, have = Page(), dict[int, Fetched | Damaged](), list[tuple[int, int]](), 0
        for part in ranges:
            page.since, page.last = part.low + 1, max(page.last, part.high)
            if part.seqs is None:
                page.passed += part.high - part.low
                continue
            found |= (read := dict(reader.fetch_segments(self._bucket, self._keys, part.seqs)))
            holes += _holes(part)
            have += sum(wanted(r) for one in read.values() if isinstance(one, Fetched) for r in one.segment.records)
            if 0 < count <= have:
                break
        if page.since > 1:
            first = next((s for e in self._bucket.list(self._keys.log) if (s := self._keys.seq_of(e.key))), page.since)
            page.whole = first >= page.since
        problems = self._missing(holes)
        end = found.get(page.last)
        if page.last < self._reached.seq or isinstance(end, Fetched):
            hash = end.hash if isinstance(end, Fetched) else b""
            if why := self._reached.lacks(self._keys.job, page.last, hash):
                problems[page.last + 1] = Damaged(why)
        for seq, one in reader.check_chain(sorted(found.items(), key=lambda item: item[0]), self._keys):
            if isinstance(one, Damaged):
                problems[seq] = one
            else:
                page.segments.append((seq, one))
        page.damaged = [problems[seq] for seq in sorted(problems)]
        return page

    # ---- what is read, the newest first

    def backwards(self, count: int) -> Iterator[_Range]:
        """As many segments as records are wanted, and then each time twice as many as before."""
        low = max(0, max(self._reached.seq, *self._stored[-1:], 0) - count) if count else 0
        seqs = self._seqs(low)
        if not seqs and low:
            low, seqs = 0, self._seqs(0)  # the log does not reach what lease or snapshots say
        if count and len(seqs) > count:
            low, seqs = seqs[-count - 1], seqs[-count:]  # it goes far beyond
        if not seqs:
            return
        yield _Range(low, seqs[-1], seqs)
        while low > 0:
            count *= 2
            low, high = max(0, low - count), low
            yield _Range(low, high, self._seqs(low, high))

    def by_snapshots(self) -> Iterator[_Range]:
        """What lies between two snapshots that say the same of crashes is passed by."""
        after: Snapshot | None = None
        every = prefetch_map(
            lambda seq: reader.read_snapshot(self._bucket, self._keys, seq), self._stored[::-1], PARALLEL
        )
        for snapshot in (found for found in every if found is not None):
            yield self._between(snapshot.seq, snapshot.state, after)
            after = snapshot
        yield self._between(0, State(), after)

    def _between(self, low: int, before: State, after: Snapshot | None) -> _Range:
        if after is None:
            seqs = self._seqs(low)
            return _Range(low, max(seqs, default=low), seqs)
        same = _crash_counts(before) == _crash_counts(after.state)
        return _Range(low, after.seq, None if same else self._seqs(low, after.seq))

    def _seqs(self, low: int, high: int | None = None) -> list[int]:
        """The numbers that are there: a store's page for each 1000, and none behind `high`."""
        found: list[int] = []
        for entry in self._bucket.list(self._keys.log, self._keys.segment(low) if low else ""):
            seq = self._keys.seq_of(entry.key)
            if seq is not None and high is not None and seq > high:
                break
            if seq is not None and seq > low:
                found.append(seq)
        return found

    # ---- what is not there

    def _missing(self, holes: list[tuple[int, int]]) -> dict[int, Damaged]:
        """By its first number, each run of them that retention cannot have taken."""
        problems = {}
        for low, high in self._lost(holes) if holes else ():
            # Again: what is put while a listing passes may be seen without what was put right before it.
            for first, end in _holes(_Range(low - 1, high, self._seqs(low - 1, high))):
                problems[first] = Damaged(f"{self._which(first, end)} missing.")
        return problems

    def _which(self, first: int, last: int) -> str:
        job = self._keys.job
        return f"record {first} of job {job} is" if first == last else f"records {first} to {last} of job {job} are"

    def _lost(self, holes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Retention takes only what is behind the older of the two newest snapshots that count, and of that neither
        openings, nor the one before each, nor what a snapshot names (R4)."""
        newest = [found for _, found in zip(range(2), reader.iter_snapshots(self._bucket, self._keys), strict=False)]
        edge = newest[-1].seq if len(newest) == 2 or (len(self._stored) > 1 and newest) else 0
        openings = {opened.seq for found in newest[:1] for opened in found.state.openings}
        stay = sorted(seq for seq in {*self._stored, *openings, *(o - 1 for o in openings)} if seq < edge)
        for first, last in holes:
            yield from ((seq, seq) for seq in stay if first <= seq <= last)
            if last >= edge:
                yield max(first, edge), last


def _holes(part: _Range) -> Iterator[tuple[int, int]]:
    before = part.low
    for seq in (*(part.seqs or ()), part.high + 1):
        if seq > before + 1:
            yield before + 1, seq - 1
        before = seq


def _crash_counts(state: State) -> object:
    return state.opened, state.recoveries, state.ends

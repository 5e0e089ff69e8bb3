"""What may be deleted, and deleting it (R4). The rules are pure; nothing here is ever needed for safety to hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from wal_agent.bucket.base import Bucket, Entry
from wal_agent.errors import Damaged, NotFound
from wal_agent.failpoints import failpoint
from wal_agent.records import Payload
from wal_agent.wal import reader
from wal_agent.wal import segment as codec
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import FileState, State

DAY = 86_400.0
KEEP_SNAPSHOTS = 2

# --- pure rules (R4)


def keeps_opening(seq: int, openings: Collection[int]) -> bool:
    """Openings stay: a fenced owner that wakes must find the higher epoch at its seq."""
    return seq in openings


def keeps_before_opening(seq: int, openings: Collection[int]) -> bool:
    """So does the segment before each: an append of the old owner that landed there without its knowing would be
    created a second time, and acknowledged, in the hole."""
    return seq + 1 in openings


def keeps_named(seq: int, snapshots: Collection[int]) -> bool:
    """And the segment that a kept snapshot names: filled anew with other bytes, it would make a good snapshot count no
    more."""
    return seq in snapshots


def boundary(snapshots: Collection[int]) -> int:
    """Only what is behind the older of the two newest snapshots, both read back and checked, goes. 0: nothing."""
    newest = sorted(snapshots, reverse=True)[:KEEP_SNAPSHOTS]
    return newest[-1] if len(newest) == KEEP_SNAPSHOTS else 0


def behind(seq: int, edge: int) -> bool:
    return seq < edge


def old_enough(updated: float, now: float, age: float) -> bool:
    """By the store's clocks."""
    return now - updated > age


def openings_known_from(state: State) -> int:
    """The first seq for which `state` knows every opening. A state names only the newest KEEP_OPENINGS; what is older
    was cleaned when it was newer, and is left alone."""
    return 0 if state.opened <= len(state.openings) else state.openings[0].seq - 1


def deletable(
    segments: Iterable[tuple[int, float]], edge: int, snapshots: Collection[int], state: State, now: float, age: float
) -> list[int]:
    """Which of the segments (seq, updated) may be deleted. `edge`: see boundary(); `snapshots`: seqs of all that stay;
    `state`: that of the newest checked one."""
    openings = {o.seq for o in state.openings}
    known = openings_known_from(state)
    return [
        seq
        for seq, updated in segments
        if known <= seq
        and behind(seq, edge)
        and old_enough(updated, now, age)
        and not keeps_opening(seq, openings)
        and not keeps_before_opening(seq, openings)
        and not keeps_named(seq, snapshots)
    ]


def blob_names(value: object) -> Iterator[str]:
    """The blobs that a record, a state or anything made of such names."""
    match value:
        case Payload():
            if value.blob is not None:
                yield value.blob
        case msgspec.Struct():
            if isinstance(value, FileState):
                yield from value.chunks
            for field in value.__struct_fields__:
                yield from blob_names(getattr(value, field))
        case dict():
            for item in value.values():
                yield from blob_names(item)
        case tuple() | list():
            for item in value:
                yield from blob_names(item)


# --- acting


@dataclass(frozen=True, slots=True)
class Retained:
    """What a run of retention did. `why`: why it did nothing, or stopped; for people."""

    segments: int = 0
    snapshots: int = 0
    blobs: int = 0
    why: str = ""


class Retention:
    """Retention by a job's owner. It remembers what it has read, so that a later run costs what is new."""

    def __init__(
        self, bucket: Bucket, keys: Keys, blobs: Blobs, may_act: Callable[[], bool], *, age: float = DAY
    ) -> None:
        """`may_act`: whether this run still holds the job (R7). A fenced owner's view of which blobs are named is old,
        so it is asked before each delete."""
        self._bucket, self._keys, self._blobs, self._may_act, self._age = bucket, keys, blobs, may_act, age
        self._names: dict[int, frozenset[str]] = {}  # segment -> the blobs that it names

    def run(self) -> Retained:
        """Delete what may go. Unavailable, Denied: stopped between two deletes, which is a good place."""
        kept = list(islice(reader.newest_snapshots(self._bucket, self._keys), KEEP_SNAPSHOTS))
        if len(kept) < KEEP_SNAPSHOTS:
            return Retained(why="fewer than two checked snapshots")
        now = self._bucket.time()
        stored = list(self._bucket.list(self._keys.blobs))
        named = set(blob_names([s.state for s in kept]))
        missing = named - {_name(e) for e in stored}
        if missing:
            return Retained(why=f"blob {min(missing)} of a snapshot is missing")
        edge = boundary({s.seq for s in kept})
        snapshots = dict(self._listed(self._keys.snapshots))
        old = [s for s, updated in snapshots.items() if s < edge and old_enough(updated, now, self._age)]
        listed = self._listed(self._keys.log)
        doomed = deletable(listed, edge, snapshots.keys() - set(old), kept[0].state, now, self._age)
        # Snapshots first: one that outlived its segments would be looked at in vain by each reader.
        gone_snapshots = self._delete([self._keys.snapshot(s) for s in old])
        gone_segments = self._delete([self._keys.segment(s) for s in doomed])
        try:
            named |= self._named_by({s for s, _ in listed} - set(doomed))
        except Damaged as error:
            return Retained(gone_segments, gone_snapshots, why=error.what)
        self._blobs.forget_old_pins()
        loose = [e.key for e in stored if old_enough(e.updated, now, self._age) and _name(e) not in named]
        gone_blobs = self._delete(loose, self._blobs)
        return Retained(gone_segments, gone_snapshots, gone_blobs)

    def _listed(self, prefix: str) -> list[tuple[int, float]]:
        """Numbers and ages of what is numbered under `prefix`."""
        return [(s, e.updated) for e in self._bucket.list(prefix) if (s := self._keys.seq_of(e.key)) is not None]

    def _named_by(self, seqs: set[int]) -> set[str]:
        """The blobs that kept segments name."""
        self._names = {seq: names for seq, names in self._names.items() if seq in seqs}
        for seq in seqs - self._names.keys():
            try:
                data = self._bucket.get(self._keys.segment(seq)).data
            except NotFound:
                continue
            self._names[seq] = frozenset(blob_names(codec.decode(data, job=self._keys.job, seq=seq).records))
        return set().union(*self._names.values())

    def _delete(self, keys: list[str], pins: Blobs | None = None) -> int:
        count = 0
        for key in keys:
            if not self._may_act():
                break
            if pins is not None and pins.pinned(key.rpartition("/")[2]):
                continue  # used by this run: about to be named, maybe since this run of retention began
            self._bucket.delete(key)
            failpoint("retention.between_deletes")
            count += 1
        return count


def _name(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]

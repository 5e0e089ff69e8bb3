"""What may be deleted, and deleting it (R4). Nothing here is ever needed for safety to hold, and none of it rests on a
clock: a run that has lost the job without knowing, or a stranger (`wal-agent gc`), may delete at any time.

Segments follow R4's rules. The simulation plays owners that go on deleting after they were fenced.

Blobs: what can still be asked of the job names none of those that are deleted. Let X be the older of the two newest
snapshots, both read back, and its epoch that of the log at X.

* What can be asked later is a snapshot from X on, or the memory of a run. (A snapshot of a run that was fenced before X
  may land late, but then two newer ones stand behind it, and nobody begins from it.) So only runs of X's epoch and
  later ones matter.
* The memory of such a run rests on a snapshot S. It names what S names, what the records behind S name, and what the
  run has put itself. S is not older than X: a run decides one snapshot before it sends the next, so the run of X's
  epoch rests on X when it takes another; a run that opened behind X says in its opening which snapshot it saw before
  that, and reads the newest one after it (R2); and one that opened after the log was read here finds X there.
* So a blob that no stored snapshot and no segment from X on names was put and not named, or is named no more. Only the
  run whose epoch a name holds creates it. Runs before X's epoch can name nothing any more: a record of theirs would be
  in front of X. About its own names a run knows best (see Names); nobody else decides on those of X's epoch and later.

Snapshots are taken in the background: the acknowledged state, its files compacted, and the hash of its segment (R5).

`Mirror` is a private copy of each captured file as of a place in the log, cut into chunks (I9): a snapshot of a file
that grew costs its new chunks only. The copy is in a private folder of this process and is built again from the log
whenever it does not fit: losing it costs time, never bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from io import BufferedRandom
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent.bucket.base import Bucket, Entry
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Conflict, Damaged, NotFound
from wal_agent.failpoints import failpoint
from wal_agent.records import Payload
from wal_agent.wal import codec, reader
from wal_agent.wal.blobs import CHUNK, Blobs, apply_layers, chunk_count, create_file, write_base
from wal_agent.wal.codec import Snapshot
from wal_agent.wal.keys import Keys, blob_epoch, is_blob
from wal_agent.wal.state import FileState, OpeningAt, State
from wal_agent.wal.writer import Acked, Writer

DAY = 86_400.0
KEEP_SNAPSHOTS = 2
BATCH = 100  # objects in one call of delete
MAX_BLOBS = 1000  # blobs that one plan holds, which bounds its memory, and that a run's own retention deletes at a time
RUNS_PER_AGE = 24  # runs of retention at most in the time for which everything is kept; each lists all blobs


def referenced_blobs(value: object) -> Iterator[str]:
    """The blobs that a record, a state or anything made of such names."""
    match value:
        case Payload():
            if value.blob is not None:
                yield value.blob
        case msgspec.Struct():
            if isinstance(value, FileState):
                yield from value.chunks
            for field in value.__struct_fields__:
                yield from referenced_blobs(getattr(value, field))
        case dict():
            for item in value.values():
                yield from referenced_blobs(item)
        case tuple() | list():
            for item in value:
                yield from referenced_blobs(item)


class CheckedSnapshot(msgspec.Struct, frozen=True):
    """What retention needs of a snapshot that counts. `state` has its epoch and openings only."""

    seq: int
    state: State
    names: frozenset[str]


class BlobRefs:
    """Not for two threads at once."""

    def __init__(self, bucket: Bucket, keys: Keys, parallel: int) -> None:
        self._bucket, self._keys, self._parallel = bucket, keys, parallel
        self._snapshots: dict[int, CheckedSnapshot] = {}
        self._segments: dict[int, frozenset[str]] = {}

    def newest_checked(self, seqs: Collection[int], count: int) -> list[CheckedSnapshot]:
        """Of the snapshots `seqs`, which are all that are stored, the newest `count` that count, newest first."""
        self._snapshots = {seq: known for seq, known in self._snapshots.items() if seq in seqs}
        found: list[CheckedSnapshot] = []
        for seq in sorted(seqs, reverse=True):
            if len(found) == count:
                break
            if (checked := self._checked(seq)) is not None:
                found.append(checked)
        return found

    def by_snapshots(self, seqs: Collection[int]) -> set[str]:
        """The blobs that those of the snapshots name that count."""
        return _union(known.names for seq in seqs if (known := self._checked(seq)) is not None)

    def by_segments(self, seqs: Collection[int]) -> set[str]:
        """The blobs that the segments name; one that is gone names none. Damaged: one cannot be read."""
        self._segments = {seq: names for seq, names in self._segments.items() if seq in seqs}
        new = [seq for seq in seqs if seq not in self._segments]
        for seq, names in zip(new, prefetch_map(self._read, new, self._parallel), strict=True):
            self._segments[seq] = names
        return _union(self._segments.values())

    def _checked(self, seq: int) -> CheckedSnapshot | None:
        if seq not in self._snapshots and (read := reader.read_snapshot(self._bucket, self._keys, seq)) is not None:
            state = State(epoch=read.state.epoch, openings=read.state.openings, opened=read.state.opened)
            self._snapshots[seq] = CheckedSnapshot(seq, state, frozenset(referenced_blobs(read.state)))
        return self._snapshots.get(seq)

    def _read(self, seq: int) -> frozenset[str]:
        try:
            data = self._bucket.get(self._keys.segment(seq)).data
        except NotFound:
            return frozenset()
        return frozenset(referenced_blobs(codec.decode_segment(data, job=self._keys.job, seq=seq).records))


def _union(sets: Iterable[frozenset[str]]) -> set[str]:
    return set[str]().union(*sets)


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


def is_before(seq: int, edge: int) -> bool:
    return seq < edge


def old_enough(updated: float, now: float, age: float) -> bool:
    """By the store's clocks."""
    return now - updated > age


def openings_known_from(state: State) -> int:
    """The first seq for which `state` knows every opening. A state names only the newest MAX_OPENINGS; what is older
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
        and is_before(seq, edge)
        and old_enough(updated, now, age)
        and not keeps_opening(seq, openings)
        and not keeps_before_opening(seq, openings)
        and not keeps_named(seq, snapshots)
    ]


def no_run_rests_before(older: int, following: OpeningAt | None) -> bool:
    """Whether no run's memory rests on a snapshot before `older`, the older of the two newest. `following`: the first
    opening behind it. Later openings have seen newer snapshots."""
    return following is None or following.opening.snapshot >= older


def is_past_epoch(epoch: int, older: int) -> bool:
    """Whether a run of `epoch` can name nothing any more that counts. `older`: the epoch of the older snapshot."""
    return epoch < older


def first_contiguous(seqs: Collection[int], edge: int) -> int:
    """The first of the numbers up to `edge` that are all there."""
    since = edge
    while since - 1 in seqs:
        since -= 1
    return since


# --- acting


class Tally(msgspec.Struct, frozen=True):
    """So many objects, and their bytes as stored."""

    count: int = 0
    size: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.count + other.count, self.size + other.size)


Sized = tuple[int, int]  # a number in the log, and the bytes of the object there


class UnreferencedBlobs(msgspec.Struct, frozen=True):
    """The blobs that were named at a time. A blob that is loose by this stays loose, however much later a list shows
    it: nobody who creates names of epochs before `epoch` can name anything any more."""

    named: Collection[str]
    epoch: int
    now: float
    age: float

    def loose(self, entry: Entry) -> bool:
        name = entry.key.rpartition("/")[2]
        return (
            is_blob(name)
            and is_past_epoch(blob_epoch(name), self.epoch)
            and old_enough(entry.updated, self.now, self.age)
            and name not in self.named
        )


class DeletionPlan(msgspec.Struct, frozen=True):
    """What may go. `blobs`: name and size of the first ones of all that may, which are `loose`; `past`: of the
    others. `since`: from this record on all stay. `why`: why nothing, or no blob, may go; for people."""

    snapshots: tuple[Sized, ...] = ()
    segments: tuple[Sized, ...] = ()
    blobs: tuple[tuple[str, int], ...] = ()
    loose: Tally = Tally()
    past: UnreferencedBlobs | None = None
    since: int = 0
    why: str = ""


class RetentionResult(msgspec.Struct, frozen=True):
    """What a run of retention did. `more`: blobs are left that may go. `since`, `why`: as in Due."""

    segments: Tally = Tally()
    snapshots: Tally = Tally()
    blobs: Tally = Tally()
    more: bool = False
    since: int = 0
    why: str = ""


def tally(sized: Iterable[tuple[object, int]]) -> Tally:
    return sum((Tally(1, size) for _, size in sized), Tally())


class Retention:
    """Retention of one job. It remembers what it has read, so that a later run costs what is new."""

    def __init__(
        self,
        bucket: Bucket,
        keys: Keys,
        blobs: Blobs | None = None,
        may_act: Callable[[], bool] = lambda: True,
        *,
        age: float = DAY,
        most: int = MAX_BLOBS,
        parallel: int = 4,
    ) -> None:
        """`blobs`: of the run that does this; None: it is no run. `may_act`: whether that still holds the job; asked
        before each request that deletes, because who has lost it should let go, not because anything rests on it."""
        self._bucket, self._keys, self._may_act, self._age, self._most = bucket, keys, may_act, age, most
        self._names = None if blobs is None else blobs.names
        self._named = BlobRefs(bucket, keys, parallel)
        self._rest = 0.0  # no run before this time, by the store's clock

    def run(self) -> RetentionResult:
        """Delete what may go. Unavailable, Denied: stopped between two requests, which is a good place."""
        now = self._bucket.time()
        if now < self._rest:
            return RetentionResult(why="looked not long ago")
        due = self.plan()
        # Snapshots first: one that outlived its segments would be read in vain by each reader.
        snapshots = self._delete((self._keys.snapshot(seq), size) for seq, size in due.snapshots)
        segments = self._delete((self._keys.segment(seq), size) for seq, size in due.segments)
        blobs = self._delete((self._keys.blob(name), size) for name, size in due.blobs)
        if self._names is None and blobs.count == len(due.blobs) < due.loose.count:
            blobs += self._delete(self._others(due))
        more = blobs.count < due.loose.count
        if not more:
            self._rest = now + self._age / RUNS_PER_AGE
        return RetentionResult(segments, snapshots, blobs, more, due.since, due.why)

    def plan(self, over: int = 0) -> DeletionPlan:
        """Return what may be deleted now. Unavailable, Denied.

        `over`: count the runs up to this epoch as over, to foresee what an opening behind them would let go (what is
        returned must not be deleted then)."""
        snapshots = dict(self._from(self._keys.snapshots))
        kept = self._named.newest_checked(snapshots.keys(), KEEP_SNAPSHOTS)
        if len(kept) < KEEP_SNAPSHOTS:
            return DeletionPlan(why="needs two verified snapshots")
        newest, older = kept
        known = openings_known_from(newest.state)
        try:
            if known > older.seq + 1 or not no_run_rests_before(older.seq, self._following(newest, older)):
                return DeletionPlan(why=f"a run that opened behind record {older.seq} may still need what is older")
        except Damaged as error:
            return DeletionPlan(why=error.what)
        now = self._bucket.time()
        edge = boundary([newest.seq, older.seq])
        old = {s for s, e in snapshots.items() if s < edge and old_enough(e.updated, now, self._age)}
        stay = snapshots.keys() - old
        sizes: dict[int, int] = {}
        doomed = deletable(self._behind(edge, known, sizes), edge, stay, newest.state, now, self._age)
        due = DeletionPlan(
            snapshots=tuple((seq, snapshots[seq].size) for seq in sorted(old)),
            segments=tuple((seq, sizes[seq]) for seq in doomed),
            since=first_contiguous(sizes.keys() - set(doomed), edge),
        )
        return self._loose(due, newest.names | older.names, older.seq, max(older.state.epoch, over + 1), stay, now)

    def _following(self, newest: CheckedSnapshot, older: CheckedSnapshot) -> OpeningAt | None:
        """The first opening behind `older`. The log is read after the snapshots: whoever opens it later
        than that finds them. Damaged."""
        for opened in newest.state.openings:
            if opened.seq > older.seq:
                return opened
        if reader.newest_after(self._bucket, self._keys, newest.seq).epoch <= newest.state.epoch:
            return None
        for seq, segment in reader.iter_segments(self._bucket, self._keys, newest.seq + 1):
            if segment.opening is not None:
                return OpeningAt(seq, segment.opening)
        return None

    def _behind(self, edge: int, known: int, sizes: dict[int, int]) -> Iterator[tuple[int, float]]:
        """Numbers and ages of the segments behind `edge`; their sizes go into `sizes`."""
        for seq, entry in self._from(self._keys.log, self._keys.segment(known - 1) if known > 1 else ""):
            if not is_before(seq, edge):
                return
            sizes[seq] = entry.size
            yield seq, entry.updated

    def _loose(
        self, due: DeletionPlan, sure: frozenset[str], older: int, epoch: int, stay: Collection[int], now: float
    ) -> DeletionPlan:
        """`due` and the blobs that may go with it; nothing of it where one of `sure`, the blobs that the two newest
        snapshots name, is missing. `older`: the older of the two; `epoch`: runs before it can name nothing any more."""
        if self._names is not None:
            self._names.next_round()
        missing = set(sure)
        named: set[str] | None = None
        blobs: list[tuple[str, int]] = []
        loose, why = Tally(), ""
        for entry in self._bucket.list(self._keys.blobs):
            name = entry.key.rpartition("/")[2]
            missing.discard(name)
            if why or name in sure or not old_enough(entry.updated, now, self._age) or not self._past(name, epoch):
                continue
            try:
                named = self._all_named(stay, older) if named is None else named
            except Damaged as error:
                why = error.what
                continue
            if name not in named:
                loose += Tally(1, entry.size)
                if len(blobs) < self._most:
                    blobs.append((name, entry.size))
        if missing:
            return DeletionPlan(why=f"blob {min(missing)} of a snapshot is missing")
        if self._names is not None:
            self._names.unpin(named or sure, self._age)
        past = UnreferencedBlobs((named or set()) | sure, epoch, now, self._age)
        return replace(due, blobs=tuple(blobs), loose=loose, past=past, why=why)

    def _others(self, due: DeletionPlan) -> Iterator[tuple[str, int]]:
        """The loose blobs behind `due.blobs`, as they are listed."""
        assert due.past is not None
        for entry in self._bucket.list(self._keys.blobs, self._keys.blob(due.blobs[-1][0])):
            if due.past.loose(entry):
                yield entry.key, entry.size

    def _past(self, name: str, epoch: int) -> bool:
        """Whether all that may ever name this blob can be read by now; `epoch` as in `_loose`."""
        if not is_blob(name):
            return False
        return is_past_epoch(blob_epoch(name), epoch) or (self._names is not None and self._names.may_go(name))

    def _all_named(self, snapshots: Collection[int], edge: int) -> set[str]:
        """The blobs that the stored snapshots which stay, and the segments from `edge` on, name. Damaged."""
        segments = [seq for seq, _ in self._from(self._keys.log, self._keys.segment(edge - 1))]
        return self._named.by_snapshots(snapshots) | self._named.by_segments(segments)

    def _from(self, prefix: str, start_after: str = "") -> Iterator[tuple[int, Entry]]:
        """What is numbered under `prefix`, in order."""
        for entry in self._bucket.list(prefix, start_after):
            if (seq := self._keys.seq_of(entry.key)) is not None:
                yield seq, entry

    def _delete(self, doomed: Iterable[tuple[str, int]]) -> Tally:
        done, rest = Tally(), iter(doomed)
        while (some := list(islice(rest, BATCH))) and self._may_act():
            self._bucket.delete(*(key for key, _ in some))
            failpoint("retention.between_deletes")
            done += tally(some)
        return done


class Mirror:
    """`folder` exists and belongs to this process alone. Not for two threads at once."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self._folder, self._blobs = folder, blobs
        self._copies: dict[str, tuple[str, ...]] = {}  # logical name -> chunks of what is on disk

    def compact(self, files: dict[str, FileState]) -> dict[str, FileState]:
        """The same files with all layers in chunks, which are durable. Damaged, Unavailable, Denied; OSError."""
        for gone in self._copies.keys() - files.keys():
            self._copies.pop(gone)
            self._at(gone).unlink(missing_ok=True)
        return {path: self._compact(path, file) if file.layers else file for path, file in files.items()}

    def compact_state(self, state: State) -> State:
        """The same state with all files compacted. Transcripts that cannot be read any more are left out: nothing rests
        on them. Raises as `compact`."""
        shelf = {
            agent: msgspec.structs.replace(left, files={path: self._once(file) for path, file in left.files.items()})
            for agent, left in state.shelf.items()
        }
        past = []
        for each in state.past:
            with suppress(Damaged):
                past.append(msgspec.structs.replace(each, file=self._once(each.file)))
        traces = []
        for rewrite in state.rewrites:
            with suppress(Damaged):
                traces.append(msgspec.structs.replace(rewrite, before=self._once(rewrite.before)))
        return msgspec.structs.replace(
            state, files=self.compact(state.files), shelf=shelf, past=tuple(past), rewrites=tuple(traces)
        )

    def _once(self, file: FileState) -> FileState:
        """Of a file that does not change any more, so that no copy of it is kept."""
        if not file.layers:
            return file
        try:
            return self._compact("", file)
        finally:
            self._copies.pop("", None)
            self._at("").unlink(missing_ok=True)

    def _compact(self, path: str, file: FileState) -> FileState:
        known = self._copies.pop(path, None)  # not trusted again if something goes wrong below
        at = self._at(path)
        if known != file.chunks:
            at.unlink(missing_ok=True)
            with create_file(at) as out:
                write_base(self._blobs, file, out)
        with at.open("r+b") as out:
            touched = apply_layers(self._blobs, file, out)
            changed = [n for n in range(chunk_count(file.size)) if n in touched]
            names = dict(zip(changed, self._blobs.put_each(_chunks(out, changed)), strict=True))
        chunks = tuple(names.get(n) or file.chunks[n] for n in range(chunk_count(file.size)))
        self._copies[path] = chunks
        return msgspec.structs.replace(file, chunks=chunks, base_size=file.size, layers=())

    def _at(self, path: str) -> Path:
        # Logical names come from the log: hashed, they cannot leave the folder.
        return self._folder / hashlib.sha256(path.encode()).hexdigest()


def _chunks(out: BufferedRandom, numbers: list[int]) -> Iterator[bytes]:
    for number in numbers:
        out.seek(number * CHUNK)
        yield out.read(CHUNK)


class SnapshotPolicy(msgspec.Struct, frozen=True):
    """Due after so many segments, or bytes of them, since the last snapshot."""

    segments: int = 200
    size: int = 8 << 20

    def due(self, segments: int, size: int) -> bool:
        return segments >= self.segments or (size >= self.size and segments > 0)


class Snapshots:
    """The snapshots of one run. `take_if_due` is called from one background thread, as often as one likes."""

    def __init__(
        self, bucket: Bucket, keys: Keys, writer: Writer, mirror: Mirror, policy: SnapshotPolicy | None = None
    ) -> None:
        self._bucket, self._keys, self._writer, self._mirror = bucket, keys, writer, mirror
        self._policy = policy or SnapshotPolicy()
        self._segments = self._size = 0  # of the writer's counts, at the last snapshot
        self._undecided: tuple[Acked, Snapshot] | None = None
        self.size = 0  # bytes of the last one that was stored

    def due(self) -> bool:
        acked = self._writer.acked
        return self._policy.due(acked.segments - self._segments, acked.size - self._size)

    def take_if_due(self) -> Snapshot | None:
        return self.take() if self.due() else None

    def take(self) -> Snapshot | None:
        """Store a snapshot and let the writer's memory rest on it; None when another one is stored at this seq.

        Unavailable: it may land late, which does no harm. The next call sends it again, and none is made before it is
        decided: so the writer's memory rests on the last snapshot of this run but one, at least (retention relies on
        it). Denied, Damaged; OSError."""
        acked, snapshot = self._undecided = self._undecided or self._made()
        data = codec.encode_snapshot(snapshot, self._writer.sign)
        failpoint("snapshot.before_put")
        try:
            self._bucket.put(self._keys.snapshot(acked.seq), data)
        except Conflict:
            # An own earlier try that landed late, or a fenced owner's. Its state is as good if it counts.
            found = reader.read_snapshot(self._bucket, self._keys, acked.seq)
            if found is None:
                self._undecided = None
                return None
            snapshot = found
        failpoint("snapshot.after_put")
        self._undecided, self.size = None, len(data)
        self._segments, self._size = acked.segments, acked.size
        # Only now: a chunk that no stored snapshot names is fair game for retention once it is a day old.
        self._writer.rebase(acked.state, snapshot.state)
        return snapshot

    def _made(self) -> tuple[Acked, Snapshot]:
        acked = covered(self._writer)
        state = self._mirror.compact_state(acked.state)
        made = Snapshot(format=1, job=self._keys.job, seq=acked.seq, hash=acked.hash, state=state, time=acked.time)
        return acked, made


def covered(writer: Writer) -> Acked:
    """R5: a snapshot covers acknowledged segments only; one that is still undecided may be another's in the end."""
    return writer.acked

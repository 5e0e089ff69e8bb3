"""Open and close a job: lease, opening segment, and only then the replay of what an earlier run spooled (R1, R2, R6,
R9).

The opening segment is placed at the log's real tail, which fences every lower epoch; no clock is asked (I2). What an
earlier run spooled on this machine comes into the log under the own epoch, before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal

import msgspec
from msgspec.structs import asdict, replace

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.decorators import RetryBudget
from wal_agent.errors import Conflict, Damaged, Fenced, NotFound, Unavailable, WalAgentError
from wal_agent.failpoints import failpoint
from wal_agent.records import Cause, Opening, TaskOf
from wal_agent.wal import codec, reader
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.codec import Segment
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Lease, LeaseRequest, StoredLease, final_lease_state
from wal_agent.wal.reader import Replay, Tail
from wal_agent.wal.spool import Spool, SpoolContent
from wal_agent.wal.store import JobStore
from wal_agent.wal.writer import Acked, InFlight, Ticket, Writer

BLOBS_AT_ONCE = 8  # of up to 4 MiB each, so that memory stays small


def first_segment_after_epoch(bucket: Bucket, keys: Keys, start: int, epoch: int) -> Segment | None:
    """The first segment from `start` on of an epoch behind `epoch`: what landed of `epoch` is in front of it, nothing
    of it ever lands behind (I2). It is an opening, so the log has it for ever (R4), however many came later."""
    return next((segment for _, segment in reader.iter_segments(bucket, keys, start) if segment.epoch > epoch), None)


def unsent_seqs(bucket: Bucket, keys: Keys, spool: Spool, left: SpoolContent) -> tuple[int, ...]:
    """The numbers of the segments in the spool that the log lacks. Damaged: something is missing between the two."""
    if not left.seqs:
        return ()
    first = first_segment_after_epoch(bucket, keys, left.seqs[0], left.epoch)
    if first is None:
        raise spool.damaged(f"record {left.seqs[0]} does not follow what the log has of epoch {left.epoch}")
    unsent = tuple(seq for seq in left.seqs if seq >= first.seq)
    if unsent and (unsent[0], spool.segment(left.epoch, unsent[0]).prev) != (first.seq, first.prev):
        raise spool.damaged(f"record {unsent[0]} does not follow what the log has of epoch {left.epoch}")
    return unsent


def epoch_that_carried(bucket: Bucket, keys: Keys, left: SpoolContent, own: int) -> int:
    """R9: the epoch below `own` that has carried in, from another copy of this disk, what `left` has and its epoch did
    not send; 0 for none. Who opens the job with a spool renames it, carries it in, and then appends: so more than
    openings behind its epoch are of a run that had another copy."""
    behind = False
    for _, segment in reader.iter_segments(bucket, keys, left.seqs[0]) if left.seqs else ():
        if segment.epoch > left.epoch and not behind:
            if segment.seq > left.seqs[-1]:
                return 0  # all of it had landed
            behind = True
        if behind and segment.epoch < own and segment.opening is None:
            return segment.epoch
    return 0


def reencode_segments(
    segments: Iterable[Segment], origin: int, at: Tail, by: codec.Author, now: float
) -> list[InFlight]:
    """The same records as segments `by` the own run behind `at`, in order."""
    made: list[InFlight] = []
    for segment in segments:
        raw = [codec.encode_record(record)[0] for record in segment.records]
        carried = segment.carried or origin
        data = codec.encode_segment(
            by,
            seq=at.seq + 1,
            prev=at.hash,
            time=segment.time,
            records=raw,
            carried=carried,
        )
        at = Tail(at.seq + 1, by.epoch, codec.digest(data))
        made.append(InFlight(at.seq, data, (Ticket(),), now, sum(map(len, raw)), len(raw), segment.time, carried))
    return made


def rebase_spool(store: JobStore, spool: Spool, at: Tail, by: codec.Author) -> list[InFlight]:
    """Make what the spool holds of earlier epochs the segments that follow the own opening `at`, in the spool first.
    What another epoch has carried in is set aside for a person. Unavailable, Damaged, ConfigError (the disk)."""
    left, steady, keys = spool.read(), store.steady, store.keys
    if epoch_that_carried(steady, keys, left, at.epoch):
        spool.set_aside(left.epoch)
        left = SpoolContent()
    seqs = unsent_seqs(steady, keys, spool, left)
    # One at a time: unpacked, all of them may be many times what the spool may hold (I9).
    segments = (spool.segment(left.epoch, seq) for seq in seqs)
    made = reencode_segments(segments, left.epoch, at, by, store.clock.boot())
    spool.begin(at.epoch, [(m.seq, m.data) for m in made])
    return made


def send_spooled(writer: Writer, store: JobStore, between: Callable[[], None] = lambda: None) -> None:
    """Commit until nothing waits. Unavailable when nothing was acknowledged for the store's budget; Fenced, Damaged.

    `between` is called before each step; what it raises ends this, and the rest stays in the spool."""
    patience = store.retries()
    while writer.pending:
        between()
        match writer.commit_once():
            case "ended":
                assert writer.ended is not None
                raise writer.ended
            case "undecided":
                patience.pause(Unavailable("What this machine spooled for the job could not be saved yet."))
            case _:
                patience = store.retries()


# --- pure rules


def may_chain(tail: Tail, epoch: int) -> bool:
    """R1, tail read: go on only behind a lower epoch (create-if-absent alone cannot see a newer opening)."""
    return tail.epoch < epoch


def resolve_opening_conflict(
    stored: bytes, stored_epoch: int, sent: bytes, epoch: int
) -> Literal["mine", "next", "give_up"]:
    """R1, seq taken: what is stored there is mine (byte for byte, R3), of a lower epoch, or the end of
    this attempt."""
    if stored == sent:
        return "mine"
    return "next" if stored_epoch < epoch else "give_up"


def resolve_later_segment(later: Tail, epoch: int) -> Literal["last", "again", "give_up"]:
    """R1, list after: behind the landed opening there must be nothing. It may have landed in a hole that retention
    made, or have been passed already."""
    if later.seq == 0:
        return "last"
    return "give_up" if later.epoch > epoch else "again"


# --- acting


def place_opening(
    store: JobStore, opening: Opening, *, hint: int = 0, known: Tail | None = None, sign: bytes = b""
) -> Tail:
    """Create `opening` at the end of the log and return its place. `known`: the tail as it was read before; `sign`: the
    person's key. Fenced: an equal or higher epoch is there; Unavailable."""
    bucket, keys, retries = store.bucket, store.keys, store.retries()
    while True:
        at = retries.call(partial(reader.read_tail, bucket, keys, hint, known))
        if not may_chain(at, opening.epoch):
            raise _overtaken_error(keys, opening.epoch, at.epoch)
        landed = _land(store, retries, opening, at, sign)
        later = retries.call(partial(reader.newest_after, bucket, keys, landed.seq))
        match resolve_later_segment(later, landed.epoch):
            case "last":
                return landed
            case "give_up":
                raise _overtaken_error(keys, opening.epoch, later.epoch)
            case "again":
                hint = later.seq


def _land(store: JobStore, retries: RetryBudget, opening: Opening, at: Tail, sign: bytes) -> Tail:
    """Create the opening after `at`, or after segments of lower epochs that were created there meanwhile."""
    bucket, keys = store.bucket, store.keys
    while True:
        seq = at.seq + 1
        # Encoded once for each place; what is sent again are these bytes (R3).
        data = codec.encode_segment(
            codec.Author(keys.job, opening.epoch, opening.run, sign),
            seq=seq,
            prev=at.hash,
            time=opening.time,
            records=[codec.encode_record(opening)[0]],
        )
        stored = _create_segment(bucket, keys, retries, seq, data)
        epoch = codec.decode_segment(stored, job=keys.job, seq=seq).epoch
        here = Tail(seq, epoch, codec.digest(stored))
        match resolve_opening_conflict(stored, epoch, data, opening.epoch):
            case "mine":
                return here
            case "give_up":
                raise _overtaken_error(keys, opening.epoch, epoch)
            case "next":
                at = here


def _create_segment(bucket: Bucket, keys: Keys, retries: RetryBudget, seq: int, data: bytes) -> bytes:
    """Send until it is decided what is stored at `seq`; return that."""
    while True:
        failpoint("opening.before_put")
        try:
            bucket.put(keys.segment(seq), data)
        except Conflict:
            try:
                return bucket.get(keys.segment(seq)).data
            except NotFound:
                continue  # retention took it away; if this lands in the hole, the list behind it will say so
            except Unavailable as error:
                retries.pause(error)
        except Unavailable as error:
            retries.pause(error)
        else:
            failpoint("opening.after_put")
            return data


def _overtaken_error(keys: Keys, epoch: int, newer: int) -> Fenced:
    return Fenced(f"Job {keys.job} was opened by another run (epoch {newer}) while this one (epoch {epoch}) tried.")


class OpeningFields(msgspec.Struct, frozen=True):
    """What the opening record says besides what the claim says."""

    agent_version: str
    version: str
    args: tuple[str, ...] = ()
    interactive: bool = False
    trace: str = ""
    parents: tuple[str, ...] = ()
    task: TaskOf | None = None


class Stopped(WalAgentError):
    """Somebody asked this process to end before the agent ran. `lease`: is held all the same, under an opening that is
    in the log; whoever catches this gives it up, so that the next start need not take it for a crash."""

    lease: Lease | None = None


class OpenedJob(msgspec.Struct, frozen=True):
    """A job that this run owns. `replay` ends at the own opening, or behind what an earlier run had spooled on this
    machine; where it is damaged, append nothing and restore from what it gives. `spool`: the folder that the lease
    names."""

    bucket: Bucket
    keys: Keys
    lease: Lease
    writer: Writer
    blobs: Blobs
    replay: Replay
    spool: Spool | None = None

    def segments(self) -> Iterator[Segment]:
        """All of the log that is there and can be read, oldest first."""
        readable = (segment for _, segment in reader.iter_readable(self.bucket, self.keys))
        return (segment for segment in readable if isinstance(segment, Segment))

    def refreshed(self) -> OpenedJob:
        """Return the same, with the state that the log has by now."""
        return replace(self, replay=replace(self.replay, state=self.writer.state))


class Opener(msgspec.Struct, frozen=True):
    """Who opens a job, and takes part in it. `sign`: the person's key. It signs what begins here, what it has signed
    all along, and what the person takes over now.

    Opening may take long, so `report` gets a line then, and `check_stop` is called before each segment that is carried
    in. `check_owner` gets the log and the cause before anything is written, and returns whether the person takes it
    over. What these two raise goes through. `uninterrupted` is entered from the lease to the opening: a lease given up
    without one would hide how the owner before ended, so nothing should stop us there."""

    sign: bytes = b""
    report: Callable[[str], None] = lambda _: None
    check_stop: Callable[[], None] = lambda: None
    check_owner: Callable[[Replay, Cause], bool] = lambda log, cause: False
    uninterrupted: Callable[[], AbstractContextManager[None]] = nullcontext


NO_KEY = Opener()


def open_job(
    store: JobStore,
    *,
    claim: LeaseRequest,
    fields: OpeningFields,
    seen: StoredLease | None,
    cause: Cause,
    spool: Spool | None = None,
    spooling: bool = False,
    opener: Opener = NO_KEY,
) -> OpenedJob:
    """Open the job from exactly the lease that admit() said yes to (`seen`, `cause`).

    `spool`: a new folder, or the one that the lease named, whose records come into the log first (R9). `spooling`: this
    run spools there too; else the lease names it only until that is done.

    LeaseHeld: someone else was faster; Fenced: someone opened it meanwhile; Unavailable, Denied: the bucket, within
    its budget for each of four steps; Damaged: the log's newest segment cannot be read, or is missing; Newer: a newer
    wal-agent wrote something there, and nothing is changed; ConfigError: the disk of the spool has no room."""
    if spool is not None and spool.adopted:
        spool.require_room()
        spool.require_known()
    keys, sign = store.keys, opener.sign
    tail = read_end(store, seen)
    before = reader.replay(store.steady, keys, parallel=store.parallel)  # Newer: raised before anything is written
    if not (opener.check_owner(before, cause) or before.hash == codec.START or reader.is_signed(before, sign)):
        sign = b""
    before = replace(before, base=b"")  # a snapshot may be large
    with opener.uninterrupted():
        recovers = claim.phase and cause not in ("first", "closed") and before.state.ran
        phase = "recovering" if recovers else claim.phase
        wanted = replace(claim, spool=str(spool.folder) if spool else "", phase=phase)
        lease = leases.acquire(store, seen=seen, claim=wanted, log_epoch=tail.epoch)
        opening = Opening(
            time=store.clock.now(),
            run=claim.run,
            epoch=lease.epoch,
            cause=cause,
            host=claim.host,
            agent=claim.agent,
            workspace=claim.workspace,
            owner=claim.owner,
            snapshot=newest_snapshot_seq(store),
            **asdict(fields),
        )
        at = place_opening(store, opening, hint=lease.doc.seq, known=tail, sign=sign)
    by = codec.Author(keys.job, lease.epoch, claim.run, sign)
    try:
        return _open_spooled(store, by, before, at, lease, spool, spooling, opener)
    except Stopped as stopped:
        if spool is None or spool.empty:  # what only this machine has must be named by the lease
            stopped.lease = lease
        raise


def _open_spooled(
    store: JobStore,
    by: codec.Author,
    before: Replay,
    at: Tail,
    lease: Lease,
    spool: Spool | None,
    spooling: bool,
    opener: Opener,
) -> OpenedJob:
    """What follows the own opening, `at`: the replay, and what an earlier run had spooled."""
    replay = replay_for_plan(store, before, at)
    sound = replay.damage is None
    carried = rebase_spool(store, spool, at, by) if spool and sound else []
    acked = Acked(at.seq, at.hash, replay.state, replay.segments_read, replay.bytes_read, replay.time)
    writer = Writer(store, by, acked, spool, carried)
    if carried:
        opener.report(f"carrying in {len(carried)} segment{'s' * (len(carried) > 1)} from this machine's spool")
        send_spooled(writer, store, opener.check_stop)
        now = writer.acked
        replay = replace(replay, state=now.state, seq=now.seq, hash=now.hash, time=now.time)
    if spool and sound and not spooling:
        lease.unspool(budget=store.budget)
        spool.remove()
        writer.stop_spooling()
        spool = None
    blobs = Blobs(store, epoch=lease.epoch, parallel=min(BLOBS_AT_ONCE, store.parallel))
    return OpenedJob(store.bucket, store.keys, lease, writer, blobs, replay, spool)


def read_end(log: JobStore, seen: StoredLease | None) -> Tail:
    """R1: the log's newest segment, which has the highest epoch in it: epochs never go down. Damaged, also where the
    log ends before the lease says, or in another record: an opening there would hide what is missing."""
    known = reader.KnownEnd.by(seen)
    end = log.call(lambda: reader.read_tail(log.bucket, log.keys, known.seq))
    if why := known.lacks(log.keys.job, end.seq, end.hash):
        raise Damaged(why)
    return end


def newest_snapshot_seq(log: JobStore) -> int:
    """For retention (R4): the replay that follows can begin from no snapshot older than this one, if it counts."""
    return log.call(lambda: max(reader.list_snapshots(log.bucket, log.keys), default=0))


def may_continue_replay(newest: int, began: int) -> bool:
    """Whether a replay that began from snapshot `began` may be read on, when `newest` is listed behind the opening."""
    return newest <= began


def replay_for_plan(log: JobStore, before: Replay, at: Tail) -> Replay:
    """R2: the replay that the plan may see ends at the own opening and is read after it landed. It goes on from what
    was read `before`, since segments never change and each names the one before it, but never from an older snapshot
    than is there by now: retention deletes what only that one names (R4). Fenced: a newer owner has passed (this host
    slept), and its retention has taken what should be read here."""
    steady, keys = log.steady, log.keys
    if may_continue_replay(max(reader.list_snapshots(steady, keys), default=0), before.snapshot):
        replay = reader.continue_replay(steady, keys, before, at.seq, parallel=log.parallel)
    else:
        replay = reader.replay(steady, keys, at.seq, parallel=log.parallel)
    if replay.damage is not None and (newer := reader.newest_after(steady, keys, at.seq)).epoch > at.epoch:
        raise Fenced(f"Job {keys.job} was taken over (epoch {newer.epoch}) while epoch {at.epoch} was opening.")
    return replay


def close_job(
    job: OpenedJob,
    wanted: Literal["closed", "released"],
    reason: str = "",
    *,
    until: float = 0.0,
    budget: float = 10.0,
) -> Literal["closed", "released", "left"]:
    """R6: seal the writer, then settle the lease; what it was settled as. "left": something was not decided within
    `budget` seconds (for each of the two), so the lease is left to run out: a crash is a crash. What waits is spooled
    then, where the run does that (R9). `until`: the job is paused so long.

    The caller has stopped answering hooks. `closed` with open intents, or steps without an end, becomes `released`.
    Fenced, Damaged."""
    if not job.writer.seal(budget):
        while job.writer.spool_once(at_once=True):
            pass
        return "left"
    if job.spool is not None and not job.spool.empty:
        return "left"  # a damaged log: what an earlier run spooled could not be carried in
    open_ends = len(job.writer.state.unlooked) + len(job.writer.state.undecided_steps)
    state = final_lease_state(wanted, open_ends)
    try:
        seq, end = last_record(job.writer)
        job.lease.settle(state, reason, seq=seq, end=end.hex(), until=until, budget=budget)
    except Unavailable as error:
        job.writer.trouble = error
        return "left"
    if job.spool is not None:
        job.spool.remove()
    return state


def last_record(writer: Writer) -> tuple[int, bytes]:
    """Number and hash of the last record of a sealed log: nothing can follow it under this epoch."""
    return writer.acked.seq, writer.acked.hash


def describe_unsaved(job: OpenedJob) -> str:
    """For a person, when close_job gave "left": where what the bucket lacks is, and what is nowhere."""
    lost, spool = job.writer.unspooled, job.spool
    if spool is None or spool.empty:
        kept = "What was acknowledged is safe; the next run recovers from there."
    else:
        held = "1 segment is" if spool.count == 1 else f"{spool.count} segments are"
        kept = (
            f"{held} in {spool.folder}: the next start on this machine carries them in, and no other machine starts "
            "the job without --accept-loss."
        )
    if spool is None or not lost:
        return kept
    return f"{lost} record{'s' * (lost > 1)} could not be written to {spool.folder} and end with this run. {kept}"

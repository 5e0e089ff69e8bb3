"""Delete a job from its bucket, for `wal-agent rm`, so that no run of before can ever write to it again; and what a job
at rest no longer needs, for `wal-agent gc`.

The log is the lock, so the job is opened first (R1). What locks old runs out stays, as R4 wants it: the lease, each
opening, the segment before each, and two snapshots of an empty state that make the rest of the log unneeded
(docs/decisions/045). Whatever happens in between, the log is whole: the same command goes on with it.

`gc` deletes by R4 without opening anything, and so leaves the blobs of the newest epoch to their own run, which is over
where a job is at rest. If these are many, the job is opened for a moment: two snapshots behind the opening make its
epoch past (docs/decisions/057).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from msgspec.structs import replace

from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket, Entry
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import Conflict, Unavailable, UsageError
from wal_agent.operate.at_rest import JobAccess, act_unowned, leaving
from wal_agent.records import End, Progress, state_text
from wal_agent.recovery.lease_policy import REMOVED
from wal_agent.text import command, job_command, job_option
from wal_agent.wal import codec, reader
from wal_agent.wal.codec import Snapshot
from wal_agent.wal.damage import sound_state
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease
from wal_agent.wal.reader import Fetched
from wal_agent.wal.retention import (
    BATCH,
    Mirror,
    Retention,
    RetentionResult,
    Snapshots,
    Tally,
    keeps_before_opening,
    keeps_opening,
    openings_known_from,
)
from wal_agent.wal.state import State

WHY: Final = "a person deleted the job"
COMMIT_TRIES = 100
MAX_NAMES = 10_000  # blobs whose names `gc` holds in memory
FEW = 50  # blobs of the last run that a job at rest may keep
CLEANED: Final = "a person deleted what the job no longer needs"


class Removal(JsonAnswer, frozen=True, tag=schema_name("rm")):
    """What `wal-agent rm` deletes, or has deleted: objects and their bytes. `open_calls`: no start
    asks what became of them any more. `kept`: small objects that lock old runs out."""

    job: str
    segments: Tally
    snapshots: Tally
    blobs: Tally
    open_calls: tuple[str, ...] = ()
    kept: int = 0
    dry_run: bool = False  # nothing was deleted

    @property
    def size(self) -> int:
        return self.segments.size + self.snapshots.size + self.blobs.size


class Collected(RetentionResult, JsonAnswer, frozen=True, kw_only=True, tag=schema_name("gc")):
    """`wal-agent gc`: what was deleted. `dry_run`: nothing was, and this is what would be."""

    job: str
    bucket: str
    dry_run: bool


def _names(state: State) -> tuple[str, ...]:
    return tuple(f"#{o.intent.call} {o.intent.tool} ({state_text(o.state)})" for o in state.open)


def foresee_removal(bucket: Bucket, keys: Keys, state: State) -> Removal:
    """Return what `remove_job` would delete now. Reads only. `state`: of the log."""
    names = _names(state)
    kept = _kept_segments(bucket, keys, state)
    doomed = [entry for entry in bucket.list(keys.log) if keys.seq_of(entry.key) not in kept]
    snapshots, blobs = _tally(bucket.list(keys.snapshots)), _tally(bucket.list(keys.blobs))
    return Removal(keys.job, _tally(iter(doomed)), snapshots, blobs, names, len(kept) + 4)


def names_task(bucket: Bucket, caller: str, job: str) -> bool:
    """Return whether the log of the job `caller` names `job` as its task's, so that it is a trace there."""
    try:
        found = reader.replay(bucket, Keys(caller))
    except UsageError:  # no job can have that name
        return False
    return found.damage is None and job in found.state.tasks


def remove_job(at: JobAccess, clock: Clock) -> Removal:
    """Delete the job.

    UsageError: there is none; LeaseHeld: somebody runs it; Damaged: its log cannot be opened; Denied: it is encrypted
    with another key; Unavailable: the bucket stopped answering, and the same command goes on."""
    return act_unowned(at, at.lease(), lambda job: _empty(at.bucket, at.keys, job, clock))


def collect(bucket: Bucket, keys: Keys) -> RetentionResult:
    """Delete what may go beside any run. Unavailable, Denied."""
    retention = Retention(bucket, keys, most=MAX_NAMES)
    done = retention.run()
    while done.more:
        done = _with(retention.run(), done)
    return done


def blobs_at_rest(bucket: Bucket, keys: Keys, seen: StoredLease | None) -> Tally | None:
    """Return the blobs that may go once the job is opened (`collect_at_rest`); None where it runs, or where that would
    let few more go than `collect` does. Reads only. `seen`: the job's lease. Unavailable, Denied."""
    if seen is None or seen.doc.state not in ("closed", "released"):
        return None
    retention = Retention(bucket, keys, most=MAX_NAMES)
    opened = retention.plan(over=seen.doc.epoch).loose
    if opened.count < FEW:
        return None
    return opened if opened.count >= FEW + retention.plan().loose.count else None


def collect_at_rest(at: JobAccess) -> RetentionResult:
    """Open a job at rest, so that blobs of its last run may go too, and leave it as it was. What its log has
    before that goes as well.

    LeaseHeld: a run has it; Damaged: its log cannot be opened; Unavailable: the same command goes on."""
    seen, bucket, keys = at.lease(), at.bucket, at.keys
    state: Literal["closed", "released"] = "closed" if seen.doc.state == "closed" else "released"

    def act(job: OpenedJob) -> RetentionResult:
        with leaving(job, seen, state, seen.doc.reason):
            with tempfile.TemporaryDirectory(prefix="wal-agent-") as folder:
                snapshots = Snapshots(bucket, keys, job.writer, Mirror(Path(folder), job.blobs))
                snapshots.take()
                job.writer.append(Progress(time=SystemClock().now(), note=CLEANED, by="person"))
                _commit(job, job_command("gc", keys.job, bucket.url))
                snapshots.take()
            return collect(bucket, keys)

    return act_unowned(at, seen, act)


def _with(done: RetentionResult, before: RetentionResult) -> RetentionResult:
    return replace(
        done,
        segments=before.segments + done.segments,
        snapshots=before.snapshots + done.snapshots,
        blobs=before.blobs + done.blobs,
    )


def _empty(bucket: Bucket, keys: Keys, job: OpenedJob, clock: Clock) -> Removal:
    state, now = sound_state(job.replay), clock.now()
    names = _names(state)
    for each in state.open:  # I8
        job.writer.append(End(time=now, call=each.intent.call, how="resolved", by="person", why=WHY))
    typed = command(f"rm {keys.job}", job_option(keys.job, bucket.url).removeprefix(f"--job {keys.job}"))
    _commit(job, typed)
    first = _snapshot(bucket, keys, job)
    job.writer.append(Progress(time=now, note=WHY, by="person"))
    _commit(job, typed)
    second = _snapshot(bucket, keys, job)
    old = (e for e in bucket.list(keys.snapshots) if keys.seq_of(e.key) not in (first, second))
    snapshots = _delete(bucket, old)
    blobs = _delete(bucket, bucket.list(keys.blobs))
    kept = _kept_segments(bucket, keys, job.writer.state)
    stay = kept | {first, second}
    segments = _delete(bucket, (e for e in bucket.list(keys.log) if keys.seq_of(e.key) not in stay))
    if close_job(job, "closed", REMOVED) != "closed":
        raise Unavailable("The bucket did not take the last change.", f"Once more: {command}")
    return Removal(keys.job, segments, snapshots, blobs, names, len(stay) + 3)


def _commit(job: OpenedJob, command: str) -> None:
    """Unavailable: what was appended is not acknowledged; `command` goes on."""
    for _ in range(COMMIT_TRIES):
        if not job.writer.pending:
            return
        job.writer.commit_once()
    raise Unavailable("The bucket does not take the change.", f"Once more: {command}")


def _snapshot(bucket: Bucket, keys: Keys, job: OpenedJob) -> int:
    """Store a snapshot of an empty state at the newest segment, and return its number. Its openings are those of the
    log, which lock old runs out, but none of them is a crash: those were the deleted job's."""
    at = job.writer.acked
    quiet = tuple(replace(each, opening=replace(each.opening, cause="closed")) for each in at.state.openings)
    empty = State(
        epoch=at.state.epoch,
        openings=quiet,
        opened=at.state.opened,
        turned=0,
        next_call=at.state.next_call,
        time=at.state.time,
    )
    made = Snapshot(format=1, job=keys.job, seq=at.seq, hash=at.hash, state=empty, time=at.time)
    try:
        bucket.put(keys.snapshot(at.seq), codec.encode_snapshot(made, job.writer.sign))
    except Conflict:  # a lost reply: nobody else makes one at an opening of ours, or behind it
        if reader.read_snapshot(bucket, keys, at.seq) is None:
            raise
    return at.seq


def _kept_segments(bucket: Bucket, keys: Keys, state: State) -> set[int]:
    """Return the segments that stay: each opening and the one before it (R4). Those that the state does not name any
    more are looked for; what cannot be read stays."""
    openings, known = {o.seq for o in state.openings}, openings_known_from(state)
    seqs = [seq for e in bucket.list(keys.log) if (seq := keys.seq_of(e.key)) is not None]
    older = [seq for seq in seqs if seq < known]
    unread: set[int] = set()
    for seq, found in reader.fetch_segments(bucket, keys, older):
        if not isinstance(found, Fetched):
            unread.add(seq)
        elif found.segment.opening is not None:
            openings.add(seq)
    return {s for s in seqs if s in unread or keeps_opening(s, openings) or keeps_before_opening(s, openings)}


def _delete(bucket: Bucket, doomed: Iterator[Entry]) -> Tally:
    done = Tally()
    while some := list(islice(doomed, BATCH)):
        bucket.delete(*(entry.key for entry in some))
        done += _tally(iter(some))
    return done


def _tally(entries: Iterator[Entry]) -> Tally:
    return sum((Tally(1, entry.size) for entry in entries), Tally())

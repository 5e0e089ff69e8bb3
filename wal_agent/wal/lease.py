"""The lease: its bytes, the rules of timing as pure functions, and who tries to open a job, and when (R1, R6-R8, R10).

It decides timing only; the log is the lock (I2). All act by compare-and-swap on the one object, lease.json. Every write
has a fresh nonce, because S3 gives equal bytes equal versions.
"""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec.structs import replace

from wal_agent import msgspec_compat
from wal_agent.bucket.base import Bucket, Object, Version
from wal_agent.errors import Conflict, Damaged, Fenced, LeaseHeld, Newer, NotFound, Unavailable
from wal_agent.records import FORMAT, Host, Owner
from wal_agent.text import job_command, shorten
from wal_agent.wal.keys import MAX_SEQ, Keys
from wal_agent.wal.reader import Tail

if TYPE_CHECKING:
    from wal_agent.wal.store import JobStore

LeaseState = Literal["held", "closed", "released", "unlocked"]

MAX_BYTES = 64 << 10
MAX_TTL = 86_400.0
DUE_NOW = 0.001  # seconds: a pause that was over when it was written, so the job is due; no pause would not say so
STRETCH = 4.0  # times its ttl that a lease may say while the agent waits for a person
NOBODY = Owner()

_TTL = re.compile(rb'"ttl"\s*:\s*([0-9]{1,6}(?:\.[0-9]{1,20})?)\s*[,}]')


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
    owner: Owner = Owner()


class _Head(msgspec.Struct, frozen=True):
    format: int


_DOC = msgspec_compat.of_json(LeaseDoc)
_HEAD = msgspec_compat.of_json(_Head)


class StoredLease(msgspec.Struct, frozen=True):
    """A lease as read. `updated` and `now` are by the store's clock."""

    doc: LeaseDoc
    version: Version
    updated: float
    now: float


class LeaseRequest(msgspec.Struct, frozen=True):
    """What a run that acquires the lease writes into it."""

    run: str
    host: Host
    agent: str
    workspace: str
    ttl: float
    spool: str = ""
    key: str = ""
    owner: Owner = NOBODY
    phase: str = ""  # of a run, until its first renewal; where that has something to recover: "recovering"


# --- pure rules


def timing_holds(ttl: float, deadline: float, period: float) -> bool:
    """Whether a renewal every `period` s that gives up after `deadline` s is done before `ttl` s have passed."""
    return ttl > deadline > 1.2 * period > 0


def may_allow(now: float, sent: float, ttl: float, margin: float) -> bool:
    """R7: whether an allow may still be sent at `now`, when the last renewal that succeeded was *sent* at `sent` (both
    boot time of this host, so that suspended time counts)."""
    return 0 <= now - sent < ttl - margin


def longest_ttl(ttl: float) -> float:
    """What a lease of a run with this `ttl` says at most."""
    return min(STRETCH * ttl, MAX_TTL)


def is_mine(doc: LeaseDoc, run: str, epoch: int) -> bool:
    """R10: same run and epoch, whatever the nonce: an own write that was thought lost may have landed late."""
    return doc.run == run and doc.epoch == epoch


def next_epoch(lease_epoch: int, log_epoch: int) -> int:
    """R1: above everything ever seen, also when the lease was deleted by hand or by a lifecycle rule."""
    return max(lease_epoch, log_epoch) + 1


def final_lease_state(wanted: Literal["closed", "released"], unlooked: int) -> Literal["closed", "released"]:
    """R6: `closed` is written only if something looked at the effect of each open call, and no step is open."""
    return "released" if unlooked else wanted


# --- bytes


def find_ttl(damaged: bytes) -> float | None:
    """What bytes that are no lease still say of the longest time that their owner may go on; None: nothing."""
    ttls = [float(number) for number in _TTL.findall(damaged[:MAX_BYTES])]
    return max((ttl for ttl in ttls if 0 < ttl <= MAX_TTL), default=None)


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
    if (form := find_format(data)) > FORMAT:
        raise Newer.of(f"The lease of job {job}", f"format {form}")
    try:
        doc = _DOC.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"The lease of job {job} is damaged: {shorten(str(error))}.") from error
    if not 0 <= doc.host.pid <= MAX_SEQ or not all(map(math.isfinite, (doc.started, doc.time, doc.since, doc.until))):
        raise Damaged(f"The lease of job {job} is damaged: a number in it is none that can be written.")
    if doc.job != job:
        raise Damaged(f"The lease of job {job} is damaged: it names job {shorten(repr(doc.job))}.")
    return doc


def read_lease(bucket: Bucket, keys: Keys) -> StoredLease | None:
    """Return the stored lease, None when there is none; Damaged (with the way out), Unavailable, Denied."""
    try:
        stored = bucket.get(keys.lease)
    except NotFound:
        return None
    except Damaged as error:
        what = f"The lease of job {keys.job} is damaged: {error.what}"
        raise Damaged(what, _repair(bucket, keys)) from error
    try:
        return StoredLease(decode_lease(stored.data, keys.job), stored.version, stored.updated, stored.now)
    except Damaged as error:
        raise Damaged(error.what, _repair(bucket, keys)) from error


def _repair(bucket: Bucket, keys: Keys) -> str:
    return f"Put a sound one in its place with: {job_command('unlock', keys.job, bucket.url)} --damaged"


def fresh_nonce(rng: random.Random) -> str:
    return f"{rng.getrandbits(128):032x}"


def lease_lost_error(mine: LeaseDoc, seen: StoredLease | None) -> Fenced:
    """The sentence for the run of `mine`, whose lease is another's (or nobody's) now."""
    job, epoch = mine.job, mine.epoch
    if seen is None:
        return Fenced(f"The lease of job {job} was deleted; this run (epoch {epoch}) cannot hold it any more.")
    doc = seen.doc
    if doc.state == "unlocked" and doc.epoch == epoch:
        return Fenced(f"Job {job} was unlocked by hand ({doc.reason or 'no reason given'}); this run has ended.")
    if not is_mine(doc, mine.run, epoch):
        return Fenced(f"Job {job} was taken over by {doc.host.name} (epoch {doc.epoch}); this run had epoch {epoch}.")
    return Fenced(f"The lease of job {job} says {doc.state} (epoch {epoch}); this run has ended.")


def acquire(store: JobStore, *, seen: StoredLease | None, claim: LeaseRequest, log_epoch: int) -> Lease:
    """Take the lease from exactly `seen`, under the next epoch. LeaseHeld: someone else was faster; Unavailable;
    Damaged: there is no next one."""
    bucket, keys, clock, rng = store.bucket, store.keys, store.clock, store.rng
    epoch = next_epoch(seen.doc.epoch if seen else 0, log_epoch)
    if epoch > MAX_SEQ:
        raise Damaged(f"Job {keys.job} says epoch {epoch - 1}; there is none above.", "Use another: --job NAME.")
    now = clock.now()
    doc = LeaseDoc(
        format=1,
        job=keys.job,
        epoch=epoch,
        run=claim.run,
        nonce=fresh_nonce(rng),
        state="held",
        host=claim.host,
        agent=claim.agent,
        workspace=claim.workspace,
        started=now,
        ttl=claim.ttl,
        seq=seen.doc.seq if seen else 0,
        time=now,
        spool=claim.spool,
        key=claim.key,
        owner=claim.owner,
        phase=claim.phase,
    )
    version = seen.version if seen else None
    retries = store.retries()
    while True:
        sent = clock.boot()
        try:
            return Lease(store, doc, bucket.put(keys.lease, encode_lease(doc), if_version=version), sent)
        except Conflict:
            refused = True
        except Unavailable as error:
            refused = False
            retries.pause(error)
        # Undecided, or the stored lease may be this very write (R10): read it, and send again.
        try:
            stored = read_lease(bucket, keys)
        except Unavailable as error:
            retries.pause(error)
            continue
        if (stored.version if stored else None) == version:
            if refused:
                retries.pause(_refused_error(keys))
        elif stored is not None and is_mine(stored.doc, claim.run, epoch) and stored.doc.state == "held":
            version = stored.version
        else:
            who = f"{stored.doc.host.name} (epoch {stored.doc.epoch})" if stored else "someone who deleted its lease"
            raise LeaseHeld(f"Job {keys.job} was taken by {who} at the same moment.", "Try again, or use --wait.")
        doc = replace(doc, nonce=fresh_nonce(rng))


def unlock(store: JobStore, *, seen: StoredLease, reason: str, off: bool = False) -> LeaseDoc:
    """R8: set exactly the lease that was shown (`seen`: its epoch and nonce) to `unlocked`. It is not deleted and its
    epoch stays, so that the next owner's is higher. `off`: the old host is known to be off, nobody waits one ttl.

    LeaseHeld when the owner renewed or settled it meanwhile; Unavailable."""
    unlocked = replace(seen.doc, state="unlocked", reason=reason, off=off)
    done, stored = _replace_seen(store, seen, lambda now: unlocked)
    if done is not None:
        return done
    if stored is None or stored.doc.epoch != seen.doc.epoch:
        raise lease_lost_error(seen.doc, stored)
    if stored.doc.state == "unlocked":
        return stored.doc  # another person's
    raise LeaseHeld(
        f"The lease of job {seen.doc.job} changed while it was being unlocked: its owner on "
        f"{stored.doc.host.name} (pid {stored.doc.host.pid}) lives.",
        f"Stop it there, or look again: {job_command('status', seen.doc.job, store.bucket.url)}",
    )


def _replace_seen(
    store: JobStore, seen: StoredLease, change: Callable[[float], LeaseDoc]
) -> tuple[LeaseDoc | None, StoredLease | None]:
    """Put `change(now)` in the place of exactly the lease that was `seen`, and return it; or None and the lease that is
    stored by now (None: there is none). Unavailable: it is not known whether that landed."""
    bucket, keys = store.bucket, store.keys
    retries, version, sent = store.retries(), seen.version, set[str]()
    while True:
        now = store.clock.now()
        doc = replace(change(now), nonce=fresh_nonce(store.rng), time=now)
        sent.add(doc.nonce)
        try:
            bucket.put(keys.lease, encode_lease(doc), if_version=version)
            return doc, None
        except Conflict:
            error = _refused_error(keys)
        except Unavailable as away:
            error = away
        try:
            stored = read_lease(bucket, keys)
        except Unavailable as away:
            retries.pause(away)
            continue
        if stored is not None and stored.doc.nonce in sent:
            return stored.doc, stored  # it had landed, its reply was lost
        if stored is None or stored.doc.nonce != seen.doc.nonce:
            return None, stored
        version = stored.version  # it has not landed; who copies an object onto itself gives it another version
        retries.pause(error)


def _refused_error(keys: Keys) -> Unavailable:
    return Unavailable(f"The bucket refuses to replace the lease of job {keys.job}, although it is unchanged.")


class Lease:
    """A lease that this run holds. Threads may share it; one write is in flight at a time."""

    def __init__(self, store: JobStore, doc: LeaseDoc, version: Version, sent: float) -> None:
        self._store, self._bucket, self._keys, self._clock = store, store.bucket, store.keys, store.clock
        self._doc, self._version = doc, version
        self._lock = threading.Lock()
        self._ended: Fenced | None = None
        self._settling = False
        self._bound = doc.ttl
        self.sent = sent
        """Boot time at which the last write that succeeded was *sent* (R7)."""

    @property
    def doc(self) -> LeaseDoc:
        """As last written by this run."""
        return self._doc

    @property
    def epoch(self) -> int:
        return self._doc.epoch

    @property
    def ttl(self) -> float:
        """How long this run may count on its newest write that succeeded (R7): the shortest ttl that it has sent
        from that one on. A shorter one that was thought lost may have landed, and who takes the lease goes by it."""
        return self._bound

    @property
    def held(self) -> bool:
        """Whether nothing is known that ended it; what R7 asks of a job that spools: no timeout takes it (R9)."""
        return self._ended is None and not self._settling

    def may_allow(self, margin: float) -> bool:
        """R7, by this host's clock now. Ask it last, right before the allow is sent."""
        return self.held and may_allow(self._clock.boot(), self.sent, self._bound, margin)

    def renew(
        self, *, phase: str = "", tool: str = "", seq: int = 0, since: float = 0.0, ttl: float | None = None
    ) -> None:
        """One heartbeat. `ttl`: what the lease says from now on; None: as it does. Unavailable: not decided, call
        again; Fenced: the lease is another's, for good."""
        with self._lock:
            if self._settling:
                return  # the renewer was on its way here; a held lease must not follow a settled one
            held = self._next("held", phase=phase, tool=tool, seq=max(seq, self._doc.seq), since=since)
            self._write(held if ttl is None else replace(held, ttl=ttl))

    def unspool(self, *, budget: float = 10.0) -> None:
        """R9: all that was spooled is in the log, and this run spools no more: the job is as any other from now on.
        Unavailable; Fenced."""
        retries = self._store.retries(budget)
        with self._lock:
            while self._doc.spool:
                try:
                    self._write(replace(self._next("held", seq=self._doc.seq), spool=""))
                except Unavailable as error:
                    retries.pause(error)

    def settle(
        self,
        state: Literal["closed", "released"],
        reason: str = "",
        *,
        seq: int = 0,
        end: str = "",
        until: float = 0.0,
        budget: float = 10.0,
    ) -> None:
        """R6: give the job up. The caller has sealed its writer before. Unavailable: it is left to run out; Fenced.
        `seq`, `end`: number and hash of the last record, so that a log which ends before it, or in another one, is
        found to be damaged. `until`: paused so long; where that is over by now, the job is due.

        A renewal that hangs in the bucket is not waited for beyond the budget either."""
        retries = self._store.retries(budget)
        self._settling = True
        if not self._lock.acquire(timeout=budget):
            raise Unavailable(f"The lease of job {self._keys.job} was not settled: a renewal of it hangs.")
        try:
            while self._doc.state == "held":
                try:
                    settled = self._next(state, seq=max(seq, self._doc.seq))
                    self._write(replace(settled, reason=reason, end=end, until=until))
                except Unavailable as error:
                    retries.pause(error)
        finally:
            self._lock.release()

    def _next(self, state: LeaseState, *, seq: int, phase: str = "", tool: str = "", since: float = 0.0) -> LeaseDoc:
        """What the lease says next: as now, without what only the last write had to say."""
        return replace(
            self._doc, state=state, seq=seq, phase=phase, tool=tool, since=since, reason="", end="", until=0.0
        )

    def _write(self, wanted: LeaseDoc) -> None:
        """Put the lease; on a conflict read whose it is (R10), adopt its version and send again."""
        if self._ended is not None:
            raise self._ended
        while True:
            now = self._clock.now()
            doc = replace(
                wanted,
                until=max(wanted.until, now + DUE_NOW) if wanted.until > 0 else 0.0,
                beat=self._doc.beat + 1,
                nonce=fresh_nonce(self._store.rng),
                time=now,
            )
            self._bound = min(self._bound, doc.ttl)  # before it is sent: it may land although no reply comes
            sent = self._clock.boot()
            try:
                version = self._bucket.put(self._keys.lease, encode_lease(doc), if_version=self._version)
            except Conflict:
                stored = read_lease(self._bucket, self._keys)
                if (
                    stored is None
                    or not is_mine(stored.doc, doc.run, doc.epoch)
                    or stored.doc.state not in ("held", doc.state)
                ):
                    self._ended = lease_lost_error(doc, stored)
                    raise self._ended from None
                if stored.version == self._version:
                    raise _refused_error(self._keys) from None
                self._version = stored.version
                if stored.doc.state == doc.state != "held":
                    self._doc = stored.doc  # the own settling had landed, its reply was lost
                    return
            else:
                self._doc, self._version, self.sent, self._bound = doc, version, sent, doc.ttl
                return


def reschedule_pause(store: JobStore, *, seen: StoredLease, lasts: float, reason: str) -> LeaseDoc:
    """Pause exactly the released lease that was `seen` for `lasts` seconds from now on; 0: its pause is over, and
    the job is due.

    LeaseHeld: it was taken, or changed, at the same moment; Unavailable: it is not known whether that landed."""

    def pause(now: float) -> LeaseDoc:
        return replace(seen.doc, until=now + max(lasts, DUE_NOW), reason=reason)

    done, _ = _replace_seen(store, seen, pause)
    if done is None:
        raise LeaseHeld(
            f"The lease of job {store.keys.job} changed at the same moment.",
            f"See: {job_command('status', store.keys.job, store.bucket.url)}",
        )
    return done


class Repaired(msgspec.Struct, frozen=True):
    """The lease that is stored now. `said`: the damaged one still had its owner's ttl."""

    doc: LeaseDoc
    said: bool


class _StoredLease(msgspec.Struct, frozen=True):
    """The stored object: `sound` where it is a lease, else the ttl that it still has."""

    version: Version | None = None
    sound: LeaseDoc | None = None
    ttl: float | None = None


def replace_damaged_lease(
    store: JobStore, *, tail: Tail, ttl: float, key: str, reason: str, off: bool = False
) -> Repaired:
    """Put an unlocked lease with the epoch of the log's end (`tail`) in the place of the damaged one, by its version.

    The epoch may be below the lost one: an owner may have raised it and not opened yet. The next owner then has the
    same epoch, and only the first of the two gets its opening into the log (R1). `ttl`: how long the next owner waits
    at least; longer where the lost lease still says so, and as long as such a lease can say where it says nothing;
    `key`: id of the key that the log is encrypted with. LeaseHeld: a sound lease is stored, or another one than a
    moment ago; Unavailable."""
    bucket, keys, now = store.bucket, store.keys, store.clock.now()
    doc = LeaseDoc(
        format=1,
        job=keys.job,
        epoch=max(1, tail.epoch),
        run="",
        nonce=fresh_nonce(store.rng),
        state="unlocked",
        host=Host(name="unknown", boot="", pidns="", pid=0, lock=""),
        agent="",
        workspace="",
        started=now,
        ttl=longest_ttl(ttl),
        seq=tail.seq,
        reason=reason,
        time=now,
        off=off,
        key=key,
    )
    retries, said = store.retries(), False
    while True:
        try:
            stored = _read_stored(bucket, keys)
            if stored.sound is not None and stored.sound.nonce == doc.nonce:
                return Repaired(doc, said)  # an own write whose reply was lost
            if stored.sound is not None:
                state, epoch = stored.sound.state, stored.sound.epoch
                raise LeaseHeld(f"The lease of job {keys.job} is sound again: {state}, epoch {epoch}.")
            if stored.ttl is not None:
                doc, said = replace(doc, ttl=max(ttl, stored.ttl)), True
            bucket.put(keys.lease, encode_lease(doc), if_version=stored.version)
            return Repaired(doc, said)
        except (Conflict, Unavailable) as error:
            retries.pause(error)


def _read_stored(bucket: Bucket, keys: Keys) -> _StoredLease:
    """Read the stored object, and what it says.

     An object that its bucket itself cannot read has no version to replace, so it is deleted: read once more right
    before, because by then it may be another person's repair, or the lease of the owner behind that. Whoever opens the
     job before the new lease is stored finds none, and takes its epoch from the log."""
    try:
        stored = _get_or_damage(bucket, keys)
        if isinstance(stored, Damaged):
            again = _get_or_damage(bucket, keys)
            if isinstance(again, Damaged) and again.what != stored.what:
                again_with = f"Look again: {job_command('status', keys.job, bucket.url)}"
                raise LeaseHeld(f"The lease of job {keys.job} changed meanwhile.", again_with)
            if isinstance(again, Damaged):
                bucket.delete(keys.lease)
                return _StoredLease()
            stored = again
    except NotFound:
        return _StoredLease()
    try:
        return _StoredLease(stored.version, decode_lease(stored.data, keys.job))
    except Damaged:
        return _StoredLease(stored.version, ttl=find_ttl(stored.data))


def _get_or_damage(bucket: Bucket, keys: Keys) -> Object | Damaged:
    try:
        return bucket.get(keys.lease)
    except Damaged as error:
        return error

"""Append to the log: group commit, one put in flight, fenced by the segment that it finds (I1, I2, I3, R3).

The queue is data: queued appends, their tickets, and encoded segments without an ack yet; the rules of R3 and R9 for
them are pure functions. `append` never does I/O. `commit_once` does one step of it, so that a test owns the order of
things; `run` is the thread that calls it in production. With a spool (R9) `spool_once` and `run_spooling` are the same
for what an outage holds up: a second thread, because a put may hang.

An append says how long it may wait for company (`Wait`). One put is in flight at a time, so a put of ends and captures
alone would stand in front of the next intent for a round trip; they wait for that intent, and go in its segment.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal

import msgspec
from msgspec.structs import replace

from wal_agent.bucket.decorators import backoff
from wal_agent.errors import BucketError, Conflict, Damaged, Denied, Fenced, Newer, NotFound, Unavailable, WalAgentError
from wal_agent.failpoints import failpoint
from wal_agent.records import AnyRecord
from wal_agent.wal import codec
from wal_agent.wal.spool import Spool
from wal_agent.wal.state import State, apply_all, rebase
from wal_agent.wal.store import JobStore

AckStatus = Literal["acked", "spooled", "undecided"]
"""`spooled`: durable on this machine only, while the bucket is away (R9)."""

_deciding = threading.Lock()  # one for all tickets: it is held for two assignments

SPOOL_AFTER = 3.0  # seconds that an append waits before the run takes it for an outage and spools
GATHER, MAX_GATHER = 0.3, 0.01  # of a put's time, and seconds: how long calls that follow each other are gathered
SPOOL_POLL = 0.1  # seconds between two checks whether an append has waited so long


class Ticket:
    """Of one append. `seq` is the segment that holds it, once acknowledged; 0 before."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: WalAgentError | None = None
        self._spooled = False
        self._when_acked: Callable[[], None] | None = None
        self.seq = 0

    @property
    def status(self) -> AckStatus:
        """As of now; raises Fenced or Damaged when it will never be acknowledged."""
        if self._error is not None:
            raise self._error
        if self.seq:
            return "acked"
        return "spooled" if self._spooled else "undecided"

    def wait(self, timeout: float) -> AckStatus:
        """`status` once it is acked or spooled, or after `timeout` seconds. "undecided" is no failure: the record stays
        in the queue and may still be acknowledged (R3); the caller ends its call as denied."""
        self._event.wait(timeout)
        return self.status

    def when_acked(self, act: Callable[[], None]) -> None:
        """Do `act` once it is acknowledged, in the thread that commits; at once where it is. It must be quick, and must
        not fail."""
        with _deciding:
            if not self.seq:
                self._when_acked = act
                return
        act()

    def ack(self, seq: int) -> None:
        with _deciding:
            self.seq = seq
            act, self._when_acked = self._when_acked, None
        self._event.set()
        if act is not None:
            act()

    def spool(self) -> None:
        self._spooled = True
        self._event.set()

    def fail(self, error: WalAgentError) -> None:
        self._error = error
        self._event.set()


class Sealed(WalAgentError):
    """Appending to a writer that was sealed (R6)."""


class Acked(msgspec.Struct, frozen=True):
    """The log as acknowledged to this writer, and only that: what a snapshot may cover (R5)."""

    seq: int
    hash: bytes
    state: State
    segments: int  # since the snapshot that replay began from
    size: int  # their bytes
    time: float  # of segment `seq`


class Wait(msgspec.Struct, frozen=True):
    """How long an append may wait for another one to share a segment with: `puts` times what a put takes, between
    `least` and `most` seconds. Whatever is due sooner takes it along, so its place in the log is not changed."""

    puts: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def seconds(self, put_time: float) -> float:
        return min(self.most, max(self.least, self.puts * put_time))


NOW = Wait()  # whoever appends it waits for the acknowledgement
CALL = Wait(puts=0.05, most=0.002)  # the intent of a call that may change something: others may begin with it
SOON = Wait(puts=8, most=0.25)  # the outcome of a call, and a call that only reads
LATER = Wait(puts=32, most=1.0)  # what is captured again if it is lost: session and working tree
DEFERRED = Wait(least=5.0, most=5.0)  # not worth a put of its own


class QueuedAppend(msgspec.Struct, frozen=True):
    """One append on its way: all of its records go into one segment."""

    raw: tuple[bytes, ...]  # the MessagePack of each record
    ticket: Ticket
    since: float  # boot time
    wait: Wait = NOW

    @property
    def size(self) -> int:
        return sum(len(r) for r in self.raw)

    def due(self, put_time: float) -> float:
        """Boot time at which a put is due for it, where one put takes `put_time` seconds."""
        return self.since + self.wait.seconds(put_time)


class InFlight(msgspec.Struct, frozen=True):
    """An encoded segment (R3): its number and its bytes never change. They are all that is kept of its records (I9)."""

    seq: int
    data: bytes
    tickets: tuple[Ticket, ...]  # one for each append in it
    since: float  # boot time of the oldest append
    size: int  # bytes of the records before they were packed
    records: int
    time: float
    carried: int = 0  # the epoch that its records are of, where that is an earlier one


class UnackedSegments(msgspec.Struct):
    """The segments that are encoded and not acknowledged, oldest first. Only the first is ever put; there are others
    only while the run spools (R9). The first `stored` of them are in the spool."""

    segments: deque[InFlight] = msgspec.field(default_factory=deque)
    stored: int = 0

    @property
    def first(self) -> InFlight | None:
        return self.segments[0] if self.segments else None

    @property
    def last(self) -> InFlight | None:
        return self.segments[-1] if self.segments else None

    @property
    def unstored(self) -> InFlight | None:
        """The oldest one that is not in the spool."""
        return self.segments[self.stored] if self.stored < len(self.segments) else None

    @property
    def tickets(self) -> list[Ticket]:
        return [ticket for segment in self.segments for ticket in segment.tickets]

    @property
    def unspooled(self) -> int:
        """How many records are in none of the stored segments."""
        return sum(segment.records for segment in islice(self.segments, self.stored, None))

    def leave(self) -> bool:
        """The first one is acknowledged; whether it is in the spool."""
        self.segments.popleft()
        self.stored -= 1 if (was := self.stored > 0) else 0
        return was

    def store(self, segment: InFlight) -> bool:
        """`segment`, the oldest unstored one, is in the spool now. False: it has left the line meanwhile."""
        still = self.unstored is segment
        self.stored += still
        return still

    def clear(self) -> None:
        self.segments.clear()
        self.stored = 0


class Backlog(msgspec.Struct, frozen=True):
    """What is appended but not acknowledged: bytes, appends, and the age of the oldest in seconds."""

    size: int
    items: int
    age: float


# --- pure rules


def next_due(queue: Sequence[QueuedAppend], put_time: float) -> float:
    """Boot time at which the next put is due, where one takes `put_time` seconds; infinity while nothing waits. Calls
    that begin together share a segment: each one that follows soon holds the put up, within a bound."""
    due = min((item.due(put_time) for item in queue if item.wait is not CALL), default=math.inf)
    calls = [item for item in queue if item.wait is CALL]
    if not calls:
        return due
    return min(due, calls[-1].due(put_time), calls[0].since + min(MAX_GATHER, GATHER * put_time))


def must_spool(line: UnackedSegments, queue: Sequence[QueuedAppend], now: float, after: float) -> bool:
    """R9: whether what waits goes into the spool: at once while something is there already, so that the order stays;
    else when the outage has lasted, by what the oldest append has waited."""
    if line.stored:
        return True
    oldest = line.first or next((item for item in queue if item.wait is not DEFERRED), None)
    return oldest is not None and now - oldest.since >= after


def resolve_conflict(found: bytes, found_epoch: int, found_run: str, sent: InFlight, epoch: int, run: str) -> str:
    """R3: the segment that is stored at my seq is "mine" (byte for byte), of a higher epoch ("fenced"), or "damage"."""
    if found == sent.data:
        return "mine"
    return "fenced" if found_epoch > epoch else "damage"


Step = Literal["idle", "acked", "undecided", "ended"]


class WriterListener:
    """What a run does when its log moves on. The thread that commits calls these; they must be quick and must not
    fail."""

    def on_acked(self, records: Sequence[AnyRecord], state: State) -> None:
        """The bucket has a segment with `records`; `state` is the log's with them. Called for each segment, after the
        tickets of its appends."""

    def on_ended(self, error: WalAgentError) -> None:
        """The writer was fenced or met damage: nothing more can be appended. Called once."""


class Writer:
    """The only appender of one epoch. Threads may share it."""

    def __init__(
        self,
        store: JobStore,
        by: codec.Author,
        acked: Acked,
        spool: Spool | None = None,
        carried: Sequence[InFlight] = (),
    ) -> None:
        """`carried`: segments that are in the spool already and follow `acked`."""
        self._bucket, self._keys, self._clock, self._rng = store.bucket, store.keys, store.clock, store.rng
        self._by, self.epoch, self.run_id, self.sign = by, by.epoch, by.run, by.sign
        self._listeners: tuple[WriterListener, ...] = ()
        self._acked = acked
        self._queue: deque[QueuedAppend] = deque()
        self._line = UnackedSegments(deque(carried), len(carried))
        self._next_call = acked.state.next_call
        self._sealed = False
        self._flushing = False
        self._ended: WalAgentError | None = None
        self._lock = threading.Lock()  # the fields above; never held during I/O
        self._committing = threading.Lock()  # one step at a time
        self._spooling = threading.Lock()  # one segment at a time, in order
        self.trouble: BucketError | None = None  # why the newest put was not decided, as the bucket said
        self._put_time = 0.0  # seconds that a put takes, smoothed; only the thread that commits sets it
        self._wake_at = 0.0  # boot time until which the thread that commits waits
        self._work = threading.Event()
        self._waiting = threading.Event()
        self._spool = spool

    # --- what callers see

    def add_listener(self, listener: WriterListener) -> None:
        """Report to `listener` from now on. What happened before is in `state` and `ended`."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def append(self, *records: AnyRecord, wait: Wait = NOW) -> Ticket:
        """Queue the records for one segment, in order. Never blocks on I/O. ValueError: a record that could never be
        read back, or too much for a segment; Fenced, Damaged: the writer has ended; Sealed.

        `wait`: how long they may wait for company."""
        if not records:
            raise ValueError("nothing to append")
        item = QueuedAppend(tuple(codec.encode_record(r)[0] for r in records), Ticket(), self._clock.boot(), wait)
        if item.size > codec.MAX_SEGMENT - codec.OVERHEAD:
            raise ValueError(f"{item.size} bytes fit no segment; append them apart")
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if self._sealed:
                raise Sealed(f"The log of job {self._keys.job} is sealed; nothing more can be recorded in this run.")
            self._queue.append(item)
            wakes = item.due(self._put_time) < self._wake_at
        if wakes:
            self._work.set()
        if self._spool is not None and wait is not DEFERRED:
            self._waiting.set()
        return item.ticket

    def next_call(self) -> int:
        """A number for a call, used once in the job's life."""
        with self._lock:
            self._next_call += 1
            return self._next_call - 1

    @property
    def acked(self) -> Acked:
        """Seq, hash and state as of the last acknowledged segment, of one moment."""
        return self._acked

    @property
    def state(self) -> State:
        return self._acked.state

    @property
    def backlog(self) -> Backlog:
        with self._lock:
            sent, queued = tuple(self._line.segments), tuple(self._queue)
        now, oldest = self._clock.boot(), sent[0] if sent else queued[0] if queued else None
        return Backlog(
            size=sum(s.size for s in sent) + sum(i.size for i in queued),
            items=sum(len(s.tickets) for s in sent) + len(queued),
            age=now - oldest.since if oldest else 0.0,
        )

    @property
    def pending(self) -> bool:
        """Whether anything is appended but not acknowledged; in constant time."""
        with self._lock:
            return bool(self._line.segments or self._queue)

    @property
    def spooled(self) -> int:
        """How many segments are on this machine only (R9)."""
        return self._line.stored

    @property
    def unspooled(self) -> int:
        """How many records are neither acknowledged nor in the spool: they are lost with this process."""
        with self._lock:
            return self._line.unspooled + sum(len(i.raw) for i in self._queue)

    @property
    def ended(self) -> WalAgentError | None:
        """Fenced or Damaged, once this writer can append no more."""
        return self._ended

    def rebase(self, before: State, after: State) -> None:
        """Replace the files that `before` (what a snapshot was made of) holds by those of `after` (the same files,
        compacted), under whatever was layered on top since."""
        with self._lock:
            acked = self._acked
            self._acked = replace(acked, state=rebase(acked.state, before, after))

    # --- committing

    def commit_once(self) -> Step:
        """One step: put the segment in flight (the next batch, if none is), and decide it if that can be done."""
        with self._committing:
            return self._step()

    def run(self, stop: threading.Event) -> None:
        """Commit until `stop` is set or the writer has ended; undecided puts are sent again with capped backoff."""
        try:
            self._run(stop)
        except Exception as error:
            # A bug, or a bucket that breaks its contract. Nobody must wait for a thread that is gone (I5).
            self._end(WalAgentError(f"The log of job {self._keys.job} cannot be written any more: {error!r}."))
            raise

    def _run(self, stop: threading.Event) -> None:
        attempt = 0
        while not stop.is_set():
            self._work.clear()
            match self.commit_once():
                case "ended":
                    return
                case "acked":
                    attempt = 0
                case "idle":
                    self._await_work()
                case "undecided":
                    attempt += 1
                    stop.wait(backoff(attempt, self._rng))

    def _await_work(self) -> None:
        """Until the next put is due. What is appended meanwhile and is due before that ends the wait."""
        with self._lock:
            now = self._clock.boot()
            self._wake_at = min(now + 1.0, next_due(self._queue, self._put_time))
            left = self._wake_at - now
        self._work.wait(left)

    def seal(self, budget: float) -> bool:
        """R6: refuse appends from now on, decide the put in flight and flush the queue, within `budget` seconds.

        Whether everything is decided; the lease may be settled only then. Raises Fenced, Damaged."""
        with self._lock:
            self._sealed = True
        until = self._clock.boot() + budget
        if not self._empty(until):
            return False
        if self._ended is not None:
            raise self._ended
        # What was decided just now may still have to leave the spool, in either thread.
        for at_work in (self._committing, self._spooling):
            if not at_work.acquire(timeout=max(0.0, until - self._clock.boot())):
                return False
            at_work.release()
        return True

    def flush(self, budget: float) -> bool:
        """Put what is in the queue, deferred records too, within `budget` seconds. Whether all of it is decided; what
        ended the writer is in `ended`."""
        with self._lock:
            self._flushing = True
        try:
            return self._empty(self._clock.boot() + budget)
        finally:
            with self._lock:
                self._flushing = False

    def _empty(self, until: float) -> bool:
        """Put until nothing is left, or until `until` on the boot clock; whether nothing is left."""
        attempt = 0
        while self.pending:
            left = until - self._clock.boot()
            if left <= 0 or not self._committing.acquire(timeout=left):
                return False
            try:
                step = self._step()
            finally:
                self._committing.release()
            if step == "undecided":
                attempt += 1
                self._clock.sleep(min(left, backoff(attempt, self._rng)))
        return True

    def _step(self) -> Step:
        with self._lock:
            if self._ended is not None:
                return "ended"
            sent = self._line.first or self._next()
        if sent is None:
            return "idle"
        failpoint("append.before_put")
        began = self._clock.boot()
        try:
            self._bucket.put(self._keys.segment(sent.seq), sent.data)
        except Conflict:
            return self._read_back(sent)
        except (Unavailable, Denied) as error:
            self.trouble = error
            return "undecided"
        took = self._clock.boot() - began
        self._put_time += (took - self._put_time) / 8 if self._put_time else took
        failpoint("append.after_put")
        return self._ack(sent)

    def _next(self) -> InFlight | None:
        """Encode the next batch, behind the last segment in the line; once, whatever happens to its put (R3)."""
        at_once = self._sealed or self._flushing
        if not self._queue or not (at_once or next_due(self._queue, self._put_time) <= self._clock.boot()):
            return None
        items = tuple(self._queue.popleft() for _ in range(codec.batch_length([i.size for i in self._queue])))
        last, now = self._line.last, self._clock.now()
        seq, prev = (last.seq, codec.digest(last.data)) if last else (self._acked.seq, self._acked.hash)
        data = codec.encode_segment(
            self._by,
            seq=seq + 1,
            prev=prev,
            time=now,
            records=_flat([i.raw for i in items]),
        )
        made = InFlight(
            seq=seq + 1,
            data=data,
            tickets=tuple(i.ticket for i in items),
            since=items[0].since,
            size=sum(i.size for i in items),
            records=sum(len(i.raw) for i in items),
            time=now,
        )
        self._line.segments.append(made)
        return made

    def _read_back(self, sent: InFlight) -> Step:
        """The seq is taken: by an own earlier send, by a higher epoch, or wrongly."""
        try:
            found = self._bucket.get(self._keys.segment(sent.seq)).data
            other = codec.decode_segment(found, job=self._keys.job, seq=sent.seq)
        except (NotFound, Unavailable, Denied) as error:
            self.trouble = error
            return "undecided"
        except (Damaged, Newer) as error:
            return self._end(error)
        match resolve_conflict(found, other.epoch, other.run, sent, self.epoch, self.run_id):
            case "mine":
                return self._ack(sent)
            case "fenced":
                by = f" by {other.opening.host.name}" if other.opening else ""
                what = (
                    f"Job {self._keys.job} was taken over{by} (epoch {other.epoch}); this run had epoch {self.epoch}."
                )
                return self._end(Fenced(what))
            case _:
                what = (
                    f"Record {sent.seq} of job {self._keys.job} is not what this run (epoch {self.epoch}) wrote there."
                )
                return self._end(Damaged(what))

    def _ack(self, sent: InFlight) -> Step:
        records = codec.decode_segment(sent.data, job=self._keys.job, seq=sent.seq).records
        self.trouble = None
        with self._lock:
            old = self._acked
            self._acked = Acked(
                seq=sent.seq,
                hash=codec.digest(sent.data),
                state=apply_all(old.state, sent.seq, sent.carried or self.epoch, records),
                segments=old.segments + 1,
                size=old.size + len(sent.data),
                time=sent.time,
            )
            self._next_call = max(self._next_call, self._acked.state.next_call)
            stored = self._line.leave()
        for ticket in sent.tickets:
            ticket.ack(sent.seq)
        failpoint("append.after_ack")
        if stored and self._spool is not None:
            self._spool.drop(sent.seq)
        for listener in self._listeners:
            listener.on_acked(records, self._acked.state)
        return "acked"

    def _end(self, error: WalAgentError) -> Step:
        with self._lock:
            self._ended = error
            waiting = [*self._line.tickets, *(i.ticket for i in self._queue)]
            self._line.clear()
            self._queue.clear()
        for ticket in waiting:
            ticket.fail(error)
        for listener in self._listeners:
            listener.on_ended(error)
        return "ended"

    # --- spooling

    def stop_spooling(self) -> None:
        """Spool nothing from now on: the folder is empty and goes."""
        self._spool = None

    def spool_once(self, after: float = SPOOL_AFTER, *, at_once: bool = False) -> bool:
        """One step of R9: store the oldest waiting segment that is not in the spool, if it has waited `after` seconds
        (or `at_once`). Whether there was one. Waits for no put; where the disk refuses, the caller's call is denied."""
        spool = self._spool
        if spool is None:
            return False
        with self._spooling:
            with self._lock:
                due = at_once or must_spool(self._line, self._queue, self._clock.boot(), after)
                sent = (self._line.unstored or self._next()) if due and self._ended is None else None
            if sent is None:
                return False
            try:
                spool.store(sent.seq, sent.data)
            except OSError:
                return False
            with self._lock:
                waits = self._line.store(sent)
            if not waits:
                spool.drop(sent.seq)  # acknowledged meanwhile
        for ticket in sent.tickets if waits else ():
            ticket.spool()
        return True

    def run_spooling(self, stop: threading.Event, after: float = SPOOL_AFTER) -> None:
        """Spool what an outage has held up for `after` seconds, until `stop` is set."""
        while not stop.is_set():
            self._waiting.clear()
            if not self.spool_once(after):
                self._waiting.wait(SPOOL_POLL if self.pending else 1.0)


def _flat(parts: Sequence[tuple[bytes, ...]]) -> list[bytes]:
    return [raw for part in parts for raw in part]

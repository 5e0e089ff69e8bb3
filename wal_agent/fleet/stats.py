"""Count crashes, recoveries and what they cost, from the log of one job or of all jobs of a bucket.

`LogReader` is a pure reducer over records in the order of the log; `measure_job` feeds it, and `merge_stats` adds jobs
up. Nothing is kept beside the log: what retention has deleted cannot be counted, and `Stats.missing` says how much.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Literal, TypeVar

import msgspec

from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.errors import Damaged
from wal_agent.fleet.jobs import clean_text
from wal_agent.records import (
    CHANGING,
    AgentStarted,
    Answer,
    AnyRecord,
    CallState,
    Cut,
    End,
    FileDelta,
    Intent,
    Opening,
    Recovery,
    RunEnded,
    RunsOn,
    Turn,
    Workspace,
    call_state,
)
from wal_agent.recovery.lease_policy import CRASH_CLASSES, call_key
from wal_agent.wal import lease as leases
from wal_agent.wal.damage import damaged_log_error
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import KnownEnd, check_end, iter_readable, replay
from wal_agent.wal.state import MAX_OPEN, call_changed_files, workspace_holds

MAX_SAMPLES: Final = 10_000  # of one kind; the newest ones are kept
MAX_TIMES: Final = 16  # kinds of durations; a recovery has five
MAX_SECONDS: Final = 1e9  # what is longer, or below 0, is a clock that was changed
CUT_OFF: Final = "cut_off"  # the owner died as a whole, and nothing could log of what
_PART = re.compile(r"[a-z][a-z_]{0,19}")

K = TypeVar("K")
V = TypeVar("V")


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What one crash could have lost: the work behind the newest acknowledged captures.

    `seconds` and `calls`: of the conversation, up to the newest logged work; the calls that ended in them are in
    the log all the same, and a recovery puts them back. `files_seconds` and `files_calls`: changing calls that the
    newest capture of the working tree may lack; None where the job saves no files. On the `same_machine` they are
    still there. `time`: seconds since 1970, when the next start found it, or when the agent died."""

    epoch: int
    time: float
    cause: str
    seconds: float
    calls: int
    files_seconds: float | None = None
    files_calls: int | None = None
    same_machine: bool = False


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one job, or of several (`job` is then empty). Durations are in seconds.

    `missing`: records that are no longer kept. `recoveries` are those that were read, `recoveries_ever` all of the
    job's. `after`: how the runs before them ended (records.Cause). `crashes`: by cause;
    `loss_unknown`: crashes whose records are not all there. `verdicts`: calls by their newest finding, `verdicts_given`
    also those that were given again, `settled`: these calls by their state, `answered`: of those that are open.
    `repeated`: changing calls that equal one of the turn that was cut off, by what had become of that one."""

    job: str = ""
    records: int = 0
    missing: int = 0
    since: float = 0.0
    until: float = 0.0
    starts: int = 0
    calls: int = 0
    ends: dict[str, int] = {}
    crashes: dict[str, int] = {}
    loss_unknown: int = 0
    recoveries: int = 0
    recoveries_ever: int = 0
    after: dict[str, int] = {}
    put_back: int = 0
    verdicts: dict[str, int] = {}
    verdicts_given: int = 0
    settled: dict[str, int] = {}
    answered: int = 0
    repeated: dict[str, int] = {}


class Stats(Counts, frozen=True, kw_only=True):
    """`times`: samples by part of a recovery."""

    lost: tuple[Loss, ...] = ()
    times: dict[str, tuple[float, ...]] = {}


class Quantiles(msgspec.Struct, frozen=True):
    """By the nearest rank, so each is one of the samples."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


def quantiles_of(samples: Sequence[float]) -> Quantiles | None:
    """Return the quantiles; None of no samples."""
    if not samples:
        return None
    ordered = sorted(samples)

    def rank(percent: int) -> float:
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]  # rounded up, without floats

    return Quantiles(len(ordered), rank(50), rank(95), rank(99), ordered[-1])


# ---- the reducer


class _Run(msgspec.Struct):
    """An epoch so far. `whole`: all of its records were read. `saved`, `worked`: times, None for not yet."""

    opening: Opening
    whole: bool = True
    started: float | None = None
    recovered: bool = False
    saved: float | None = None
    tree_saved: float | None = None
    worked: float | None = None
    fresh: bool = False  # work was logged behind the newest capture of the conversation
    ended_calls: int = 0  # behind that capture
    ended: RunEnded | None = None
    last: float = 0.0  # time of its newest record


Fate = Literal["completed", "not_started", "partial", "unknown"]


class LogReader(msgspec.Struct):
    """Takes the records of one log in order (`add`), and says what they amount to (`result`). Total: any records in any
    order; bounded: whatever the log holds. Raises nothing."""

    job: str = ""
    _run: _Run | None = None
    _seq: int = 0
    _found: Counter[str] = msgspec.field(default_factory=Counter)  # plain counts, by the name of the field
    _since: float = 0.0
    _until: float = 0.0
    _ends: Counter[str] = msgspec.field(default_factory=Counter)
    _crashes: Counter[str] = msgspec.field(default_factory=Counter)
    _after: Counter[str] = msgspec.field(default_factory=Counter)
    _repeated: Counter[str] = msgspec.field(default_factory=Counter)
    _lost: deque[Loss] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    _times: dict[str, deque[float]] = msgspec.field(default_factory=dict)
    _verdicts: dict[int, Fate] = msgspec.field(default_factory=dict)
    _states: dict[int, CallState] = msgspec.field(default_factory=dict)  # of calls that are not plainly open
    _answered: set[int] = msgspec.field(default_factory=set)
    _open: dict[int, tuple[str, Intent]] = msgspec.field(default_factory=dict)  # calls in flight, with their keys
    _done: dict[str, Fate] = msgspec.field(default_factory=dict)  # changing calls of this turn, by key
    _watched: dict[str, Fate | int] = msgspec.field(default_factory=dict)  # of the turn cut off; a call: in flight
    _repeating: dict[int, Fate] = msgspec.field(default_factory=dict)  # calls in flight that are repeats
    _unheld: dict[int, Intent] = msgspec.field(default_factory=dict)  # changing calls that the captured tree may lack
    _tree: Workspace | None = None

    def add(self, seq: int, record: AnyRecord) -> None:
        """Take the next record, of segment `seq`."""
        if seq > self._seq + 1:
            self._skip(seq - self._seq - 1)
        self._seq = max(seq, self._seq)
        self._found["records"] += 1
        self._until = max(self._until, _time(record.time))
        self._since = self._since or _time(record.time)
        if isinstance(record, Opening):
            self._begin(record)
        elif self._run is not None:
            self._add(self._run, record)
            self._run.last = max(self._run.last, _time(record.time))

    def result(self) -> Stats:
        """What was read so far. A run that was cut off, and that no start has found yet, is not in it: the log does
        not tell it from one that goes on."""
        lost, unknown, crashes = list(self._lost), self._found["loss_unknown"], self._crashes.copy()
        if (run := self._run) is not None and run.ended is not None and run.ended.cls in CRASH_CLASSES:
            crashes[run.ended.cls] += 1
            loss = self._loss(run, run.ended.cls, run.ended.time, same_machine=True)
            lost, unknown = (lost, unknown + 1) if loss is None else ([*lost, loss], unknown)
        states = {call: self._states.get(call, "open") for call in self._verdicts}
        return Stats(
            job=self.job,
            records=self._found["records"],
            missing=self._found["missing"],
            since=self._since,
            until=self._until,
            starts=self._found["starts"],
            calls=self._found["calls"],
            ends=dict(self._ends),
            crashes=dict(crashes),
            lost=tuple(lost[-MAX_SAMPLES:]),
            loss_unknown=unknown,
            recoveries=self._found["recoveries"],
            recoveries_ever=self._found["recoveries"],
            after=dict(self._after),
            times={part: tuple(samples) for part, samples in self._times.items()},
            put_back=self._found["put_back"],
            verdicts=dict(Counter(self._verdicts.values())),
            verdicts_given=self._found["verdicts"],
            settled=dict(Counter(states.values())),
            answered=sum(states[call] in ("open", "cut", "runs_on") for call in self._answered),
            repeated=dict(self._repeated + Counter(self._repeating.values())),
        )

    def _skip(self, count: int) -> None:
        """Records are no longer kept: what was known of calls and captures says nothing of what is behind them."""
        self._found["missing"] += count
        for known in (self._open, self._done, self._watched, self._repeating, self._unheld):
            known.clear()
        if self._run is not None:
            self._run.whole = False

    # ---- a run begins, and with it the one before is over

    def _begin(self, opening: Opening) -> None:
        before, self._run = self._run, _Run(opening, last=_time(opening.time))
        self._found["starts"] += 1
        if before is not None:
            self._close(before, opening)
        if opening.cause in ("first", "closed"):
            self._watch_open()
            self._forget()
            self._repeating.clear()
            return
        self._repeated.update(self._repeating.values())  # in flight as a run ended: they may have run
        self._repeating.clear()
        self._watched.update(self._done)
        self._watch_open()
        self._done.clear()
        _cut(self._watched)

    def _close(self, before: _Run, opening: Opening) -> None:
        died = before.ended.cls if before.ended is not None and before.ended.cls in CRASH_CLASSES else ""
        cause = died or (CUT_OFF if opening.cause == "dead" else "")
        if not cause:
            return
        self._crashes[cause] += 1
        old, new = before.opening.host, opening.host
        same = bool(old.boot) and (old.name, old.boot) == (new.name, new.boot)
        loss = self._loss(before, cause, opening.time, same)
        if loss is None:
            self._found["loss_unknown"] += 1
        else:
            self._lost.append(loss)
        if opening.cause == "dead" and before.last:
            self._sample("unattended", opening.time - before.last)

    def _loss(self, run: _Run, cause: str, time: float, same_machine: bool) -> Loss | None:
        """Of a run that is over; None where records of it are gone."""
        if not run.whole:
            return None
        begun = run.started if run.started is not None else run.opening.time
        worked = run.worked if run.worked is not None else begun
        unheld = len(self._unheld)
        return Loss(
            epoch=run.opening.epoch,
            time=_time(time),
            cause=cause,
            seconds=_span(run.saved if run.saved is not None else begun, worked) if run.fresh else 0.0,
            calls=run.ended_calls,
            files_seconds=None if self._tree is None else _span(run.tree_saved or begun, worked) if unheld else 0.0,
            files_calls=None if self._tree is None else unheld,
            same_machine=same_machine,
        )

    # ---- inside of a run

    def _add(self, run: _Run, record: AnyRecord) -> None:
        match record:
            case AgentStarted():
                run.ended = None
                if run.started is None and run.recovered:
                    self._sample("restart", record.time - run.opening.time)
                run.started = run.started if run.started is not None else record.time
            case Turn():
                self._work(run, record.time)
                if record.state == "completed":
                    self._forget()
            case Intent():
                self._work(run, record.time)
                self._intent(record)
            case Cut() | RunsOn() | End(how="interrupted"):
                self._states[record.call] = (
                    call_state(how=record.how) if isinstance(record, End) else call_state(record)
                )
                _cut(self._states)
                key, intent = self._open.get(record.call, ("", None))
                if intent is not None and _may_change(intent):
                    self._watched[key] = record.call
            case End():
                self._end(run, record)
            case FileDelta():
                run.saved, run.fresh, run.ended_calls = record.time, False, 0
            case Workspace():
                run.tree_saved, self._tree = record.time, record
                self._unheld = {n: call for n, call in self._unheld.items() if not workspace_holds(record, n)}
            case Recovery():
                self._recovery(run, record)
            case Answer():
                if record.call in self._verdicts:
                    self._answered.add(record.call)
            case RunEnded():
                run.ended = record
                self._ends[record.cls or ("completed" if record.completed else "unknown")] += 1

    def _watch_open(self) -> None:
        self._watched.update({key: call for call, (key, intent) in self._open.items() if _may_change(intent)})

    def _forget(self) -> None:
        """What was done is over. An equal call is a repeat for as long as one is open."""
        self._done.clear()
        self._watched = {key: call for key, call in self._watched.items() if call in self._open}

    def _work(self, run: _Run, time: float) -> None:
        run.worked, run.fresh = time, True

    def _intent(self, intent: Intent) -> None:
        self._found["calls"] += 1
        key = call_key(intent)
        if len(self._open) < MAX_OPEN:
            bare = msgspec.structs.replace(intent, input=msgspec.structs.replace(intent.input, data=None), before=())
            self._open[intent.call] = key, bare
        if _may_change(intent) and (earlier := self._watched.pop(key, None)) is not None:
            self._repeating[intent.call] = (
                self._verdicts.get(earlier, "unknown") if isinstance(earlier, int) else earlier
            )

    def _end(self, run: _Run, end: End) -> None:
        key, intent = self._open.pop(end.call, ("", None))
        if end.call in self._verdicts:
            self._states[end.call] = call_state(how=end.how)
        else:
            self._states.pop(end.call, None)
        if (repeat := self._repeating.pop(end.call, None)) is not None and end.how != "refused":
            self._repeated[repeat] += 1
        if end.by in ("recovery", "person"):
            return  # of an earlier run's call: no work of this one
        if self._watched.get(key) == end.call:
            del self._watched[key]
        self._work(run, end.time)
        run.ended_calls += 1
        if intent is None:
            return
        if call_changed_files(intent, end, self._tree):
            self._unheld[end.call] = intent
            _cut(self._unheld)
        if end.how == "done" and _may_change(intent):
            self._done[key] = "completed"
            _cut(self._done)

    def _recovery(self, run: _Run, record: Recovery) -> None:
        run.recovered = True
        self._found["recoveries"] += 1
        self._found["put_back"] += max(0, record.put_back)
        self._found["verdicts"] += len(record.verdicts)
        self._after[run.opening.cause] += 1
        for part, seconds in record.seconds.items():
            self._sample(part, seconds)
        for verdict in record.verdicts:
            if verdict.call in self._verdicts or len(self._verdicts) < MAX_OPEN:
                self._verdicts[verdict.call] = verdict.finding

    def _sample(self, part: str, seconds: float) -> None:
        known = part in self._times or (len(self._times) < MAX_TIMES and _PART.fullmatch(part))
        if known and 0 <= seconds <= MAX_SECONDS:  # nor is nan
            self._times.setdefault(part, deque(maxlen=MAX_SAMPLES)).append(seconds)


def _may_change(intent: Intent) -> bool:
    """Idempotent calls may be repeated as they are, so they are no repeats to speak of."""
    return intent.cls in CHANGING


def _cut(known: dict[K, V]) -> None:
    while len(known) > MAX_OPEN:
        del known[next(iter(known))]


def _time(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


def _span(start: float, end: float) -> float:
    """Seconds between two times of a log; 0 where a clock went back, or says nothing."""
    return min(end - start, MAX_SECONDS) if end > start and math.isfinite(end - start) else 0.0


# ---- several jobs


def merge_stats(found: Iterable[Stats]) -> Stats:
    """Add jobs up; their samples are pooled."""
    jobs = list(found)

    def counts(name: str) -> dict[str, int]:
        return dict(sum((Counter[str](getattr(each, name)) for each in jobs), Counter[str]()))

    def total(name: str) -> int:
        return sum(getattr(each, name) for each in jobs)

    parts = dict.fromkeys(part for each in jobs for part in each.times)
    return Stats(
        since=min((each.since for each in jobs if each.since), default=0.0),
        until=max((each.until for each in jobs), default=0.0),
        lost=tuple(chain.from_iterable(each.lost for each in jobs)),
        times={part: tuple(chain.from_iterable(each.times.get(part, ()) for each in jobs)) for part in parts},
        records=total("records"),
        missing=total("missing"),
        starts=total("starts"),
        calls=total("calls"),
        ends=counts("ends"),
        crashes=counts("crashes"),
        loss_unknown=total("loss_unknown"),
        recoveries=total("recoveries"),
        recoveries_ever=total("recoveries_ever"),
        after=counts("after"),
        put_back=total("put_back"),
        verdicts=counts("verdicts"),
        verdicts_given=total("verdicts_given"),
        settled=counts("settled"),
        answered=total("answered"),
        repeated=counts("repeated"),
    )


class ShownLoss(msgspec.Struct, frozen=True):
    """The crashes one by one, and quantiles of what they lost."""

    crashes: tuple[Loss, ...]
    seconds: Quantiles | None
    calls: Quantiles | None
    files_seconds: Quantiles | None
    files_calls: Quantiles | None


class ShownStats(Counts, frozen=True, kw_only=True):
    """`times`: of each part of a recovery. `problem`: what is wrong with the log; the figures are then of what can be
    read."""

    lost: ShownLoss
    times: dict[str, Quantiles | None]
    problem: str = ""


class Unread(msgspec.Struct, frozen=True):
    """A job that was not counted, and why."""

    job: str
    problem: str


class StatsAnswer(JsonAnswer, frozen=True, tag=schema_name("stats")):
    """`wal-agent stats`. Durations are in seconds."""

    bucket: str
    jobs: tuple[ShownStats, ...]
    total: ShownStats
    unread: tuple[Unread, ...]


def show_stats(stats: Stats, problem: str = "") -> ShownStats:
    """For programs: quantiles in the place of the samples. All numbers are finite."""
    known = [loss for loss in stats.lost if loss.files_calls is not None]
    lost = ShownLoss(
        stats.lost,
        quantiles_of([loss.seconds for loss in stats.lost]),
        quantiles_of([loss.calls for loss in stats.lost]),
        quantiles_of([loss.files_seconds or 0.0 for loss in known]),
        quantiles_of([loss.files_calls or 0 for loss in known]),
    )
    times = {part: quantiles_of(samples) for part, samples in stats.times.items()}
    counts = {name: getattr(stats, name) for name in Counts.__struct_fields__}
    return ShownStats(**counts, lost=lost, times=times, problem=problem)


# ---- reading


class Measured(msgspec.Struct, frozen=True):
    """A job's figures, and what is wrong with its log ("" for nothing): they are then of what can be read."""

    stats: Stats
    problem: str = ""


def measure_job(bucket: Bucket, keys: Keys, key_id: str = "") -> Measured | None:
    """Read all kept records of a job; None where there is no such job. `key_id`: of the key that `bucket` decrypts
    with.

    Denied: it is encrypted with another one. Damaged (its lease), Newer, Unavailable."""
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        return None
    if wrong := wrong_key_error(keys.job, seen.doc.key, key_id):
        raise wrong
    reader = LogReader(keys.job)
    problem = ""
    for seq, segment in iter_readable(bucket, keys):
        if isinstance(segment, Damaged):
            problem = problem or segment.what
            continue
        for record in segment.records:
            reader.add(seq, record)
    known = check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
    if known.damage is not None:
        problem = damaged_log_error(known.damage).what
    stats = reader.result()
    ever = max(stats.recoveries, known.state.recoveries)
    return Measured(msgspec.structs.replace(stats, recoveries_ever=ever), clean_text(problem))

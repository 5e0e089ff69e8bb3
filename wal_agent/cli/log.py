"""`wal-agent log`: the job's records as lines or JSON, redacted, read from the log's end.

What is near the end costs the same however long the log is. Each segment that is read is checked against the one before
it, and each number that is not there and should be is named; what was not read is not checked, which `Page.since` and
`Page.passed` say.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from wal_agent.answers import JsonAnswer, json_line, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.calls.quote import show_words
from wal_agent.cli.display import LOG, answer_lines
from wal_agent.cli.options import HERE, AsJson, JobOptions, with_job
from wal_agent.cli.view import preview
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Damaged, Unavailable
from wal_agent.records import (
    AgentStarted,
    Answer,
    AnyRecord,
    CallState,
    Cause,
    Checkpoint,
    Compaction,
    CompactionDone,
    Cut,
    End,
    FileDelta,
    FileGone,
    Handoff,
    Intent,
    Mark,
    MessageGiven,
    MessageSeen,
    Opening,
    Payload,
    PhaseChange,
    Progress,
    Recovery,
    Rewrite,
    RunEnded,
    RunsOn,
    StateGone,
    StatePut,
    StepBegun,
    StepEnded,
    StepPaused,
    Turn,
    Workspace,
    call_state,
    state_text,
)
from wal_agent.redact import redact
from wal_agent.text import (
    columns,
    command,
    duration,
    lines,
    plural,
    printable,
    say,
    shorten,
    size,
    start_words,
    timestamp,
)
from wal_agent.wal import lease as leases
from wal_agent.wal import reader
from wal_agent.wal.codec import Segment, Snapshot
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Fetched, KnownEnd, iter_readable
from wal_agent.wal.state import State

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext

PARALLEL = 8  # snapshots that are read at a time
MAX_TEXT = 2000  # characters of one text in JSON
ROOMY = 120  # columns from which on the outcomes have a column of their own
CRASHES = ("opening", "recovery", "run_ended")
FOLLOW = 1.0  # seconds between two reads of new records

CAUSES: Final[dict[Cause, str]] = {
    "first": "the first one",
    "closed": "after a complete run",
    "released": "after a clean stop",
    "unlocked": "after an unlock",
    "dead": "after a crash",
}


def is_crash_record(record: AnyRecord) -> bool:
    """Starts, ends and recoveries: State counts or keeps each, so two snapshots say whether any lies between them."""
    return isinstance(record, Opening | Recovery | RunEnded)


class Page(msgspec.Struct):
    """A part of the log. `segments`: those that were read, oldest first. `damaged`: sentences on what cannot be read or
    is missing. `since`: from this record on all was read and checked, but for `passed` records, in which there is none
    of what was asked for, by the snapshots around them. `whole`: nothing is kept before `since`. `last`: the newest."""

    segments: list[tuple[int, Segment]] = msgspec.field(default_factory=list)
    damaged: list[Damaged] = msgspec.field(default_factory=list)
    since: int = 1
    passed: int = 0
    whole: bool = True
    last: int = 0


class _Range(msgspec.Struct, frozen=True):
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


class Entry(msgspec.Struct, frozen=True):
    """A record with its place in the log. `end` is set for an intent whose end is known; `held` for one that was cut or
    runs on, and has none."""

    seq: int
    epoch: int
    kind: str
    record: AnyRecord
    end: End | None = None
    held: Cut | RunsOn | None = None

    @property
    def state(self) -> CallState:
        """Of an intent's call."""
        return call_state(self.held, self.end.how if self.end is not None else "")


def read_entries(bucket: Bucket, keys: Keys, start: int = 1) -> Iterator[Entry]:
    """All kept records from segment `start` on, oldest first. Reads them once and holds them (not the blobs) in memory.
    Damaged."""
    found: list[tuple[int, Segment]] = []
    for seq, segment in iter_readable(bucket, keys, start):
        if isinstance(segment, Damaged):
            raise segment
        found.append((seq, segment))
    yield from entries_of(found)


def entries_of(segments: Sequence[tuple[int, Segment]]) -> Iterator[Entry]:
    """Those of the segments, in order."""
    found = [(seq, segment.epoch, record) for seq, segment in segments for record in segment.records]
    ends: dict[int, End] = {}
    held = {record.call: record for _, _, record in found if isinstance(record, Cut | RunsOn)}  # the newest word
    for _, _, record in found:
        if isinstance(record, End):
            ends.setdefault(record.call, record)  # a call ends once; what is told of it later changes nothing
    for seq, epoch, record in found:
        end = ends.get(record.call) if isinstance(record, Intent) else None
        open = held.get(record.call) if isinstance(record, Intent) and end is None else None
        yield Entry(seq, epoch, record_type(record), record, end, open)


def record_type(record: AnyRecord) -> str:
    """The record's tag as written in the log: `agent_started` for AgentStarted."""
    return str(type(record).__struct_config__.tag)


class LogRecord(JsonAnswer, frozen=True, tag=schema_name("record")):
    """A line of `wal-agent log`: a record, with the fields that its `type` has in wal_agent/records.py. They are
    redacted and shortened; bytes of files are a size and a hash."""

    record: int
    epoch: int
    type: str


def as_json(entry: Entry, raw: bool = False) -> str:
    """One JSON object: `record` (number), `epoch`, `type`, and the record's own fields, redacted and shortened. Bytes
    of files are a size and a hash; `raw`: base64 of them, as they are in the log."""
    head = LogRecord(entry.seq, entry.epoch, entry.kind)
    return json_line({**msgspec.to_builtins(head), **record_fields(entry, raw)})


def record_fields(entry: Entry, raw: bool = False) -> dict[str, Any]:
    """The fields of a record as `as_json` has them."""
    record = entry.record
    bare: AnyRecord = record
    if isinstance(record, FileDelta):
        bare = msgspec.structs.replace(record, edits=())
    elif isinstance(record, Workspace):
        bare = msgspec.structs.replace(record, packs=())
    elif isinstance(record, StatePut):
        bare = msgspec.structs.replace(record, value=Payload(size=record.value.size))
    elif isinstance(record, StepEnded):
        bare = msgspec.structs.replace(record, stdout=None, stderr=None)
    elif isinstance(record, Checkpoint):
        bare = msgspec.structs.replace(record, body=b"")
    shown: dict[str, Any] = _clean(msgspec.to_builtins(bare, builtin_types=(bytes,)))
    if isinstance(record, Checkpoint):
        shown["size"] = len(record.body)
        shown.pop("body", None)
    if isinstance(record, StatePut):
        shown["value"] = _bytes_json(record.value, raw)
    if isinstance(record, StepEnded):
        shown |= {n: _bytes_json(kept, raw) for n in ("stdout", "stderr") if (kept := getattr(record, n)) is not None}
    if isinstance(record, FileDelta) and record.edits:
        shown["edits"] = [{"offset": edit.offset, "data": _bytes_json(edit.data, raw)} for edit in record.edits]
    if isinstance(record, Workspace) and record.packs:
        shown["packs"] = [
            {"size": p.size, "sha256": _short(p.sha256), "parts": [_bytes_json(part, raw) for part in p.parts]}
            for p in record.packs
        ]
    shown.pop("t", None)
    return shown


def _bytes_json(payload: Payload, raw: bool) -> dict[str, object]:
    if payload.data is None:
        return {"size": payload.size, **({} if payload.blob is None else {"blob": _short(payload.blob)})}
    if raw:
        return {"size": payload.size, "base64": base64.b64encode(payload.data).decode()}
    return {"size": payload.size, "sha256": hashlib.sha256(payload.data).hexdigest()}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_next(value[i - 1] if i else None, v) for i, v in enumerate(value)]
    if isinstance(value, bytes):
        return _short(redact(value.decode("utf-8", "replace")))
    return _short(redact(value)) if isinstance(value, str) else value


def _clean_next(before: Any, value: Any) -> Any:
    """A word of a command line may be secret because of the option that stands before it."""
    if isinstance(before, str) and isinstance(value, str) and before.startswith("-"):
        both = redact(f"{before} {value}")
        if both.startswith(f"{before} "):
            return _short(both[len(before) + 1 :])
    return _clean(value)


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def as_line(entry: Entry, columns: int = 0) -> str:
    """One line: record, time, what, and how it went; in at most `columns`, 0 for any number."""
    what, detail, outcome = describe(entry)
    if 0 < columns < ROOMY:
        head = f"{entry.seq:>5}  {timestamp(entry.record.time)}  {shorten(what, 14):<14} "
        room = max(20, columns - len(head))
        tail = f"  {shorten(outcome, room // 2)}" if outcome else ""
        return f"{head}{shorten(redact(detail), room - len(tail) - 1)}{tail}".rstrip()
    text = f"{entry.seq:>5}  {timestamp(entry.record.time)}  {shorten(what):<18} {shorten(redact(detail))}"
    return f"{text:<86} {shorten(outcome)}".rstrip() if outcome else text.rstrip()


def describe(entry: Entry) -> tuple[str, str, str]:
    """(name, detail, outcome) of a record."""
    r = entry.record
    match r:
        case Opening():
            return "start", f"on {r.host.name}, {CAUSES[r.cause]} (epoch {r.epoch})", f"{r.agent} {r.agent_version}"
        case AgentStarted():
            return "agent started", f"session {r.session[:8]}", "resumed" if r.resumed else ""
        case Turn():
            return "turn", f"{r.state} {_quoted(r.prompt)}".rstrip(), ""
        case Intent():
            late = "; it ran before it was logged" if r.unlogged and entry.end else ""
            return r.tool, f"#{r.call} {preview(r.input, 60)}", f"{r.cls:<10} {_outcome(entry)}{late}"
        case Cut() | RunsOn():
            return "open", f"#{r.call} {state_text(call_state(r))} ({r.by})", redact(r.why)[:80]
        case End():
            return "end", f"#{r.call} {state_text(call_state(how=r.how))} ({r.by})", redact(r.why)[:80]
        case FileDelta():
            sent = sum(e.data.size for e in r.edits)
            return "saved", f"{r.path} +{size(sent)}", f"{size(r.size)} in all"
        case FileGone():
            return "saved", f"{r.path} is gone", ""
        case Workspace():
            sent = sum(pack.size for pack in r.packs)
            of = f" in {printable(redact(r.folder))[:60]}" if r.folder else ""
            return "workspace", f"{plural(r.files, 'file')}{of} +{size(sent)}", f"holds #{r.holds}"
        case Recovery():
            return (
                "recovery",
                f"{plural(len(r.verdicts), 'open call')}, {r.put_back} put back (from epoch {r.from_epoch})",
                "",
            )
        case Answer():
            looked = f"looked with {', '.join(f'#{n}' for n in r.looked[-3:])}" if r.looked else ""
            return "answered", f"#{r.call} by the agent", redact(r.because)[:80] or looked
        case Progress():
            share = f"{r.progress} %" if r.progress >= 0 else ""
            return "progress", redact(" ".join(filter(None, (r.title, r.phase, share, r.note))))[:200], f"by the {r.by}"
        case Checkpoint():
            return "checkpoint", f"{r.number} ({r.trigger.replace('_', ' ')})", size(len(r.body))
        case Compaction():
            tokens = f"about {r.tokens:,} tokens" if r.tokens else ""
            why = " ".join(filter(None, (redact(r.trigger), tokens)))
            return "compaction", redact(f"{r.n} of session {r.session[:8]}"), why
        case CompactionDone():
            lacks = f"the new history lacks: {redact(', '.join(r.missing))[:80]}" if r.missing else "nothing is missing"
            return "compacted", redact(f"{r.n} of session {r.session[:8]}"), "its summary is empty" if r.lost else lacks
        case Mark():
            return "mark", redact(r.name), ""
        case Rewrite():
            count = f"undoes {r.undoes}" if r.undoes else f"{plural(r.turns, 'turn')} left out"
            return r.kind, f"{r.n} of session {redact(r.session)[:8]}: {count}", f"{r.tokens:,} -> {r.left:,} tokens"
        case Handoff():
            return "handoff", redact(f"from {r.before} to {r.agent}"), ""
        case MessageGiven():
            return (
                "message",
                redact(f"{r.id} from {r.sender}"),
                redact(f"control: {r.verb}" if r.verb else size(r.text.size)),
            )
        case MessageSeen():
            outcome = f"refused: {r.refused}" if r.refused else r.answer
            return "message seen", redact(f"{r.id} from {r.sender}"), redact(outcome)
        case StatePut():
            return "state put", f"{redact(r.step)} {size(r.value.size)}", f"version {r.version}, attempt {r.attempt}"
        case StateGone():
            return "state gone", redact(r.step), ""
        case StepPaused():
            return "step paused", f"{redact(r.name)} {redact(r.reason)}".rstrip()[:200], f"until {timestamp(r.until)}"
        case StepBegun():
            return "step", f"{redact(r.name)}: {show_words(r.command, 150)}"[:200], f"attempt {r.attempt}"
        case StepEnded():
            code = f"code {r.code}" if r.by == "command" and r.how != "not_started" else f"by {r.by}"
            return "step ended", redact(r.name), f"{r.how.replace('_', ' ')}, {code}"
        case PhaseChange():
            return "phase", redact(f"{r.phase} {r.tool}").rstrip(), f"was {r.was}"
        case RunEnded():
            return "agent ended", *_ended(r)


def _ended(r: RunEnded) -> tuple[str, str]:
    """What it ended with says nothing where we ended it, and a turn's completion nothing of its process."""
    way, why = r.cls.replace("_", " "), redact(r.why)[:60]
    if r.cls in ("drained", "paused", "hung", "stopped"):
        return f"{way}: ended by wal-agent", why if why != way else ""
    detail = f"code {r.code} {way}".rstrip() if r.cls != "completed" else f"code {r.code}"
    if r.completed:
        return detail, "completed" if r.cls in ("", "completed") else "its turn was complete"
    return detail, f"not completed {why}"


def _quoted(prompt: Payload | None) -> str:
    return "" if prompt is None else f'"{preview(prompt, 50)}"'


def _outcome(entry: Entry) -> str:
    took = f" {entry.end.duration_ms} ms" if entry.end is not None and entry.end.duration_ms else ""
    return state_text(entry.state) + took


@with_job
def log(
    which: JobOptions = HERE,
    n: Annotated[int, typer.Option("-n", "--number", min=0, help="Show the newest N records (0 = all).")] = 30,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print oldest first, then each new record, until Ctrl-C.")
    ] = False,
    crashes: Annotated[bool, typer.Option("--crashes", help="Only starts, ends and recoveries.")] = False,
    json: AsJson = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="JSON with the bytes of saved files in base64, exactly as stored: nothing in them is redacted.",
        ),
    ] = False,
) -> None:
    """Show the job's records, newest first (with --json: oldest first, one object per line). Secrets are redacted.

    --json prints the size and hash of saved bytes; --raw prints the bytes too.

    Only the part that is shown is read and checked; -n 0 reads and checks the whole log. If records are missing or
    cannot be read, the others are shown and the exit code is 73.
    """

    at = which.open()
    page = read_newest(at.bucket, at.keys, n, crashes)
    newest = deque((e for e in entries_of(page.segments) if not crashes or e.kind in CRASHES), maxlen=n or None)
    damaged = page.damaged
    if json or raw:
        for entry in newest:
            sys.stdout.write(as_json(entry, raw) + "\n")
        if follow:
            sys.stdout.flush()
    elif newest:
        answer_lines([as_line(entry, columns()) for entry in (newest if follow else reversed(newest))], LOG)
    elif not damaged and not (crashes and page.last):
        if not follow and leases.read_lease(at.bucket, at.keys) is None:
            raise at.missing()
        say(f"no records of job {at.keys.job} in {at.bucket.url}{' yet' if follow else ''}.")
    if crashes and not (json or raw) and (unrecovered := describe_unrecovered(at)):
        answer_lines([unrecovered], LOG)
    if not (json or raw) and not (page.whole and page.passed == 0):
        passed = f", but for {page.passed} that the snapshots say hold none of these" if page.passed else ""
        whole = f"{command('log', at.options())} -n 0"
        lines([f"Only records {page.since} to {page.last} were read and checked{passed}. To check all: {whole}"])
    if damaged:
        more = f" So are {len(damaged) - 3} more." if len(damaged) > 3 else ""
        what = " ".join(f"{found.what[:1].upper()}{found.what[1:]}" for found in damaged[:3])
        raise Damaged(f"{what}{more}", f"What can still be had: {command('status', at.options())}")
    if follow:
        follow_log(at, page.last, CRASHES if crashes else None, json=json or raw, raw=raw)


def describe_unrecovered(at: JobContext) -> str:
    """The crash that no start has recovered yet, so that no record tells of it; "" for none or an unreadable lease."""
    from wal_agent.recovery.lease_policy import lease_age

    try:
        seen = leases.read_lease(at.bucket, at.keys)
    except Damaged:
        return ""
    if seen is None or seen.doc.state != "held" or not is_over(at, seen):
        return ""
    doc = seen.doc
    return (
        f"    -  cut off {duration(lease_age(seen))} ago, not recovered yet: epoch {doc.epoch} on {doc.host.name} "
        f"({doc.agent}). To recover it: {command(start_words(doc.agent), at.options())}"
    )


def newest_run_is_over(at: JobContext, records: bool) -> bool:
    """Whether nothing runs any more that the newest run began; False where the lease cannot be read. `records`: the log
    has some. Without any, Damaged goes through, and a job without a lease is missing."""
    try:
        seen = at.lease()
    except Damaged:
        if not records:
            raise
        return False
    if seen is None and not records:
        raise at.missing()
    return seen is not None and is_over(at, seen)


def is_over(at: JobContext, seen: leases.StoredLease) -> bool:
    """Whether nothing that the newest run began runs any more: it gave its lease back, or is dead."""
    from pathlib import Path

    from wal_agent.recovery.lease_policy import owner_is_dead
    from wal_agent.supervise.machine import probe_holder, spools_dir, this_host

    if seen.doc.state != "held":
        return True
    local = probe_holder(seen, this_host(os.environ, Path(os.devnull)), spools_dir(os.environ), at.bucket.url)
    return owner_is_dead(seen, local)


def follow_log(at: JobContext, seen: int, kinds: Collection[str] | None, json: bool = False, raw: bool = False) -> None:
    """Show each record behind segment `seen` as it comes, until Ctrl-C. Damaged; Denied."""
    waiting = False
    while True:
        try:
            new, waiting = list(read_entries(at.bucket, at.keys, start=seen + 1)), False
        except Unavailable as error:
            new = []  # the bucket is asked again; nothing is passed over
            if not waiting:
                lines([f"wal-agent: waiting: {error}"])
            waiting = True
        for entry in new:
            seen = entry.seq
            if kinds is None or entry.kind in kinds:
                _show(entry, json, raw)
        time.sleep(FOLLOW)


def _show(entry: Entry, json: bool, raw: bool) -> None:
    if json:
        sys.stdout.write(as_json(entry, raw) + "\n")
        sys.stdout.flush()
    else:
        answer_lines([as_line(entry, columns())], LOG)

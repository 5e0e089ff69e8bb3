"""`wal-agent log`: the job's records as lines or JSON, redacted."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer

from wal_agent.bucket.base import Bucket
from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobContext, JobName, KeyCommand, KeyFile
from wal_agent.cli.view import preview
from wal_agent.errors import Damaged, Unavailable
from wal_agent.records import (
    AgentStarted,
    AnyRecord,
    End,
    FileDelta,
    FileGone,
    Intent,
    Opening,
    Payload,
    PhaseChange,
    Recovery,
    RunEnded,
    Turn,
    Workspace,
)
from wal_agent.redact import redact
from wal_agent.text import lines, plural, say, shorten, size, timestamp
from wal_agent.wal.codec import Segment
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import iter_readable


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its place in the log. `end` is set for an intent whose end is known."""

    seq: int
    epoch: int
    kind: str
    record: AnyRecord
    end: End | None = None


def read_entries(bucket: Bucket, keys: Keys, damaged: list[Damaged] | None = None, start: int = 1) -> Iterator[Entry]:
    """All kept records from segment `start` on, oldest first. Reads them once and holds them (not the blobs) in memory.

    What cannot be read is passed over and put into `damaged`; without that it is raised."""
    found: list[tuple[int, Segment]] = []
    for seq, segment in iter_readable(bucket, keys, start):
        if not isinstance(segment, Damaged):
            found.append((seq, segment))
        elif damaged is None:
            raise segment
        else:
            damaged.append(segment)
    yield from entries_of(found)


def entries_of(segments: Sequence[tuple[int, Segment]]) -> Iterator[Entry]:
    """Those of the segments, in order."""
    found = [(seq, segment.epoch, record) for seq, segment in segments for record in segment.records]
    ends: dict[int, End] = {}
    for _, _, record in found:
        if isinstance(record, End):
            ends.setdefault(record.call, record)  # a call ends once; what is told of it later changes nothing
    for seq, epoch, record in found:
        end = ends.get(record.call) if isinstance(record, Intent) else None
        yield Entry(seq, epoch, record_type(record), record, end)


def record_type(record: AnyRecord) -> str:
    """The record's tag as written in the log: `agent_started` for AgentStarted."""
    return str(type(record).__struct_config__.tag)


def as_json(entry: Entry) -> str:
    """One JSON object: `record` (number), `epoch`, `type`, and the record's own fields, redacted and shortened."""
    fields = msgspec.to_builtins(entry.record, builtin_types=(bytes,))
    shown = _clean(fields)
    shown.pop("t", None)
    return json.dumps({"record": entry.seq, "epoch": entry.epoch, "type": entry.kind, **shown})


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


def _short(text: str, limit: int = 2000) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def as_line(entry: Entry) -> str:
    """One line: record, time, what, and how it went."""
    what, detail, outcome = describe(entry)
    text = f"{entry.seq:>5}  {timestamp(entry.record.time)}  {shorten(what):<18} {shorten(redact(detail))}"
    return f"{text:<86} {shorten(outcome)}".rstrip() if outcome else text.rstrip()


def describe(entry: Entry) -> tuple[str, str, str]:
    """(name, detail, outcome) of a record."""
    r = entry.record
    match r:
        case Opening():
            return "opening", f"epoch {r.epoch} on {r.host.name} ({r.cause})", f"{r.agent} {r.agent_version}"
        case AgentStarted():
            return "agent started", f"session {r.session[:8]}", "resumed" if r.resumed else ""
        case Turn():
            return "turn", f"{r.state} {_quoted(r.prompt)}".rstrip(), ""
        case Intent():
            late = "; it ran before it was logged" if r.unlogged and entry.end else ""
            return r.tool, f"#{r.call} {preview(r.input, 60)}", f"{r.cls:<10} {_outcome(entry.end)}{late}"
        case End():
            return "end", f"#{r.call} {r.how} ({r.by})", redact(r.why)[:80]
        case FileDelta():
            sent = sum(e.data.size for e in r.edits)
            return "saved", f"{r.path} +{size(sent)}", f"{size(r.size)} in all"
        case FileGone():
            return "saved", f"{r.path} is gone", ""
        case Workspace():
            sent = sum(pack.size for pack in r.packs)
            return "workspace", f"{plural(r.files, 'file')} +{size(sent)}", f"holds #{r.holds}"
        case Recovery():
            return (
                "recovery",
                f"of epoch {r.from_epoch}: {plural(len(r.verdicts), 'call')} in flight, {r.put_back} put back",
                "",
            )
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


def _outcome(end: End | None) -> str:
    if end is None:
        return "no end yet"
    took = f" {end.duration_ms} ms" if end.duration_ms else ""
    return re.sub(r"^done", "ok", end.how) + took


CRASHES = ("opening", "recovery", "run_ended")
FOLLOW = 1.0  # seconds between two reads of new records


def log(
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    n: Annotated[
        int, typer.Option("-n", "--number", min=0, help="Show the newest N records; 0 = all that are kept.")
    ] = 30,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Oldest first, then each new one as it comes, until Ctrl-C.")
    ] = False,
    crashes: Annotated[bool, typer.Option("--crashes", help="Only starts, ends and recoveries.")] = False,
    json: AsJson = False,
) -> None:
    """The job's records, newest first (with --json: oldest first, one object a line). Secrets are redacted.

    It reads the log from its end, as far as it shows it; with -n 0 the whole log is read and checked. Where some
    records cannot be read or are missing the others are shown, and the exit code is 73.
    """
    from wal_agent.cli.options import open_job_context
    from wal_agent.wal.browse import read_newest

    at = open_job_context(agent, bucket, job, encryption_key_file, encryption_key_command)
    page = read_newest(at.bucket, at.keys, n, crashes)
    newest = deque((e for e in entries_of(page.segments) if not crashes or e.kind in CRASHES), maxlen=n or None)
    damaged = page.damaged
    if json:
        for entry in newest:
            sys.stdout.write(as_json(entry) + "\n")
        if follow:
            sys.stdout.flush()
    elif newest:
        lines([as_line(entry) for entry in (newest if follow else reversed(newest))])
    elif not damaged:
        say(f"no records of job {at.keys.job} in {at.bucket.url}.")
    if not json and not (page.whole and page.passed == 0):
        passed = f", but for {page.passed} that the snapshots say hold none of these" if page.passed else ""
        whole = f"wal-agent log{at.options(agent)} -n 0"
        lines([f"Only records {page.since} to {page.last} were read and checked{passed}. To check all: {whole}"])
    if damaged:
        more = f" So are {len(damaged) - 3} more." if len(damaged) > 3 else ""
        what = " ".join(f"{found.what[:1].upper()}{found.what[1:]}" for found in damaged[:3])
        raise Damaged(f"{what}{more}", f"What can still be had: wal-agent status{at.options(agent)}")
    if follow:
        follow_log(at, page.last, CRASHES if crashes else None, json=json)


def follow_log(at: JobContext, seen: int, kinds: Collection[str] | None, json: bool = False) -> None:
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
                _show(entry, json)
        time.sleep(FOLLOW)


def _show(entry: Entry, json: bool) -> None:
    if json:
        sys.stdout.write(as_json(entry) + "\n")
        sys.stdout.flush()
    else:
        lines([as_line(entry)])

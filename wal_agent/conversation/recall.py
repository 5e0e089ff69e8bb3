"""Search all that a job ever said and did: its log, and its conversations, compacted or not, over all agents.

The index is SQLite's FTS5, in this user's state folder (0600), kept up by what is new since the last search and built
again from the log whenever it is missing, damaged or another log's; a lock lets one search at a time write it. It holds
what the log holds, so it is no more secret than the session files on this machine; of an encrypted job it lives in
memory alone. Letters of scripts without blanks between words are words of their own in it. What leaves it is redacted
and cut.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from wal_agent.answers import JsonAnswer
from wal_agent.bucket.base import Bucket
from wal_agent.conversation.transcript import MAX_TEXT, Role, read_lines
from wal_agent.errors import ConfigError, Damaged, UsageError
from wal_agent.paths import state_dir
from wal_agent.records import (
    Answer,
    AnyRecord,
    End,
    FileDelta,
    Intent,
    Payload,
    Progress,
    Recovery,
    RunEnded,
    StepBegun,
    StepEnded,
    Turn,
)
from wal_agent.redact import redact
from wal_agent.safefs import try_lock
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Fetched, fetch_segments, replay
from wal_agent.wal.state import CompactionAt, FileState, RewriteAt, State

VERSION: Final = "3"  # of the tables; another one is built anew
MAX_WORDS: Final = 16
SNIPPET: Final = 400  # characters of a hit
MAX_VERSIONS: Final = 32  # of session files that were written anew, the newest of what is new in the log
MAX_CALL: Final = 4000  # characters of each part of one call, where that is asked for
BATCH: Final = 512  # segments between two commits
Kind = Literal["call", "result", "prompt", "message", "note"]

_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE file (name TEXT, session TEXT, size INTEGER, sha256 TEXT, upto INTEGER, PRIMARY KEY (name, session));
CREATE TABLE captured (name TEXT, session TEXT, size INTEGER, PRIMARY KEY (name, session));
CREATE TABLE entry (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, role TEXT NOT NULL, seq INTEGER NOT NULL, epoch INTEGER NOT NULL,
    call INTEGER NOT NULL, time REAL NOT NULL, tool TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL,
    at INTEGER NOT NULL, text TEXT NOT NULL, digest BLOB NOT NULL
);
CREATE INDEX entry_call ON entry (call);
CREATE UNIQUE INDEX entry_line ON entry (session, digest) WHERE name <> '';
CREATE VIRTUAL TABLE words USING fts5 (text, content = 'entry', content_rowid = 'id', tokenize = 'unicode61');
"""
_COLUMNS: Final = "id, kind, role, seq, epoch, call, time, tool, name, session, at, text"

# Scripts that put no blanks between words: Chinese, Japanese, Korean (whose endings are glued on), Thai, Lao, Khmer,
# Burmese. Each letter counts as a word, and a word of them is found as its letters in a row.
_UNPARTED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)

# What an earlier search printed, and its command: it holds the words once more, and goes behind what it found.
_ECHO = re.compile(r"wal-agent recall | · (?:record \d+|session [0-9a-z_]{8})(?: of task \S+)? · ")

_SPEAKERS: Final = {"user": "user", "system": "system"}  # the others say, call and return what an agent did
_EDGES: Final = re.compile(r'["{}\[\]\n]')  # where a string ends, in JSON too
_SESSION_ID: Final = re.compile(r"ses_[0-9A-Za-z]{20,30}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Found(msgspec.Struct, frozen=True):
    """A hit. `record`: the log's number of it, 0 for a line of a session file `name`; `text`: a part of it around the
    first word, redacted."""

    kind: Kind
    role: Role
    record: int
    epoch: int
    call: int
    time: float
    tool: str
    session: str
    text: str


class Hit(Found, frozen=True, kw_only=True):
    """`job`: that of the task which it is of, "" for the job itself."""

    job: str = ""


class Hits(JsonAnswer, frozen=True):
    """`wal-agent recall`, the best first."""

    hits: tuple[Hit, ...]


class Query(msgspec.Struct, frozen=True):
    """What is looked for: all `words` (or any of them, where nothing has all), or `regex`; without either the newest
    that there is. `before`: a compaction's number."""

    words: tuple[str, ...] = ()
    call: int = 0
    before: int = 0
    role: Role = ""
    limit: int = 10
    regex: re.Pattern[str] | None = None


def recall(
    bucket: Bucket,
    keys: Keys,
    blobs: Blobs,
    query: Query,
    env: Mapping[str, str],
    *,
    in_memory: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Found]:
    """Search the job, the best first. `progress` is given the number of records read so far, and 0 at their end; -1
    where it waits for another search that builds the index.

    UsageError: there is no such compaction; ConfigError: this Python's SQLite has no FTS5; Damaged; BucketError."""
    path = None if in_memory else index_path(bucket, keys, env)
    for attempt in range(2):
        try:
            with _alone(path, progress), closing(_open(path)) as index:
                return _search(index, bucket, keys, blobs, query, progress)
        except sqlite3.DatabaseError as error:
            if "fts5" in str(error):
                raise ConfigError("SQLite of this Python has no FTS5.", "Use another Python build.") from error
            if path is None or attempt:
                raise ConfigError(
                    f"The search index {path} cannot be used: {error}.", "Remove it, or make room."
                ) from error
            path.unlink(missing_ok=True)  # it is built again from the log
    raise AssertionError("the loop returns or raises")


@contextmanager
def _alone(path: Path | None, progress: Callable[[int], None]) -> Iterator[None]:
    """While no other search has the index: the one that comes second reads on from what the first has read."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(lock):
            progress(-1)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def index_path(bucket: Bucket, keys: Keys, env: Mapping[str, str]) -> Path:
    """Where this user's index of the job is."""
    name = hashlib.sha256(f"{bucket.url}\n{keys.job}".encode("utf-8", "replace")).hexdigest()[:24]
    return state_dir(env) / "recall" / f"{name}.sqlite"


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    index = sqlite3.connect(path or ":memory:", timeout=30, isolation_level=None)
    index.execute("PRAGMA synchronous = OFF")  # it can be built again
    return index


def _search(
    index: sqlite3.Connection, bucket: Bucket, keys: Keys, blobs: Blobs, query: Query, progress: Callable[[int], None]
) -> list[Found]:
    state = replay(bucket, keys).state
    index.execute("BEGIN IMMEDIATE")
    _prepare(index, bucket, keys)
    anew = _read_log(index, bucket, keys, blobs, progress)
    for seq in anew[-MAX_VERSIONS:]:
        _read_versions(index, replay(bucket, keys, seq - 1).state, blobs)
    _read_files(index, state, blobs)
    index.execute("COMMIT")
    return _find(index, state, query)


# ---- build


def _prepare(index: sqlite3.Connection, bucket: Bucket, keys: Keys) -> None:
    """Make the tables, or empty them where they are of another version or log."""
    wanted = {"version": VERSION, "bucket": bucket.url, "job": keys.job}
    known = dict(index.execute("SELECT key, value FROM meta")) if _has_tables(index) else {}
    seq, hash = int(known.get("seq", 0)), known.get("hash", "")
    if known and {**known, **wanted} == known and (not seq or _is_same_log(bucket, keys, seq, hash)):
        return
    for (name,) in index.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('words', 'meta', 'file', 'captured', 'entry')"
    ).fetchall():
        index.execute(f"DROP TABLE {name}")
    for statement in _TABLES.split(";"):
        if statement.strip():
            index.execute(statement)
    index.executemany("INSERT INTO meta VALUES (?, ?)", wanted.items())


def _has_tables(index: sqlite3.Connection) -> bool:
    return bool(index.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone())


def _is_same_log(bucket: Bucket, keys: Keys, seq: int, hash: str) -> bool:
    """Whether the newest record that the index has is still the log's, or was taken by retention."""
    one = dict(fetch_segments(bucket, keys, [seq])).get(seq)
    if one is None:
        return next(iter(bucket.list(keys.log, keys.segment(seq))), None) is not None
    return isinstance(one, Fetched) and one.hash.hex() == hash


def _read_log(
    index: sqlite3.Connection, bucket: Bucket, keys: Keys, blobs: Blobs, progress: Callable[[int], None]
) -> list[int]:
    """Read what is new in the log. Return the records that write a session's file anew, after which nothing but the
    version before them holds all that was said."""
    anew: list[int] = []
    known = dict(index.execute("SELECT key, value FROM meta WHERE key IN ('seq', 'hash')"))
    last = int(known.get("seq", 0))
    listed = bucket.list(keys.log, keys.segment(last) if last else "")
    seqs = [seq for entry in listed if (seq := keys.seq_of(entry.key)) is not None and seq > last]
    hash = known.get("hash", "")
    for done, (seq, one) in enumerate(fetch_segments(bucket, keys, seqs), 1):
        if isinstance(one, Damaged):
            continue  # `wal-agent log` names it; what can be read is found all the same
        for record in one.segment.records:
            if isinstance(record, FileDelta) and record.path.endswith(".jsonl") and _writes_anew(index, record):
                anew.append(seq)
            if (row := _row(record, seq, one.segment.carried or one.segment.epoch, blobs)) is not None:
                _add(index, row)
        last, hash = seq, one.hash.hex()
        if done % BATCH == 0:
            progress(done)
    if len(seqs) > BATCH:
        progress(0)
    index.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [("seq", str(last)), ("hash", hash)])
    return anew


def _writes_anew(index: sqlite3.Connection, delta: FileDelta) -> bool:
    """Whether the capture changes what the one before it held, so that lines may be gone."""
    place = (delta.path, delta.session)
    known = index.execute("SELECT size FROM captured WHERE name = ? AND session = ?", place).fetchone()
    index.execute("INSERT OR REPLACE INTO captured VALUES (?, ?, ?)", (*place, delta.size))
    size: int = known[0] if known else 0
    return size > delta.size or any(edit.offset < size for edit in delta.edits)


Row = tuple[Kind, Role, int, int, int, float, str, str, str, int, str]


def _row(record: AnyRecord, seq: int, epoch: int, blobs: Blobs) -> Row | None:
    """What of a record can be searched."""

    def made(kind: Kind, role: Role, text: str, call: int = 0, tool: str = "", session: str = "") -> Row:
        return (kind, role, seq, epoch, call, record.time, tool[:200], "", session[:200], 0, text[:MAX_TEXT])

    match record:
        case Intent():
            return made(
                "call", "tool", f"{record.tool}\n{_text(record.input, blobs)}", record.call, record.tool, record.session
            )
        case End():
            text = "\n".join(filter(None, (record.how, record.why, _text(record.result, blobs))))
            return made("result", "tool", text, record.call)
        case Turn(state="started") if record.prompt is not None:
            return made("prompt", "user", _text(record.prompt, blobs), session=record.session)
        case Progress():
            steps = [step.text for step in record.plan or ()]
            return made("note", "assistant", "\n".join(filter(None, (record.title, record.note, *steps))))
        case Answer(because=because) if because:
            return made("note", "assistant", because, record.call)
        case StepBegun():
            return made("call", "tool", f"step {record.name}\n{' '.join(record.command)}", tool=f"step {record.name}")
        case StepEnded():
            outputs = (_text(record.stdout, blobs), _text(record.stderr, blobs))
            ending = f"step {record.name} {record.how}, exit code {record.code}"
            return made("result", "tool", "\n".join(filter(None, (ending, *outputs))), tool=f"step {record.name}")
        case Recovery():
            return made("note", "system", record.told)
        case RunEnded():
            return made("note", "system", f"agent ended {record.cls} {record.why}")
        case _:
            return None


def _text(payload: Payload | None, blobs: Blobs) -> str:
    if payload is None:
        return ""
    try:
        data = blobs.fetch(payload)
    except Damaged:
        return ""
    head, tail = data[: MAX_TEXT * 2], data[-MAX_TEXT:] if len(data) > MAX_TEXT * 3 else b""
    text = head.decode("utf-8", "replace")
    whole = text[: MAX_TEXT // 2] + "\n" + tail.decode("utf-8", "replace")[-MAX_TEXT // 2 :] if tail else text
    return whole.replace("\\n", "\n").replace('\\"', '"')  # the words of a JSON string


def _add(index: sqlite3.Connection, row: Row) -> None:
    """Add an entry, and of a session's lines each once."""
    digest = hashlib.blake2b(f"{row[1]}\n{row[-1]}".encode("utf-8", "replace"), digest_size=12).digest()
    added = index.execute(
        "INSERT OR IGNORE INTO entry (kind, role, seq, epoch, call, time, tool, name, session, at, text, digest) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, digest),
    )
    if added.rowcount:
        index.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (added.lastrowid, part_words(row[-1])))


def part_words(text: str) -> str:
    """Put blanks around each letter of a script that has none between words."""
    return _UNPARTED.sub(r" \g<0> ", text) if not text.isascii() else text


def _read_versions(index: sqlite3.Connection, state: State, blobs: Blobs) -> None:
    """Add what the captured files of the session said before they were written anew."""
    for name, file in sorted(state.files.items()):
        if name.endswith(".jsonl") and file.size:
            with tempfile.TemporaryDirectory(prefix="wal-agent-recall-") as folder, suppress(Damaged):
                write_file(blobs, file, Path(folder) / "file")
                _read_file(index, name, file, Path(folder) / "file", None)


def _read_files(index: sqlite3.Connection, state: State, blobs: Blobs) -> None:
    """Bring the session's files up to date, those of agents that had the job before, and those that the job has left;
    what still earlier sessions said stays."""
    shelved = [each for left in state.shelf.values() for each in left.files.items()]
    past = [(each.name, each.file) for each in state.past]
    for name, file in [*past, *shelved, *sorted(state.files.items())]:
        if not name.endswith(".jsonl") or file.size == 0:
            continue
        known = index.execute(
            "SELECT size, sha256, upto FROM file WHERE name = ? AND session = ?", (name, file.session)
        ).fetchone()
        if known is not None and known[1] == file.sha256:
            continue
        with tempfile.TemporaryDirectory(prefix="wal-agent-recall-") as folder, suppress(Damaged):
            path = Path(folder) / "file"
            write_file(blobs, file, path)
            _read_file(index, name, file, path, known)
            for trace in _lost_traces(state, name, file, path):
                _read_trace(index, trace, blobs, Path(folder) / "trace")


def _lost_traces(state: State, name: str, file: FileState, path: Path) -> list[RewriteAt]:
    """The traces of the file that are not its beginning any more: a recovery may write a session anew, without what a
    rewrite took out of the conversation."""
    mine = [r for r in state.rewrites if (r.record.path, r.record.session) == (name, file.session)]
    return [r for r in mine if r.before.size > file.size or _digest(path, r.before.size) != r.before.sha256]


def _read_trace(index: sqlite3.Connection, trace: RewriteAt, blobs: Blobs, path: Path) -> None:
    name, file = f"{trace.record.path} (trace {trace.record.n})", trace.before
    query = "SELECT size, sha256, upto FROM file WHERE name = ? AND session = ?"
    known = index.execute(query, (name, file.session)).fetchone()
    if known is None or known[1] != file.sha256:
        write_file(blobs, file, path)
        _read_file(index, name, file, path, known)
        path.unlink()


def _read_file(
    index: sqlite3.Connection, name: str, file: FileState, path: Path, known: tuple[int, str, int] | None
) -> None:
    start = 0
    if known is not None and known[0] <= file.size and _digest(path, known[0]) == known[1]:
        start = known[2]
    upto = start  # of a file that was written anew all is read, and what it no longer says stays
    with path.open("rb") as source:
        for line in read_lines(source, start):
            _add(index, ("message", line.role, 0, 0, 0, line.time, "", name, file.session, line.at, line.text))
            upto = line.end
    index.execute(
        "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?)", (name, file.session, file.size, file.sha256, upto)
    )


def _digest(path: Path, size: int) -> str:
    found = hashlib.sha256()
    with path.open("rb") as source:
        while size > 0 and (data := source.read(min(size, 1 << 20))):
            found.update(data)
            size -= len(data)
    return found.hexdigest()


# ---- search


def _find(index: sqlite3.Connection, state: State, query: Query) -> list[Found]:
    where, values = ["1"], list[object]()
    if query.call:
        where.append("call = ?")
        values.append(query.call)
    if query.role:
        where.append("role = ?")
        values.append(query.role)
    if query.before:
        sentence, bounds = _before(_compaction(state, query.before))
        where.append(sentence)
        values += bounds
    condition = " AND ".join(where)
    limit = query.limit * 8  # some are the same text twice, in the log and in the session
    if query.regex is not None:
        newest = index.execute(f"SELECT {_COLUMNS} FROM entry WHERE {condition} ORDER BY time DESC, id DESC", values)
        return _distinct((row for row in newest if query.regex.search(row[-1])), query)
    if not query.words:
        order = "seq, at, id" if query.call else "time DESC, id DESC"
        sql = f"SELECT {_COLUMNS} FROM entry WHERE {condition} ORDER BY {order} LIMIT ?"
        return _distinct(index.execute(sql, (*values, limit)), query)
    columns = ", ".join(f"entry.{column}" for column in _COLUMNS.split(", "))
    sql = (
        f"SELECT {columns} FROM words JOIN entry ON entry.id = words.rowid WHERE words MATCH ? AND {condition} "
        "ORDER BY words.rank LIMIT ?"
    )
    for match in matches(query.words):
        if rows := index.execute(sql, (match, *values, limit)).fetchall():
            return _distinct(sorted(rows, key=lambda row: _ECHO.search(row[-1]) is not None), query)
    return []


def matches(words: Sequence[str]) -> Iterator[str]:
    """FTS5 queries for words that are data: all of them, then any. Nothing in a word is syntax."""
    plain = (word.encode("utf-8", "replace").decode().replace("\0", " ") for word in words[:MAX_WORDS])
    quoted = ['"{}"'.format(part_words(word).replace('"', '""')) for word in plain]
    yield " AND ".join(quoted)
    if len(quoted) > 1:
        yield " OR ".join(quoted)


def _compaction(state: State, n: int) -> CompactionAt:
    for found in state.compactions:
        if found.n == n:
            return found
    known = ", ".join(str(c.n) for c in state.compactions[-5:]) or "none"
    raise UsageError(f"The log knows no compaction {n}.", f"Known: {known}.")


def _before(at: CompactionAt) -> tuple[str, list[object]]:
    """What was there when the compaction began: records before it, and the files up to their length then."""
    before = "(name = ? AND session = ? AND at < ? AND time <= ?)"  # lines of earlier versions stand elsewhere
    files = [(before, (name, at.session, size, at.time)) for name, size, _ in at.files]
    clauses = ["(name = '' AND seq < ?)", "(name <> '' AND session <> ? AND time < ?)", *(sql for sql, _ in files)]
    values: list[object] = [at.seq, at.session, at.time]
    for _, bounds in files:
        values += bounds
    return f"({' OR '.join(clauses)})", values


def _distinct(rows: Iterable[tuple[Any, ...]], query: Query) -> list[Found]:
    """The hits, each once: what the log and the conversation both say stands as the log has it, with its number."""
    seen: set[str] = set()
    found: list[Found] = []
    places: list[frozenset[str]] = []  # of each, the pieces that were looked for
    for row in rows:
        _, kind, role, seq, epoch, call, time, tool, _, session, _, text = row
        at = _first(text, query)
        shown = snippet(text, at, MAX_CALL if query.call else SNIPPET)
        one = Found(kind, role, seq, epoch, call, time, redact(tool), _shown_id(session), shown)
        pieces = _pieces(text, query)
        same = next((n for n, each in enumerate(found) if _is_same(one, each, pieces, places[n])), None)
        if same is not None and found[same].kind == "message" != kind:
            found[same], places[same] = one, pieces
        elif same is None and shown not in seen:
            if len(found) == query.limit:
                break
            found.append(one)
            places.append(pieces)
        seen.add(shown)
    return found


def _is_same(one: Found, other: Found, pieces: frozenset[str], others: frozenset[str]) -> bool:
    """Whether two entries tell one thing: of the log and the conversation, or of two lines of that. Those of the log
    have their numbers, and are never the same."""
    if "message" not in (one.kind, other.kind) or _SPEAKERS.get(one.role) != _SPEAKERS.get(other.role):
        return False
    few, many = (pieces, others) if len(pieces) <= len(others) else (others, pieces)
    return bool(few) and all(any(a in b or b in a for b in many) for a in few)


def _pieces(text: str, query: Query) -> frozenset[str]:
    """Lines and strings of a text that hold what is looked for, without what spelling adds."""
    low = [word.casefold() for word in query.words]
    parts = (part for part in _EDGES.split(text))
    if query.regex is not None:
        parts = (part for part in parts if query.regex.search(part))
    elif low:
        parts = (part for part in parts if any(word in part.casefold() for word in low))
    return frozenset(filter(None, (re.sub(r"\W+", " ", part).strip().casefold() for part in parts)))


def _shown_id(session: str) -> str:
    """A session's id, which looks like a secret and is none."""
    return session if _SESSION_ID.fullmatch(session) else redact(session)


def _first(text: str, query: Query) -> str:
    """What is shown in the middle of a hit."""
    if query.regex is not None:
        hit = query.regex.search(text)
        return hit.group()[:200] if hit else ""
    low = text.casefold()
    return min(
        (word for word in query.words if word.casefold() in low), key=lambda w: low.find(w.casefold()), default=""
    )


def snippet(text: str, around: str, most: int) -> str:
    """At most `most` characters of the redacted text."""
    clean = redact(text)
    if len(clean) <= most:
        return clean
    start = max(0, max(0, clean.casefold().find(around.casefold())) - most // 3)
    cut = clean[start : start + most]
    return f"{'…' if start else ''}{cut}{'…' if start + most < len(clean) else ''}"

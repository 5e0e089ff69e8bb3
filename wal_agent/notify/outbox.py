"""The outbox on disk: messages wait here until the sender delivers them; a run that dies loses none.

A `Letter` is one message to one target: when it is due, tried again, merged with later ones, or stale.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wal_agent import msgspec_compat
from wal_agent.notify.message import LEVELS, Level, Notification, Target, reaches
from wal_agent.paths import state_dir
from wal_agent.safefs import flock_state
from wal_agent.text import moment

RETRY_PERIOD = 600.0  # seconds for which one URL is tried
FIRST_PAUSE = 2.0
MAX_PAUSE = 90.0
REMINDERS = (900.0, 3600.0, 14_400.0)  # seconds, each after the one before: four times in all
MAX_AGE = 86_400.0  # seconds; what nobody could send for a day is dropped
REPEAT_WINDOW = 900.0  # seconds in which a message is not said again
FOLDER = "notify"
SENDER = "queue.lock"  # held by the one sender
QUEUE = "queue.sqlite3"
MAX_LETTERS = 100
MAX_KEYS = 200
MAX_IDLE = 2 * 86_400.0  # seconds after which a box that nobody uses is removed
_RETRY = 0.02  # seconds between two tries
_BUSY = 30.0  # seconds to wait for another process's transaction
_ORDINAL = {2: "second", 3: "third", 4: "fourth"}
_BROKEN = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
T = TypeVar("T")


class Try(msgspec.Struct, frozen=True):
    """`first`: when the URL was tried first; `again`: when it is next."""

    count: int
    first: float
    again: float


class Letter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`about`: which job it tells of (`about` below). `took`, `gave_up` and `tries`: ids of targets, in this round.
    `key`: the message's, by its hash."""

    about: str
    level: Level
    title: str
    body: str
    made: float
    due: float
    later: tuple[float, ...] = ()
    round: int = 1
    took: tuple[str, ...] = ()
    gave_up: tuple[str, ...] = ()
    tries: dict[str, Try] = {}
    key: str = ""

    @property
    def insists(self) -> bool:
        return bool(self.later) or self.round > 1


class Halt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What people know of a halt whose job was started again: another start that halts in the same way goes on where
    that was. `rounds` are told, `due` is when the next one is, `heard` when the halt came last."""

    about: str
    rounds: int
    due: float
    heard: float


def make_letter(
    message: Notification, about: str, now: float, said_before: bool = False, halt: Halt | None = None
) -> Letter | None:
    """None: nothing is to be sent. `said_before`: people have just been told this, so it is not said at once; how often
    they were told of a halt, `halt` says."""
    later: tuple[float, ...] = REMINDERS if message.insists else ()
    if not later:
        return None if said_before else _make_letter(message, about, now, now, (), 1)
    if halt is None and said_before:
        halt = Halt(about, 1, now + REMINDERS[0], now)
    if halt is None:
        return _make_letter(message, about, now, now, REMINDERS, 1)
    if not 1 <= halt.rounds <= len(REMINDERS):
        return None
    due = min(max(now, halt.due), now + REMINDERS[halt.rounds - 1])  # also when the clock was set back
    return _make_letter(message, about, now, due, REMINDERS[halt.rounds :], halt.rounds + 1)


def _make_letter(
    message: Notification, about: str, now: float, due: float, later: tuple[float, ...], round: int
) -> Letter:
    return Letter(
        about=about,
        level=message.level,
        title=message.title,
        body=message.body,
        made=now,
        due=due,
        later=later,
        round=round,
    )


def halt_when_suspended(waiting: Letter) -> Halt:
    """What is known of a halt when its job is started again. The first round is told in any case."""
    if waiting.round == 1:
        return Halt(waiting.about, 1, waiting.made + REMINDERS[0], waiting.made)
    return Halt(waiting.about, waiting.round - 1, waiting.due, waiting.made)


def halt_when_done(waiting: Letter, now: float) -> Halt | None:
    """The same when its last round is over; None: nobody was reached."""
    if not (waiting.insists and (waiting.took or waiting.gave_up)):
        return None
    return Halt(waiting.about, waiting.round, now, now)


def pending_targets(waiting: Letter, targets: Iterable[Target]) -> list[Target]:
    """Who has still to get it in this round."""
    done = {*waiting.took, *waiting.gave_up}
    return [t for t in targets if reaches(waiting.level, t.level) and t.id not in done]


def next_attempt(waiting: Letter, target: Target, now: float) -> float:
    """When it is to be sent to `target`. A clock that was set back puts it off no longer than it ever waits."""
    tried = waiting.tries.get(target.id)
    at, most = (tried.again, MAX_PAUSE) if tried else (waiting.due, REMINDERS[-1])
    return at if at - now <= most else now


def seconds_to_next(letters: Iterable[Letter], targets: Sequence[Target], now: float) -> float:
    """Seconds until the next one is to be sent; 0: now, or there is nothing."""
    times = [
        next_attempt(waiting, target, now) - now for waiting in letters for target in pending_targets(waiting, targets)
    ]
    return max(0.0, min(times, default=0.0))


def mark_delivered(waiting: Letter, target: Target) -> Letter:
    return msgspec.structs.replace(waiting, took=(*waiting.took, target.id))


def mark_failed(waiting: Letter, target: Target, now: float, jitter: float) -> Letter:
    """`jitter`: from 0 to 1."""
    before = waiting.tries.get(target.id, Try(0, now, now))
    if now - before.first >= RETRY_PERIOD:
        return msgspec.structs.replace(waiting, gave_up=(*waiting.gave_up, target.id))
    pause = min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(before.count, 10)) * (1 - jitter / 4)
    tried = Try(before.count + 1, before.first, now + pause)
    return msgspec.structs.replace(waiting, tries={**waiting.tries, target.id: tried})


def next_reminder(waiting: Letter, now: float) -> Letter | None:
    """When all have had it: the letter again, later; None: it is done."""
    if not waiting.later or now - waiting.made > MAX_AGE:
        return None
    return msgspec.structs.replace(
        waiting,
        due=now + waiting.later[0],
        later=waiting.later[1:],
        round=waiting.round + 1,
        took=(),
        gave_up=(),
        tries={},
    )


def is_stale(waiting: Letter, now: float) -> bool:
    return now - waiting.made > MAX_AGE


def title_of(waiting: Letter) -> str:
    return waiting.title if waiting.round == 1 else f"{waiting.title} (sent for the {_ORDINAL[waiting.round]} time)"


def body_of(waiting: Letter) -> str:
    return waiting.body if waiting.round == 1 else f"{waiting.body}\nYou know? wal-agent notify --ack"


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A URL that did not take its last message. `told`: the person has seen it."""

    since: float
    last: float
    why: str
    told: bool = False


_KINDS: dict[str, msgspec.json.Decoder[Any]] = {
    "letter": msgspec_compat.of_json(Letter),
    "said": msgspec_compat.of_json(float),  # when the message of this key was enqueued
    "halt": msgspec_compat.of_json(Halt),
    "failure": msgspec_compat.of_json(Failure),
}


def root(env: Mapping[str, str]) -> Path:
    return state_dir(env) / FOLDER


def job_digest(bucket: str, job: str) -> str:
    """Name a job in all boxes, without its words."""
    return hashlib.sha256(f"{bucket}\n{job}".encode()).hexdigest()[:16]


def outbox_for(env: Mapping[str, str], targets: Sequence[Target]) -> Outbox:
    """Return the box of exactly these URLs and levels."""
    words = sorted(f"{target.level} {target.url}" for target in targets)
    return Outbox(root(env) / hashlib.sha256("\n".join(words).encode()).hexdigest()[:16])


class Queue:
    """One open transaction on a box's table of JSON values, each with a kind and a key."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def all(self, kind: str) -> dict[str, Any]:
        """By key, sorted. What cannot be decoded is removed."""
        found = {}
        rows = self._db.execute("SELECT key, value FROM item WHERE kind = ? ORDER BY key", (kind,)).fetchall()
        for key, value in rows:
            try:
                found[key] = _KINDS[kind].decode(value)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.remove(kind, key)
        return found

    def set(self, kind: str, key: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO item VALUES (?, ?, ?)", (kind, key, msgspec.json.encode(value)))

    def remove(self, kind: str, key: str) -> None:
        self._db.execute("DELETE FROM item WHERE kind = ? AND key = ?", (kind, key))

    def keep(self, kind: str, values: Mapping[str, object]) -> None:
        """Keep exactly these of a kind."""
        self._db.execute("DELETE FROM item WHERE kind = ?", (kind,))
        for key, value in values.items():
            self.set(kind, key, value)


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite does not wait for another process there (no busy handler while the mode changes, or while
    the last other connection closes), so this does."""
    until = time.monotonic() + _BUSY
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_RETRY)


class Outbox:
    """The messages to one set of URLs: an SQLite database (WAL mode) in a private folder of its own.

    Every method is one transaction on a connection of its own, so threads and processes may share a box, and a kill
    leaves either all or nothing of a change. OSError: the disk or the database failed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ---- letters

    def put(self, key: str, make: Callable[[bool, Halt | None], Letter | None], now: float) -> bool:
        """Enqueue the letter that `make` returns. It gets whether `key` was enqueued within the last `WINDOW`, and what
        is known of a halt of this key. Return whether there is a new one: nothing is added to one of the same key that
        insists already, and of one job just one does."""
        with self._transaction() as queue:
            digest = hashlib.sha256(key.encode()).hexdigest()[:16]
            if any(known.key == digest and known.insists for known in queue.all("letter").values()):
                return False
            said = {k: at for k, at in queue.all("said").items() if 0 <= now - at < REPEAT_WINDOW}
            halts = _known_halts(queue, now)
            made = make(digest in said, halts.get(digest))
            if digest in halts:
                _remember(queue, {**halts, digest: msgspec.structs.replace(halts[digest], heard=now)})
            said.setdefault(digest, now)
            queue.keep("said", dict(sorted(said.items(), key=lambda entry: entry[1])[-MAX_KEYS:]))
            if made is None:
                return False
            if made.insists:
                _cancel(queue, made.about, now)
            waiting = queue.all("letter")
            if len(waiting) >= MAX_LETTERS:
                least = min(waiting, key=lambda name: (LEVELS.index(waiting[name].level), name))
                queue.remove("letter", least)
            name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
            queue.set("letter", name, msgspec.structs.replace(made, key=digest))
            return True

    def letters(self) -> dict[str, Letter]:
        """By name, the oldest first."""
        return self._all("letter", Letter)

    def change(self, name: str, change: Callable[[Letter], Letter | None]) -> None:
        """Replace the letter by what `change` returns (None: remove), unless it was cancelled meanwhile."""
        with self._transaction() as queue:
            waiting = queue.all("letter").get(name)
            if waiting is None:
                return
            changed = change(waiting)
            if changed is not None:
                queue.set("letter", name, changed)
                return
            if halt := halt_when_done(waiting, now := time.time()):
                _remember(queue, {**_known_halts(queue, now), waiting.key: halt})
            queue.remove("letter", name)

    def cancel(self, whose: str | None) -> int:
        """End all reminders of one job or (None) of all, and forget its halts: the next one is news. Return how many
        there were. A first message that was not sent yet is sent once."""
        if not self._exists():
            return 0
        with self._transaction() as queue:
            now = time.time()
            number = _cancel(queue, whose, now)
            known = _known_halts(queue, now)
            _remember(queue, {k: halt for k, halt in known.items() if whose not in (None, halt.about)})
            return number

    def suspend(self, whose: str, now: float) -> None:
        """The job was started again: end its reminders while it runs. A halt of the same key continues their count."""
        if self._exists():
            with self._transaction() as queue:
                _cancel(queue, whose, now)

    def known_halts(self, now: float) -> dict[str, Halt]:
        """By the message's key; what did not come again for a day is forgotten."""
        return _fresh(self._all("halt", Halt), now)

    # ---- what failed

    def failures(self) -> dict[str, Failure]:
        """By the target's id."""
        return self._all("failure", Failure)

    def fail(self, target: Target, why: str, now: float) -> None:
        with self._transaction() as queue:
            before = queue.all("failure").get(target.id)
            failure = msgspec.structs.replace(before, last=now, why=why) if before else Failure(now, now, why)
            queue.set("failure", target.id, failure)

    def clear(self, target: Target) -> None:
        """The target took a message."""
        if self._exists():
            with self._transaction() as queue:
                queue.remove("failure", target.id)

    def mark_reported(self) -> None:
        with self._transaction() as queue:
            for key, failure in queue.all("failure").items():
                queue.set("failure", key, msgspec.structs.replace(failure, told=True))

    # ---- the database

    @property
    def served(self) -> bool:
        """Whether a sender lives."""
        return flock_state(self.folder / SENDER) == "held"

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes whenever a letter comes, goes or is changed; without opening the database."""
        return self._size_and_time(QUEUE) + self._size_and_time(f"{QUEUE}-wal")[:1]

    def used(self) -> float:
        """Return when the box was last changed, in seconds since 1970."""
        path = self.folder / QUEUE
        return (path if path.exists() else self.folder).stat().st_mtime

    def _size_and_time(self, name: str) -> tuple[int, int]:
        try:
            info = (self.folder / name).stat()
        except OSError:
            return 0, 0
        return info.st_size, info.st_mtime_ns

    def _exists(self) -> bool:
        return (self.folder / QUEUE).exists()

    def _all(self, kind: str, _: type[T]) -> dict[str, T]:
        if not self._exists():
            return {}
        with self._transaction() as queue:
            return queue.all(kind)

    @contextmanager
    def _transaction(self) -> Iterator[Queue]:
        try:
            db = self._open()
            with closing(db), db:  # commits, or rolls back where something is raised
                db.execute("BEGIN IMMEDIATE")
                yield Queue(db)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"{self.folder / QUEUE}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        """A damaged database is replaced by an empty one: messages are no log, and must not stop a run."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / QUEUE
        for last in (False, True):
            _create_private(path)
            db = sqlite3.connect(path, timeout=_BUSY, isolation_level=None)
            try:
                _use_wal(db)
                db.execute("PRAGMA synchronous = NORMAL")
                if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                    raise sqlite3.DatabaseError("the database is damaged")
                db.execute("CREATE TABLE IF NOT EXISTS item (kind TEXT, key TEXT, value BLOB, PRIMARY KEY (kind, key))")
                return db
            except sqlite3.DatabaseError as error:
                db.close()
                if last or getattr(error, "sqlite_errorcode", _BROKEN[0]) not in _BROKEN:
                    raise
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
        raise AssertionError


def _create_private(path: Path) -> None:
    """Create an empty 0600 file, unless there is one. It is linked into place: closing a descriptor of a database that
    another thread has open would drop that thread's locks (POSIX)."""
    if path.exists():
        return
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink()


def _fresh(known: Mapping[str, Halt], now: float) -> dict[str, Halt]:
    return {k: halt for k, halt in known.items() if abs(now - halt.heard) <= MAX_AGE}


def _known_halts(queue: Queue, now: float) -> dict[str, Halt]:
    return _fresh(queue.all("halt"), now)


def _remember(queue: Queue, halts: Mapping[str, Halt]) -> None:
    queue.keep("halt", dict(sorted(halts.items(), key=lambda entry: entry[1].heard)[-MAX_KEYS:]))


def _cancel(queue: Queue, whose: str | None, now: float) -> int:
    number = 0
    for name, waiting in queue.all("letter").items():
        if waiting.insists and whose in (None, waiting.about):
            number += 1
            _remember(queue, {**_known_halts(queue, now), waiting.key: halt_when_suspended(waiting)})
            if waiting.round > 1:
                queue.remove("letter", name)
            else:
                queue.set("letter", name, msgspec.structs.replace(waiting, later=()))
    return number


def list_boxes(env: Mapping[str, str]) -> list[Outbox]:
    try:
        return [Outbox(path) for path in sorted(root(env).iterdir()) if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def acknowledge(env: Mapping[str, str], whose: str | None) -> int:
    """Whoever had these URLs, and whatever they are: nothing insists any more (see `Box.cancel`)."""
    return sum(box.cancel(whose) for box in list_boxes(env))


def suspend(env: Mapping[str, str], whose: str, now: float) -> None:
    """In all boxes (see `Box.suspend`)."""
    for box in list_boxes(env):
        box.suspend(whose, now)


def sweep(env: Mapping[str, str], but: Outbox, now: float) -> None:
    """Remove the boxes of URLs that are not used any more."""
    for box in list_boxes(env):
        with suppress(OSError):
            if box.folder != but.folder and now - box.used() > MAX_IDLE and not box.served:
                shutil.rmtree(box.folder)


def count_waiting(found: Iterable[Letter], now: float) -> tuple[int, int]:
    """How many are to be sent now, and how many later."""
    due = [entry.due <= now for entry in found]
    return sum(due), len(due) - sum(due)


def describe_failures(env: Mapping[str, str], targets: Sequence[Target], once: bool = False) -> str:
    """`once`: only what was not told so before."""
    box = outbox_for(env, targets)
    failures = box.failures()
    lines = [
        f"{number} ({target.hidden}) since {moment(failure.since, time.time())}: {failure.why}"
        for number, target in enumerate(targets, 1)
        if (failure := failures.get(target.id)) and not (once and failure.told)
    ]
    if once and lines:
        with suppress(OSError):
            box.mark_reported()
    more = f" And {len(lines) - 1} more." if len(lines) > 1 else ""
    return f"notifications do not reach URL {lines[0]}.{more} Try: wal-agent notify --test" if lines else ""

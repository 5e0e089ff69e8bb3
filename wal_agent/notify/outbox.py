"""The outbox on disk: messages wait here until the sender delivers them; a run that dies loses none.

A `Letter` is one message to one target: when it is due, tried again, merged with later ones, or stale.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from wal_agent import msgspec_compat
from wal_agent.notify.message import LEVELS, Level, Message, reaches
from wal_agent.notify.targets import Target
from wal_agent.paths import state_dir
from wal_agent.recovery.format import moment
from wal_agent.safefs import flock_state, read_plain

PATIENCE = 600.0  # seconds for which one URL is tried
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 90.0
LATER = (900.0, 3600.0, 14_400.0)  # seconds, each after the one before: four times in all
STALE = 86_400.0  # seconds; what nobody could send for a day is dropped
WINDOW = 900.0  # seconds in which a message is not said again


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


def letter(
    message: Message, about: str, now: float, said_before: bool = False, halt: Halt | None = None
) -> Letter | None:
    """None: nothing is to be sent. `said_before`: people have just been told this, so it is not said at once; how often
    they were told of a halt, `halt` says."""
    later: tuple[float, ...] = LATER if message.insists else ()
    if not later:
        return None if said_before else _letter(message, about, now, now, (), 1)
    if halt is None and said_before:
        halt = Halt(about, 1, now + LATER[0], now)
    if halt is None:
        return _letter(message, about, now, now, LATER, 1)
    if not 1 <= halt.rounds <= len(LATER):
        return None
    due = min(max(now, halt.due), now + LATER[halt.rounds - 1])  # also when the clock was set back
    return _letter(message, about, now, due, LATER[halt.rounds :], halt.rounds + 1)


def _letter(message: Message, about: str, now: float, due: float, later: tuple[float, ...], round: int) -> Letter:
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


def cut_short(waiting: Letter) -> Halt:
    """What is known of a halt when its job is started again. The first round is told in any case."""
    if waiting.round == 1:
        return Halt(waiting.about, 1, waiting.made + LATER[0], waiting.made)
    return Halt(waiting.about, waiting.round - 1, waiting.due, waiting.made)


def told(waiting: Letter, now: float) -> Halt | None:
    """The same when its last round is over; None: nobody was reached."""
    if not (waiting.insists and (waiting.took or waiting.gave_up)):
        return None
    return Halt(waiting.about, waiting.round, now, now)


def left(waiting: Letter, targets: Iterable[Target]) -> list[Target]:
    """Who has still to get it in this round."""
    done = {*waiting.took, *waiting.gave_up}
    return [t for t in targets if reaches(waiting.level, t.level) and t.id not in done]


def when(waiting: Letter, target: Target, now: float) -> float:
    """When it is to be sent to `target`. A clock that was set back puts it off no longer than it ever waits."""
    tried = waiting.tries.get(target.id)
    at, most = (tried.again, LONGEST_PAUSE) if tried else (waiting.due, LATER[-1])
    return at if at - now <= most else now


def wake(letters: Iterable[Letter], targets: Sequence[Target], now: float) -> float:
    """Seconds until the next one is to be sent; 0: now, or there is nothing."""
    times = [when(waiting, target, now) - now for waiting in letters for target in left(waiting, targets)]
    return max(0.0, min(times, default=0.0))


def taken(waiting: Letter, target: Target) -> Letter:
    return msgspec.structs.replace(waiting, took=(*waiting.took, target.id))


def failed(waiting: Letter, target: Target, now: float, jitter: float) -> Letter:
    """`jitter`: from 0 to 1."""
    before = waiting.tries.get(target.id, Try(0, now, now))
    if now - before.first >= PATIENCE:
        return msgspec.structs.replace(waiting, gave_up=(*waiting.gave_up, target.id))
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(before.count, 10)) * (1 - jitter / 4)
    tried = Try(before.count + 1, before.first, now + pause)
    return msgspec.structs.replace(waiting, tries={**waiting.tries, target.id: tried})


def next_round(waiting: Letter, now: float) -> Letter | None:
    """When all have had it: the letter again, later; None: it is done."""
    if not waiting.later or now - waiting.made > STALE:
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


def stale(waiting: Letter, now: float) -> bool:
    return now - waiting.made > STALE


def title(waiting: Letter) -> str:
    return waiting.title if waiting.round == 1 else f"{waiting.title} (told for the {_ORDINAL[waiting.round]} time)"


def body(waiting: Letter) -> str:
    return waiting.body if waiting.round == 1 else f"{waiting.body}\nYou know? wal-agent notify --ack"


_ORDINAL = {2: "second", 3: "third", 4: "fourth"}


T = TypeVar("T")

FOLDER = "notify"
SENDER = "sender.lock"  # held by the one sender
_EDIT = "edit.lock"
_SAID = "said"
_HALTS = "halts"
_FAILED = "failed"
_SUFFIX = ".json"
MOST_LETTERS = 100
MOST_BYTES = 32_768  # of one file
MOST_SAID = 200
IDLE = 2 * 86_400.0  # seconds after which a box that nobody uses is removed


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A URL that has not taken its last message. `told`: the person has seen it."""

    since: float
    last: float
    why: str
    told: bool = False


_LETTER = msgspec_compat.of_json(Letter)
_TIMES = msgspec_compat.of_json(dict[str, float])
_KNOWN = msgspec_compat.of_json(dict[str, Halt])
_FAILURES = msgspec_compat.of_json(dict[str, Failure])


def root(env: Mapping[str, str]) -> Path:
    return state_dir(env) / FOLDER


def about(bucket: str, job: str) -> str:
    """Names a job in all boxes, without its words."""
    return hashlib.sha256(f"{bucket}\n{job}".encode()).hexdigest()[:16]


def box_of(env: Mapping[str, str], targets: Sequence[Target]) -> Box:
    """The box of just these URLs and levels."""
    words = sorted(f"{target.level} {target.url}" for target in targets)
    return Box(root(env) / hashlib.sha256("\n".join(words).encode()).hexdigest()[:16])


class Box:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ---- letters

    def put(self, key: str, make: Callable[[bool, Halt | None], Letter | None], now: float) -> bool:
        """Leave the letter that `make` gives; it is told whether `key` was said within the last `WINDOW`, and what is
        known of a halt of this key. Whether there is a new one: nothing is added to one of the same key that insists
        already, and of one job just one does."""
        with self._edit():
            digest, found = hashlib.sha256(key.encode()).hexdigest()[:16], self.letters()
            if any(known.key == digest and known.insists for known in found.values()):
                return False
            said = {k: at for k, at in self._table(_SAID, _TIMES).items() if 0 <= now - at < WINDOW}
            halts = self.known_halts(now)
            made = make(digest in said, halts.get(digest))
            if digest in halts:
                self._remember({**halts, digest: msgspec.structs.replace(halts[digest], heard=now)})
            said.setdefault(digest, now)
            self._write(_SAID, dict(sorted(said.items(), key=lambda entry: entry[1])[-MOST_SAID:]))
            if made is None:
                return False
            if made.insists:
                self._cancel(made.about, now)
            self._make_room()
            made = msgspec.structs.replace(made, key=digest)
            self._write(f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}", made)
            return True

    def letters(self) -> dict[str, Letter]:
        """By name, the oldest first. What is no letter is removed."""
        found = {}
        for name in self._names():
            waiting = self._read(name)
            if waiting is None:
                (self.folder / name).unlink(missing_ok=True)
            else:
                found[name] = waiting
        return found

    def change(self, name: str, change: Callable[[Letter], Letter | None]) -> None:
        """Replace the letter by what `change` makes of it (None: remove), unless somebody has cancelled it."""
        with self._edit():
            waiting = self._read(name)
            changed = change(waiting) if waiting is not None else None
            if waiting is not None and changed is None and (halt := told(waiting, now := time.time())):
                self._remember({**self.known_halts(now), waiting.key: halt})
            if changed is None:
                (self.folder / name).unlink(missing_ok=True)
            else:
                self._write(name, changed)

    def cancel(self, whose: str | None) -> int:
        """Let nothing insist any more, of one job or (None) of all, and forget its halts: the next one is news. How
        many insisted. What nobody was told yet is told once."""
        if not self._names() and not self._table(_HALTS, _KNOWN):
            return 0
        with self._edit():
            number, now = self._cancel(whose, time.time()), time.time()
            known = {k: halt for k, halt in self.known_halts(now).items() if whose not in (None, halt.about)}
            self._remember(known)
            return number

    def suspend(self, whose: str, now: float) -> None:
        """The job was started again: nothing insists while it runs. A halt of the same key goes on where this was."""
        if self._names():
            with self._edit():
                self._cancel(whose, now)

    def known_halts(self, now: float) -> dict[str, Halt]:
        """By the message's key; what did not come again for a day is forgotten."""
        known = self._table(_HALTS, _KNOWN)
        return {k: halt for k, halt in known.items() if abs(now - halt.heard) <= STALE}

    def _remember(self, halts: Mapping[str, Halt]) -> None:
        self._write(_HALTS, dict(sorted(halts.items(), key=lambda entry: entry[1].heard)[-MOST_SAID:]))

    def _cancel(self, whose: str | None, now: float) -> int:
        number = 0
        for name, waiting in self.letters().items():
            if waiting.insists and whose in (None, waiting.about):
                number += 1
                self._remember({**self.known_halts(now), waiting.key: cut_short(waiting)})
                if waiting.round > 1:
                    (self.folder / name).unlink(missing_ok=True)
                else:
                    self._write(name, msgspec.structs.replace(waiting, later=()))
        return number

    def _make_room(self) -> None:
        waiting = self.letters()
        if len(waiting) >= MOST_LETTERS:
            least = min(waiting, key=lambda name: (LEVELS.index(waiting[name].level), name))
            (self.folder / least).unlink(missing_ok=True)

    # ---- what failed

    def failures(self) -> dict[str, Failure]:
        """By the target's id."""
        return self._table(_FAILED, _FAILURES)

    def fail(self, target: Target, why: str, now: float) -> None:
        with self._edit():
            known = self.failures()
            before = known.get(target.id)
            failure = msgspec.structs.replace(before, last=now, why=why) if before else Failure(now, now, why)
            self._write(_FAILED, {**known, target.id: failure})

    def clear(self, target: Target) -> None:
        """It has taken a message."""
        with self._edit():
            known = self.failures()
            if known.pop(target.id, None):
                self._write(_FAILED, known)

    def told(self) -> None:
        with self._edit():
            known = {k: msgspec.structs.replace(f, told=True) for k, f in self.failures().items()}
            self._write(_FAILED, known)

    # ---- files

    @property
    def served(self) -> bool:
        """Whether a sender lives."""
        return flock_state(self.folder / SENDER) == "held"

    def stamp(self) -> int:
        """Changes whenever a letter comes, goes or is changed."""
        try:
            return self.folder.stat().st_mtime_ns
        except OSError:
            return 0

    def make(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def _edit(self) -> Iterator[None]:
        self.make()
        fd = os.open(self.folder / _EDIT, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self.folder.iterdir() if path.name.endswith(_SUFFIX))
        except OSError:
            return []

    def _read(self, name: str) -> Letter | None:
        data = read_plain(self.folder / name, MOST_BYTES)
        try:
            return None if data is None else _LETTER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _table(self, name: str, decoder: msgspec.json.Decoder[dict[str, T]]) -> dict[str, T]:
        data = read_plain(self.folder / name, MOST_BYTES)
        try:
            return decoder.decode(data or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}

    def _write(self, name: str, value: object) -> None:
        temp = self.folder / ".new"  # one suffices, under the lock
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(value))
        temp.replace(self.folder / name)


def boxes(env: Mapping[str, str]) -> list[Box]:
    try:
        return [Box(path) for path in sorted(root(env).iterdir()) if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def acknowledge(env: Mapping[str, str], whose: str | None) -> int:
    """Whoever had these URLs, and whatever they are: nothing insists any more (see `Box.cancel`)."""
    return sum(box.cancel(whose) for box in boxes(env))


def suspend(env: Mapping[str, str], whose: str, now: float) -> None:
    """In all boxes (see `Box.suspend`)."""
    for box in boxes(env):
        box.suspend(whose, now)


def sweep(env: Mapping[str, str], but: Box, now: float) -> None:
    """Remove the boxes of URLs that are not used any more."""
    for box in boxes(env):
        with suppress(OSError):
            if box.folder != but.folder and now - box.folder.stat().st_mtime > IDLE and not box.served:
                shutil.rmtree(box.folder)


def waiting(found: Iterable[Letter], now: float) -> tuple[int, int]:
    """How many are to be sent now, and how many later."""
    due = [entry.due <= now for entry in found]
    return sum(due), len(due) - sum(due)


def failing(env: Mapping[str, str], targets: Sequence[Target], once: bool = False) -> str:
    """`once`: only what was not told so before."""
    box = box_of(env, targets)
    failures = box.failures()
    lines = [
        f"{number} ({target.hidden}) since {moment(failure.since, time.time())} UTC: {failure.why}"
        for number, target in enumerate(targets, 1)
        if (failure := failures.get(target.id)) and not (once and failure.told)
    ]
    if once and lines:
        with suppress(OSError):
            box.told()
    more = f" And {len(lines) - 1} more." if len(lines) > 1 else ""
    return f"notifications do not reach URL {lines[0]}.{more} Try: wal-agent notify --test" if lines else ""

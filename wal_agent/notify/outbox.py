"""The folder in which messages wait for the sender: `<state>/notify/<which URLs>/`, private to this user.

One small JSON file a message, replaced in one step under a lock. It outlives the run and a restart of the machine, and
nothing more: what waits on a disk that is lost is lost. Runs with the same URLs share a box and its sender.
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
from wal_agent.flock import flock_state
from wal_agent.notify import letter as letters_
from wal_agent.notify.letter import Halt, Letter
from wal_agent.notify.message import LEVELS
from wal_agent.notify.targets import Target
from wal_agent.paths import state_dir
from wal_agent.plainfile import read_plain

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
            said = {k: at for k, at in self._table(_SAID, _TIMES).items() if 0 <= now - at < letters_.WINDOW}
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
            if waiting is not None and changed is None and (halt := letters_.told(waiting, now := time.time())):
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
        return {k: halt for k, halt in known.items() if abs(now - halt.heard) <= letters_.STALE}

    def _remember(self, halts: Mapping[str, Halt]) -> None:
        self._write(_HALTS, dict(sorted(halts.items(), key=lambda entry: entry[1].heard)[-MOST_SAID:]))

    def _cancel(self, whose: str | None, now: float) -> int:
        number = 0
        for name, waiting in self.letters().items():
            if waiting.insists and whose in (None, waiting.about):
                number += 1
                self._remember({**self.known_halts(now), waiting.key: letters_.cut_short(waiting)})
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

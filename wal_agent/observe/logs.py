"""The structured log: a line an event, as JSON or as key=value, with the same first keys on each. Redacted.

Each line is one write to a file that is opened to append, so several runs may share one, and a rotation that copies and
truncates loses nothing whole.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from wal_agent.errors import ConfigError
from wal_agent.events import Event, LeaseTaken
from wal_agent.observe.words import LEVELS, Level, Line, Value, lines_of
from wal_agent.sanitize import quote

LONGEST = 1000  # characters of one value
_BARE = re.compile(r"[A-Za-z0-9_./:+@-]+")


def open_log(path: Path) -> int:
    """A descriptor to append to, 0600 where the file is new. ConfigError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"--log-file {path} cannot be written: {error.strerror}. Nothing was run.") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"--log-file {path} is not a regular file. Nothing was run.")
    return fd


class Log:
    """`fd` is written to, and closed at the end unless it is stderr's. Heard in a thread of its own (aside.py)."""

    def __init__(self, fd: int, form: str, level: Level, job: str, say: Callable[[str], None]) -> None:
        self._fd = fd
        self._shape = as_json if form == "json" else as_text
        self._least = LEVELS.index(level)
        self._say = say
        self._head: dict[str, Value] = {"job": _clean(job), "host": "", "epoch": 0, "run": ""}
        self._lost, self._why = 0, ""

    def hear(self, at: float, happening: Event) -> None:
        if isinstance(happening, LeaseTaken):
            self._head = {
                "job": _clean(happening.job),
                "host": _clean(happening.host),
                "epoch": happening.epoch,
                "run": _clean(happening.run),
            }
        for line in lines_of(happening):
            if LEVELS.index(line.level) >= self._least:
                self._write(self._shape(record(at, line, self._head)))

    def close(self) -> None:
        if self._fd > 2:
            os.close(self._fd)
        if self._lost:
            self._say(f"{self._lost} lines of the log could not be written: {self._why}.")

    def _write(self, text: str) -> None:
        data = text.encode("ascii") + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._lost, self._why = self._lost + 1, error.strerror or "the disk refused"


def record(at: float, line: Line, head: Mapping[str, Value]) -> dict[str, Value | None]:
    """The keys that every line has, in this order, then the event's own. `head`: clean already, as it is on each."""
    whole = int(at)
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((at - whole) * 1000):03d}Z"
    return {
        "time": stamp,
        "level": line.level,
        "event": line.event,
        **head,
        "call_id": line.call or None,
        "msg": _clean(line.msg),
        **{key: _clean(value) for key, value in line.more.items()},
    }


def _clean(value: Value) -> Value:
    return quote(value, LONGEST) if isinstance(value, str) else value


def as_json(made: Mapping[str, Value | None]) -> str:
    return json.dumps(made, allow_nan=False)


def as_text(made: Mapping[str, Value | None]) -> str:
    """`time level event key=value ...`; what is empty is left out."""
    shown = [f"{key}={_text(value)}" for key, value in list(made.items())[3:] if value not in (None, "")]
    return " ".join([str(made["time"]), str(made["level"]), str(made["event"]), *shown])


def _text(value: Value | None) -> str:
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) else json.dumps(value)
    return json.dumps(value)

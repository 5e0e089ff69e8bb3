"""Hold what a run is asked for (`RunOptions`), and where it writes to people (`Screen`).

`Waiting` reports on the screen what the main thread waits for, once that takes long: one line for each wait, from a
thread of its own. While an agent that talks to a person runs, nothing is written: the terminal is the agent's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from wal_agent.agents.base import Agent
from wal_agent.bucket.base import Bucket
from wal_agent.concurrency import start_daemon
from wal_agent.config import Settings
from wal_agent.events import Emit
from wal_agent.supervise.watchdog import Liveness

SAID_AFTER = 2.0  # seconds
AGENT_SAID_AFTER = 10.0  # seconds, for the agent itself to begin or to end: some take three in good health


class ShowWait(Protocol):
    def __call__(self, what: str, most: float = 0.0, after: float = SAID_AFTER) -> AbstractContextManager[None]:
        """Meanwhile `what` is waited for, at most `most` seconds (0: as long as it takes); said `after` seconds."""


def show_no_wait(what: str, most: float = 0.0, after: float = SAID_AFTER) -> AbstractContextManager[None]:
    return nullcontext()


class _Wait(msgspec.Struct):
    what: str
    most: float
    after: float
    since: float
    said: bool = False


class WaitReport(msgspec.Struct):
    """`say`: a line for the person, from any thread. Waits may be nested; the innermost is what is waited for, and the
    one around it begins anew at its end."""

    say: Callable[[str], None]
    now: Callable[[], float] = time.monotonic
    _waits: list[_Wait] = msgspec.field(default_factory=list)
    _changed: threading.Condition = msgspec.field(default_factory=threading.Condition)
    _watcher: threading.Thread | None = None

    @contextmanager
    def waiting_for(self, what: str, most: float = 0.0, after: float = SAID_AFTER) -> Iterator[None]:
        wait = _Wait(what, most, after, self.now())
        with self._changed:
            self._waits.append(wait)
            with suppress(RuntimeError):  # no thread is left: then nothing is said
                self._watcher = self._watcher or start_daemon("waiting", self._watch)
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._waits.remove(wait)
                if self._waits:
                    self._waits[-1].since = self.now()
                self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                wait = self._waits[-1] if self._waits and not self._waits[-1].said else None
                left = None if wait is None else wait.since + wait.after - self.now()
                if wait is None or left is None or left > 0:
                    self._changed.wait(left)
                    continue
                wait.said = True
                line = wait_line(wait.what, wait.after, wait.most)
            self.say(line)


def wait_line(what: str, since: float, most: float) -> str:
    until = f"; gives up after {most:.0f} s" if most else ""
    return f"waiting for {what} (since {since:.0f} s{until})"


def agent_wait(name: str, begun: bool, done: bool) -> str:
    """What is waited for of an agent that talks to nobody. `begun`: a hook of it has come; `done`: its turn is over,
    and nobody has another one for it."""
    if not begun:
        return f"{name} to begin"
    return f"{name} to end; its turn is over" if done else ""


class RunOptions(msgspec.Struct, frozen=True):
    """What the user asked for."""

    agent: Agent
    args: tuple[str, ...]
    settings: Settings
    workspace: Path
    env: dict[str, str]
    fresh: bool = False
    go_on: bool = False
    wait: bool = False
    no_wait: bool = False  # at a terminal too, a silent owner on another machine is not waited for
    handoff: bool = False  # the job may be another agent's: then it becomes this one's
    from_agent: str = ""  # that other agent, where it must be this one
    successors: tuple[str, ...] = ()  # agents that the job is handed to, one after the other, when a quota is used up
    take_over: bool = False  # take the job over although another person ran it last, elsewhere
    found: bool = False  # `resume` looked the job's name up; a name that was not typed is no consent to a take-over
    accept_loss: bool = False  # take the job over although its owner's spool may hold records that nobody else has (R9)
    exit_on_pause: bool = False  # while the job is paused, this process need not stay
    attended: bool = False  # a person typed this at a terminal
    emit: Emit = lambda _: None  # takes each event: metrics, logs, notifications
    metered: Callable[[Bucket], Bucket] = lambda bucket: bucket  # who counts requests puts itself around the bucket
    hosted: bool = False  # an editor or another program talks to the agent (`wal-agent acp`), and chooses the session
    trace: str = ""  # W3C trace id of this run, for its opening record
    liveness: Liveness = msgspec.field(default_factory=Liveness)

    @property
    def interactive(self) -> bool:
        """Whether the agent will talk to a person."""
        return self.hosted or self.agent.is_interactive(self.args, sys.stdin.isatty() and sys.stdout.isatty(), self.env)


class Screen(msgspec.Struct, frozen=True):
    """Where people read: `say` begins a message, `rows` are its further lines; `waiting_for` shows a wait."""

    say: Callable[[str], None]
    rows: Callable[[list[str]], None]
    waiting_for: ShowWait = show_no_wait
    said: set[str] = msgspec.field(default_factory=set)
    redraw: Callable[[str], None] = lambda _: None  # a line in the place of the one before; "" ends it

    def once(self, text: str) -> None:
        """A message that is not repeated when the run is begun again."""
        if text and text not in self.said:
            self.said.add(text)
            self.say(text)

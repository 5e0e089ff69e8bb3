"""Publish what a run does on a NATS server: its status, its checkpoints, and a heartbeat each second.

A listener of the run's events like those of observe/, which reads nothing else. Peers use the heartbeat to notice a
crash within seconds; they must not act on it, since only the lease decides who owns the job.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

import msgspec
from msgspec.structs import asdict, replace

from wal_agent import events
from wal_agent.concurrency import start_daemon
from wal_agent.messages.subjects import Persona, persona_of, subject
from wal_agent.redact import redact
from wal_agent.text import shorten

EVERY: Final = 1.0  # seconds between two heartbeats
MAX_WHY: Final = 300  # characters of a reason
LIVE: Final[tuple[State, ...]] = ("starting", "recovering", "running", "draining")
"""The states of a run that holds the lease: those that have a heartbeat."""

State = Literal["starting", "recovering", "running", "draining", "paused", "fenced", "halted", "closed", "released"]


class Link(Protocol):
    """What of a connection is used here."""

    def publish(self, subject: str, data: bytes, keep: bool = False) -> None: ...

    def close(self) -> None: ...


class Status(msgspec.Struct, frozen=True):
    """What peers may know of a run. `until`: end of a pause (0: none); `why` and all else is redacted."""

    job: str
    agent: str
    state: State = "starting"
    run: str = ""
    epoch: int = 0
    host: str = ""
    phase: str = "starting"
    until: float = 0.0
    why: str = ""


class Word(msgspec.Struct, frozen=True):
    """Something to publish under `agent.<job>.<name>`."""

    name: str
    body: dict[str, object]


def follow(status: Status, event: events.Event) -> tuple[Status, tuple[Word, ...]]:
    """Return the status behind `event`, and what of it is published besides a changed status. Pure."""
    words: tuple[Word, ...] = ()
    match event:
        case events.LeaseTaken():
            status = replace(
                status,
                state="recovering" if event.cause == "dead" else "starting",
                run=event.run,
                epoch=event.epoch,
                host=event.host,
                phase="starting",
                until=0.0,
                why="",
            )
        case events.Ready():
            status = replace(status, state="running")
        case events.PhaseChanged(phase=phase):
            status = replace(status, phase=phase)
        case events.DrainStarted(source=source):
            status = replace(status, state="draining", why=_why(source))
        case events.Paused(until=until, why=why):
            status = replace(status, state="paused", until=until, why=_why(why))
        case events.Halted(what=what):
            status = replace(status, state="halted", why=_why(what))
        case events.LeaseLost(why=why):
            status = replace(status, state="fenced", why=_why(why))
        case events.LeaseSettled(state="closed"):
            status = replace(status, state="closed", why="")
        case events.LeaseSettled(until=0) if status.state not in ("halted", "fenced", "paused"):
            status = replace(status, state="released", why=_why(event.reason))
        case events.CheckpointCreated(number=number, trigger=trigger, size=size):
            words = (Word("checkpoint.created", {"number": number, "trigger": trigger, "size": size}),)
        case events.CheckpointRestored(number=number, age=age, rebuilt=rebuilt):
            words = (Word("checkpoint.restored", {"number": number, "age": round(age, 1), "rebuilt": rebuilt}),)
        case events.CheckpointFailed(why=why):
            words = (Word("checkpoint.failed", {"why": _why(why)}),)
        case _:
            pass
    return status, words


class StatusPublisher:
    """Publish the status of one process's runs. `alive`: whether the supervisor's loop works; without that no beat is
    sent, so that a run that hangs looks like one."""

    def __init__(
        self,
        link: Link,
        job: str,
        agent: str,
        owner: str,
        now: Callable[[], float],
        alive: Callable[[], bool],
        every: float = EVERY,
    ) -> None:
        self._link, self._job, self._now, self._alive, self._every = link, job, now, alive, every
        self._persona = persona_of(agent, owner, job)
        self._lock = threading.Lock()
        self._status = Status(job, agent)
        self._stop = threading.Event()
        start_daemon("heartbeat", self._beat)

    def on_event(self, at: float, event: events.Event) -> None:
        with self._lock:
            before = self._status
            self._status, words = follow(before, event)
            status = self._status
        for word in words:
            self._publish(word.name, {**word.body, "job": self._job, "epoch": status.epoch, "time": at}, keep=True)
        if replace(status, phase="") != replace(before, phase=""):
            self._publish("status", {**asdict(status), "time": at}, keep=True)

    def close(self) -> None:
        self._stop.set()
        self._link.close()

    def _beat(self) -> None:
        number = 0
        while not self._stop.wait(self._every):
            with self._lock:
                status = self._status
            if status.epoch == 0 or status.state not in LIVE or not self._alive():
                continue
            number += 1
            now = self._now()
            self._publish("heartbeat", {**asdict(status), "time": now, "number": number, "interval": self._every})
            beat = synadia_beat(self._persona, status.run, now, self._every)
            self._link.publish(self._persona.subject("hb"), _json(beat))

    def _publish(self, name: str, body: dict[str, object], keep: bool = False) -> None:
        self._link.publish(subject(self._job, *name.split(".")), _json(body), keep)


def synadia_beat(persona: Persona, run: str, now: float, every: float = EVERY) -> dict[str, object]:
    """Return a heartbeat in the shape of the Synadia Agent Protocol 0.3, section 8.3. Pure."""
    return {
        "agent": persona.agent,
        "owner": persona.owner,
        "session": persona.session,
        "instance_id": run,
        "ts": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "interval_s": max(1, round(every)),  # a whole number there
    }


def _why(text: str) -> str:
    return shorten(redact(text), MAX_WHY)


def _json(body: dict[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()

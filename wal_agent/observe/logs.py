"""The structured log: one line per event, as JSON or text, with secrets redacted; and a listener's thread.

`BackgroundListener` runs a listener that may block (disk, pipe, network) in a thread of its own, behind a bounded
queue.
"""

from __future__ import annotations

import json
import os
import queue
import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, assert_never

import msgspec

from wal_agent import events
from wal_agent.concurrency import start_daemon
from wal_agent.errors import ConfigError
from wal_agent.events import Event, Listener
from wal_agent.records import state_text
from wal_agent.text import plural, quote

MAX_QUEUED = 10_000  # events; a run emits some tens a second
CLOSE_TIMEOUT = 3.0  # seconds that the end of the process waits for queued events
LONGEST = 1000  # characters of one value

_BARE = re.compile(r"[A-Za-z0-9_./:+@-]+")


class BackgroundListener:
    """`make` creates the listener in the thread, so that slow imports delay no start."""

    def __init__(
        self,
        make: Callable[[], Listener],
        name: str,
        say: Callable[[str], None],
        most: int = MAX_QUEUED,
        last: float | None = None,
    ) -> None:
        self._make = make
        self._name = name
        self._say = say
        self._last = CLOSE_TIMEOUT if last is None else last
        self._queue: queue.Queue[tuple[float, Event] | None] = queue.Queue(most)
        self._dropped = 0
        self._error: Exception | None = None
        self._thread = start_daemon(f"observe-{name}", self._loop)

    def on_event(self, at: float, event: Event) -> None:
        """Enqueue without waiting; what does not fit is dropped and counted. Raises a listener's failure, once."""
        try:
            self._queue.put_nowait((at, event))
        except queue.Full:
            self._dropped += 1
        self._raise()

    def close(self) -> None:
        try:
            self._queue.put(None, timeout=self._last)
        except queue.Full:
            pass
        self._thread.join(self._last)
        if self._thread.is_alive():
            self._say(f"{self._name}: what was left could not be handed over within {self._last:g} s.")
        elif self._dropped:
            self._say(f"{self._name}: {self._dropped} events were dropped, as they were not taken in time.")
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _loop(self) -> None:
        listener: Listener | None = None
        try:
            listener = self._make()
        except Exception as error:  # noqa: BLE001 - reported by the next call
            self._error = error
        while (item := self._queue.get()) is not None:
            if listener is not None:
                self._guarded(lambda to=listener, what=item: to.on_event(*what))  # type: ignore[misc]
        if listener is not None:
            self._guarded(listener.close)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - reported by the next call
            self._error = error


Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
Value = str | int | float | bool


class Line(msgspec.Struct, frozen=True):
    """`call`: the job's number of the call that it is about, 0 for none. `more`: fields of this event's own."""

    level: Level
    event: str
    msg: str
    more: Mapping[str, Value] = msgspec.field(default_factory=dict)
    call: int = 0


def lines_of(event: events.Event) -> list[Line]:
    """One line for most; what a taken lease says of the run before is a line of its own."""
    match event:
        case events.LeaseTaken():
            more: dict[str, Value] = {
                "cause": event.cause,
                "bucket": event.bucket,
                "agent": event.agent,
                "agent_version": event.agent_version,
                "workspace": event.workspace,
                "ttl": event.ttl,
            }
            taken = Line("info", "lease.acquired", f"the job is ours under epoch {event.epoch}", more)
            if event.cause != "dead":
                return [taken]
            return [taken, Line("warning", "crash.detected", "the run before was cut off", {"cause": "dead"})]
        case events.LeaseRenewed(left=left):
            return [Line("debug", "lease.renewed", "renewed", {"left": _seconds(left)})]
        case events.RenewalFailed(why=why, left=left):
            return [Line("warning", "lease.renewal_failed", why, {"left": _seconds(left)})]
        case events.LeaseLost(why=why):
            return [Line("error", "lease.lost", why)]
        case events.LeaseSettled(state=state, reason=reason, until=until):
            level: Level = "warning" if state == "left" else "info"
            name = "lease.left" if state == "left" else "lease.released"
            return [Line(level, name, reason, {"state": state, "until": until})]
        case events.Recovered():
            return _recovered(event)
        case events.Halted(code=code, what=what, hint=hint):
            return [Line("error", "run.halted", what, {"code": code, "hint": hint})]
        case events.LeftOpen(calls=calls):
            named = " ".join(f"#{call} {tool} ({state_text(state)})" for call, tool, state in calls[:20])
            open_: dict[str, Value] = {"count": len(calls), "calls": named}
            return [Line("warning", "calls.left_open", f"{plural(len(calls), 'open call')}", open_)]
        case events.Ready():
            return [Line("info", "run.ready", "lease, restore and hooks are proven; the agent works")]
        case events.AgentBegan(pid=pid, session=session, resumed=resumed):
            return [
                Line("info", "agent.started", "started", {"pid": pid, "session": session, "resumed": resumed}),
            ]
        case events.AgentEnded(code=code, cls=cls, why=why):
            level = "info" if cls in ("completed", "interrupted", "drained", "paused") else "warning"
            return [Line(level, "agent.exited", why, {"code": code, "class": cls})]
        case events.HookAnswered(event=hook, decision=decision, reason=reason, seconds=seconds):
            fields: dict[str, Value] = {"hook": hook, "reason": reason, "seconds": _seconds(seconds)}
            if decision == "deny":
                return [Line("warning", "hook.denied", f"a call was denied: {reason or 'refused'}", fields)]
            return [Line("debug", "hook.answered", decision or "noted", fields)]
        case events.CallStarted(call=call, tool=tool, cls=kind, agent_call=agent_call):
            own: dict[str, Value] = {"tool": tool, "class": kind, "agent_call": agent_call}
            return [Line("info", "call.started", tool, own, call)]
        case events.CallEnded(call=call, tool=tool, how=how, seconds=seconds):
            ended: dict[str, Value] = {"tool": tool, "how": how, "seconds": _seconds(seconds)}
            return [Line("info", "call.ended", f"{tool}: {how}", ended, call)]
        case events.PhaseChanged(was=was, phase=phase, tool=tool, lasted=lasted):
            change: dict[str, Value] = {"phase": phase, "was": was, "tool": tool, "lasted": _seconds(lasted)}
            return [Line("info", "phase.changed", f"{was} -> {phase}", change)]
        case events.TakesLong(what=waited, seconds=seconds, tool=tool):
            long: dict[str, Value] = {"what": waited, "seconds": _seconds(seconds), "tool": tool}
            return [Line("warning", "phase.late", f"{waited} takes long", long)]
        case events.HungUp(seconds=seconds, what=waited):
            hung: dict[str, Value] = {"what": waited, "seconds": _seconds(seconds)}
            return [Line("error", "agent.hung", f"{waited} took too long: the agent is ended", hung)]
        case events.NoticeReceived(source=source, left=left):
            notice: dict[str, Value] = {"source": source, "left": _seconds(left)}
            return [Line("warning", "preemption.notice", f"this machine goes away ({source})", notice)]
        case events.DrainStarted(source=source, budget=budget):
            return [Line("info", "drain.started", "saving", {"source": source, "budget": _seconds(budget)})]
        case events.DrainFinished(seconds=seconds, in_time=in_time):
            said = "all is saved" if in_time else "not all was saved in time: the next start finds a crash"
            drained: dict[str, Value] = {"seconds": _seconds(seconds), "in_time": in_time}
            return [Line("info" if in_time else "warning", "drain.finished", said, drained)]
        case events.Paused(until=until, why=why):
            return [Line("info", "run.paused", why, {"until": until})]
        case events.Restarting(attempt=attempt, delay=delay, cls=cls):
            again: dict[str, Value] = {"attempt": attempt, "delay": _seconds(delay), "class": cls}
            return [Line("warning", "agent.restarting", "the agent is started again", again)]
        case events.Saved(what=what, size=size, seconds=seconds):
            saved: dict[str, Value] = {"what": what, "size": size, "seconds": _seconds(seconds)}
            return [Line("debug", "sync.done", f"the {what} is in the bucket", saved)]
        case events.CheckpointCreated(number=number, trigger=trigger, size=size):
            made: dict[str, Value] = {"number": number, "trigger": trigger, "size": size}
            return [Line("debug", "checkpoint.created", f"checkpoint {number} is in the bucket", made)]
        case events.CheckpointRestored(number=number, age=age, rebuilt=rebuilt):
            used: dict[str, Value] = {"number": number, "age": _seconds(age), "rebuilt": rebuilt}
            return [Line("info", "checkpoint.restored", "the recovery prompt holds the checkpoint", used)]
        case events.CheckpointFailed(why=why):
            return [Line("warning", "checkpoint.failed", why)]
        case events.SummaryLost(n=n, mended=mended):
            lost: dict[str, Value] = {"compaction": n, "mended": mended}
            return [Line("warning", "compaction.lost", "the agent's summary of its conversation is empty", lost)]
        case events.Logged(kinds=kinds, unsettled=unsettled):
            logged: dict[str, Value] = {"kinds": " ".join(kinds), "unsettled": unsettled}
            return [Line("debug", "records.acknowledged", f"{len(kinds)} records are in the bucket", logged)]
        case _:
            assert_never(event)


def _recovered(it: events.Recovered) -> list[Line]:
    done: dict[str, Value] = {
        "from_epoch": it.from_epoch,
        "old_host": it.old_host,
        "stopped": it.stopped,
        "put_back": it.put_back,
        "seconds": _seconds(it.seconds),
        "trace": it.trace,
    }
    fields: dict[str, Value] = {"alert": it.alert, "calls": len(it.findings)}
    fields |= {each: it.findings.count(each) for each in ("completed", "not_started", "partial", "unknown")}
    return [
        Line("info", "restore.done", f"what {it.old_host or 'the run before'} left is restored", done),
        Line("info", "recovery.prompted", f"the prompt names {len(it.findings)} open calls", fields),
    ]


def _seconds(value: float) -> float:
    return round(value, 4)


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
    """`fd` is written to, and closed at the end unless it is stderr's."""

    def __init__(self, fd: int, form: str, level: Level, job: str, say: Callable[[str], None]) -> None:
        self._fd = fd
        self._shape = as_json if form == "json" else as_text
        self._least = LEVELS.index(level)
        self._say = say
        self._head: dict[str, Value] = {"job": _clean(job), "host": "", "epoch": 0, "run": ""}
        self._lost, self._why = 0, ""

    def on_event(self, at: float, event: events.Event) -> None:
        if isinstance(event, events.LeaseTaken):
            self._head = {
                "job": _clean(event.job),
                "host": _clean(event.host),
                "epoch": event.epoch,
                "run": _clean(event.run),
            }
        for line in lines_of(event):
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

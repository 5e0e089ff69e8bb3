"""Tells systemd how the run goes (Type=notify): READY behind lease, restore and the hooks' proof, a line of status, and
the watchdog's keep-alive while the supervisor's loop turns. Silent without $NOTIFY_SOCKET.

The protocol is sd_notify(3): a datagram of `KEY=value` lines to a unix socket, `@` for an abstract one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from wal_agent.clock import Clock
from wal_agent.concurrency import start_daemon
from wal_agent.errors import Unavailable
from wal_agent.events import (
    AgentEnded,
    DrainStarted,
    Event,
    Halted,
    LeaseTaken,
    Paused,
    PhaseChanged,
    Ready,
    Restarting,
    TakesLong,
)
from wal_agent.redact import redact
from wal_agent.text import duration, shorten

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # ours, not the agent's
EXTEND = 60.0  # seconds by which a start or stop that is at work is prolonged; sent anew at each keep-alive
EVERY = 10.0  # seconds between two words where systemd asks for no keep-alive
MAX_STATUS = 200  # characters


def status_line(event: Event) -> str | None:
    """The line that `systemctl status` shows, where this changes it. Pure."""
    match event:
        case LeaseTaken(epoch=epoch, agent=agent):
            return f"{agent}: job taken (epoch {epoch}), restoring"
        case PhaseChanged(phase=phase, tool=tool):
            return f"{phase} {tool}".rstrip()
        case TakesLong(what="model", seconds=seconds):
            return f"waiting for the model since {duration(seconds)}"
        case TakesLong(what="approval", seconds=seconds, tool=tool):
            return f"a person may be needed: it asks, or runs what was allowed, since {duration(seconds)}: {tool}"
        case TakesLong(what="start", seconds=seconds):
            return f"a person may be needed: the agent has not begun for {duration(seconds)}"
        case TakesLong(what="exit", seconds=seconds):
            return f"a person may be needed: its turn is over and the agent has not ended for {duration(seconds)}"
        case TakesLong(seconds=seconds, tool=tool):
            return f"{tool} runs since {duration(seconds)}"
        case DrainStarted(source=source):
            return f"going down ({source}): saving"
        case AgentEnded(why=why):
            return f"the agent ended: {why}"
        case Restarting(delay=delay, attempt=attempt):
            return f"starting the agent again in {duration(delay)} (attempt {attempt})"
        case Paused(why=why):
            return f"paused: {why}"
        case Halted(code=code, what=what):
            return f"stopped: {what}" if code == Unavailable.exit_code else f"a person is needed: {what}"
        case _:
            return None


def notify_lines(event: Event) -> list[str]:
    """The lines to send for one happening. Pure."""
    status = status_line(event)
    said = [] if status is None else [f"STATUS={shorten(redact(status), MAX_STATUS)}"]
    match event:
        case Ready():
            return ["READY=1"]
        case DrainStarted(budget=budget):
            return ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={_micro(budget + EXTEND)}", *said]
        case _:
            return said


def keep_alive(ready: bool, stalled: bool) -> list[str]:
    """What is sent again and again: a start (or the wait of a paused job) may take long, a loop that hangs may not."""
    if stalled:
        return []
    return ["WATCHDOG=1"] if ready else ["WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={_micro(EXTEND)}"]


class ServiceManager:
    """A listener, and a thread that keeps systemd's watchdog fed."""

    def __init__(self, address: str, every: float, stalled: Callable[[float], bool], clock: Clock) -> None:
        """`every`: seconds between two keep-alives. `stalled`: whether the main loop hangs, by awake seconds."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._every = every
        self._stalled = stalled
        self._clock = clock
        self._ready = False
        self._unsaid: list[str] = []  # that it is ready, where systemd's queue was full
        self._stop = threading.Event()
        start_daemon("systemd", self._keep)

    def on_event(self, at: float, event: Event) -> None:
        said = self._send(notify_lines(event))
        if isinstance(event, Ready):
            self._ready = True
            self._unsaid = [] if said else notify_lines(event)

    def close(self) -> None:
        self._stop.set()

    def _keep(self) -> None:
        while not self._stop.wait(self._every):
            unsaid = self._unsaid
            if self._send([*unsaid, *keep_alive(self._ready, self._stalled(self._clock.awake()))]) and unsaid:
                self._unsaid = []

    def _send(self, lines: list[str]) -> bool:
        """Whether systemd has it."""
        if not lines:
            return True
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)  # systemd that does not read must not hold up a hook
            sender.sendto("\n".join(lines).encode(), self._address)
            return True
        return False


def service_manager(env: Mapping[str, str], stalled: Callable[[float], bool], clock: Clock) -> ServiceManager | None:
    """From what systemd says in the environment; None where it does not ask."""
    address = env.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    asked = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()) and env.get("WATCHDOG_USEC", "")
    every = int(asked) / 1e6 / 3 if asked and asked.isdecimal() and int(asked) > 0 else EVERY
    return ServiceManager(address, every, stalled, clock)


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)

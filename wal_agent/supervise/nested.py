"""Agents that a tool of the agent started: their hooks come to the same socket, since they inherit its environment.

Their calls are logged like any other, intent first, under the outer session and a name of their own. Nothing that they
say moves the outer session, its turn or its phase, and none of their calls is settled by the outer session's files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from wal_agent.agents.base import Allow, Decision, HookEvent, ToolEnded, ToolStarting
from wal_agent.supervise.callers import Process, read_process
from wal_agent.supervise.gate import Gate

GONE = "the agent that made it has ended; it may have begun"


class NestedAgents:
    """Hooks of the agents below one agent. `session` returns the outer session's id; `look` is the main thread's."""

    def __init__(
        self, gate: Gate, session: Callable[[], str], look_up: Callable[[int], Process | None] = read_process
    ) -> None:
        self._gate = gate
        self._session = session
        self._read = look_up
        self._lock = threading.Lock()
        self._speakers: dict[str, Process] = {}

    def on(self, agent: str, event: HookEvent, speaker: Process) -> Decision:
        """Log and answer one hook event of the `agent` whose process is `speaker`."""
        if not isinstance(event, ToolStarting | ToolEnded):
            return Allow()
        name = f"{agent}:{event.session}"
        with self._lock:
            self._speakers[name] = speaker
        outer = self._session()
        call_id = event.call_id and f"{name}/{event.call_id}"  # two models may give the same id
        if isinstance(event, ToolEnded):
            self._gate.after(replace(event, session=outer, call_id=call_id), name)
            return Allow()
        cwd = event.cwd or _folder(speaker)
        return self._gate.before(replace(event, session=outer, call_id=call_id, cwd=cwd), name)

    def look(self) -> None:
        """End the calls of agents that are gone: no hook will."""
        for running in self._gate.nested():
            with self._lock:
                speaker = self._speakers.get(running.nested)
            now = speaker and self._read(speaker.pid)
            if speaker is not None and not (now and now.is_(speaker)):
                self._gate.end(running.call, "interrupted", GONE)


def _folder(process: Process) -> str:
    """Where it works, which need not be the run's workspace; "" where that cannot be read."""
    with suppress(OSError):
        return os.fspath(Path(f"/proc/{process.pid}/cwd").readlink())
    return ""

"""What a notice does to the run: the agent goes down in good order; where none runs yet, none is started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.happened import NoticeReceived, Tell
from wal_agent.recovery.deny import DENY_DRAINING
from wal_agent.supervise.preemption.data import Cloud, Notice, NoticeSource, drain_budget
from wal_agent.supervise.preemption.detect import detect_cloud, metadata_server
from wal_agent.supervise.preemption.watch import Watcher
from wal_agent.supervise.shutdown import ShutdownPlan
from wal_agent.wal.job import Stopped


class Preempted(Stopped):
    """The machine goes away before the agent ran, as `down` says. `begun`: that it goes down was told already."""

    exit_code = 143

    def __init__(self, down: ShutdownPlan, begun: bool = False) -> None:
        super().__init__(f"this machine is going away ({down.source}); the agent was not started.")
        self.down = down
        self.begun = begun


class RunningAgent(Protocol):
    """What of the agent's life a notice reaches."""

    def go_down(self, down: ShutdownPlan) -> None: ...

    def save_soon(self) -> None: ...


class Preemption:
    """`start` when the job is ours, `stop` at its end; in between `check` where the agent could be started."""

    def __init__(
        self,
        settings: Settings,
        env: Mapping[str, str],
        clock: Clock,
        tell: Tell,
        failed: Callable[[BaseException], None],
        detect: Callable[[], Cloud | None] = detect_cloud,
    ) -> None:
        self._drain = settings.drain
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._down: ShutdownPlan | None = None
        self._running: RunningAgent | None = None
        source = notice_source(settings, env, clock, detect)
        self._watcher = None if source is None else Watcher(source, clock, self._noticed, failed)
        self._wanted = settings.preemption not in ("auto", "off")

    def start(self) -> None:
        if self._watcher is not None:
            self._watcher.start()

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()

    @property
    def problem(self) -> str:
        """Why notices cannot be had that a person asked for, in a sentence; "" where they can."""
        if not self._wanted:
            return ""
        if self._watcher is None:
            return "no notice of a preemption could be had: the metadata server is switched off in the environment."
        why = self._watcher.problem
        return f"no notice of a preemption could be had, the metadata server cannot be asked: {why}." if why else ""

    def check(self) -> None:
        """Preempted: nothing may be started any more."""
        if self._down is not None:
            raise Preempted(self._down)

    def attach(self, running: RunningAgent) -> None:
        """From now on a notice ends this one; also one that has come already."""
        with self._lock:
            self._running, down = running, self._down
        if down is not None:
            running.go_down(down)

    def detach(self) -> None:
        """It runs no more; a notice is left to `check`."""
        with self._lock:
            self._running = None

    def _noticed(self, notice: Notice) -> None:
        self._tell(NoticeReceived(notice.source, notice.left))
        now = self._clock.boot()
        until = now + drain_budget(notice.left, self._drain)
        with self._lock:
            running = self._running
            if notice.drain:
                self._down = ShutdownPlan("drain", notice.source, now, until, DENY_DRAINING)
        if running is None:
            return
        if self._down is not None:
            running.go_down(self._down)
        else:
            running.save_soon()


def notice_source(
    settings: Settings, env: Mapping[str, str], clock: Clock, detect: Callable[[], Cloud | None]
) -> NoticeSource | None:
    """The cloud to ask, as the settings say; None: nobody is asked."""
    match settings.preemption:
        case "off":
            return None
        case "gcp" | "aws" as named:
            cloud: Cloud | None = named
        case _:
            cloud = detect()
    server = metadata_server(cloud, env) if cloud is not None else None
    if server is None:
        return None
    if cloud == "gcp":
        from wal_agent.supervise.preemption.gcp import Gcp

        return Gcp(server)
    from wal_agent.supervise.cloud_metadata import Aws

    return Aws(server, clock)

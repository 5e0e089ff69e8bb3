"""What a notice does to the run: the agent goes down in good order; where none runs yet, none is started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.happened import NoticeReceived, Tell
from wal_agent.recovery.deny import DENY_DRAINING
from wal_agent.supervise.down import Down
from wal_agent.supervise.preemption.data import Cloud, Notice, Watched, budget
from wal_agent.supervise.preemption.detect import cloud_of, server_of
from wal_agent.supervise.preemption.watch import Watcher
from wal_agent.wal.job import Stopped


class Preempted(Stopped):
    """The machine goes away before the agent ran, as `down` says. `begun`: that it goes down was told already."""

    exit_code = 143

    def __init__(self, down: Down, begun: bool = False) -> None:
        super().__init__(f"this machine is going away ({down.source}); the agent was not started.")
        self.down = down
        self.begun = begun


class Running(Protocol):
    """What of the agent's life a notice reaches."""

    def go_down(self, down: Down) -> None: ...

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
        detect: Callable[[], Cloud | None] = cloud_of,
    ) -> None:
        self._drain = settings.drain
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._down: Down | None = None
        self._running: Running | None = None
        source = watched(settings, env, clock, detect)
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

    def attach(self, running: Running) -> None:
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
        until = now + budget(notice.left, self._drain)
        with self._lock:
            running = self._running
            if notice.drain:
                self._down = Down("drain", notice.source, now, until, DENY_DRAINING)
        if running is None:
            return
        if self._down is not None:
            running.go_down(self._down)
        else:
            running.save_soon()


def watched(
    settings: Settings, env: Mapping[str, str], clock: Clock, detect: Callable[[], Cloud | None]
) -> Watched | None:
    """The cloud to ask, as the settings say; None: nobody is asked."""
    match settings.preemption:
        case "off":
            return None
        case "gcp" | "aws" as named:
            cloud: Cloud | None = named
        case _:
            cloud = detect()
    server = server_of(cloud, env) if cloud is not None else None
    if server is None:
        return None
    if cloud == "gcp":
        from wal_agent.supervise.preemption.gcp import Gcp

        return Gcp(server)
    from wal_agent.supervise.preemption.aws import Aws

    return Aws(server, clock)

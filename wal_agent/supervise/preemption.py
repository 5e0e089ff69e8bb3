"""Watch for a preemption notice of this machine's cloud, and shut the run down in good order on one.

Which cloud it is, is read from the firmware: nothing is asked over the network for it. A metadata server that is away
or lies costs nothing but its notice. Where no agent runs yet, none is started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.events import Emit, NoticeReceived
from wal_agent.recovery.prompt import DENY_DRAINING
from wal_agent.safefs import read_plain
from wal_agent.supervise.shutdown import ShutdownPlan
from wal_agent.wal.job import Stopped

Cloud = Literal["gcp", "aws"]

MARGIN = 5.0  # seconds of a notice that are left to the machine's own shutdown
LEAST = 2.0  # seconds; a notice that comes too late is tried all the same


@dataclass(frozen=True, slots=True)
class Notice:
    """`source` as in events.NoticeReceived. `left`: seconds until the machine goes, 0 where that is not said.
    `drain`: it goes for certain; else what there is is saved now, and the work goes on."""

    source: Literal["gcp", "aws", "aws-rebalance"]
    left: float
    drain: bool


@dataclass(frozen=True, slots=True)
class Server:
    """A metadata server: plain HTTP, on the machine's own link."""

    host: str
    port: int = 80


class MetadataError(Exception):
    """The metadata server did not answer as it should; it is asked again later."""


class NoticeSource(Protocol):
    """One cloud's notices. `poll` and `close` may be in two threads."""

    period: float
    """Seconds from one look to the next, at least."""

    def poll(self) -> Notice | None:
        """Ask once; may wait for a change for about a minute. Each notice is given once. MetadataError."""

    def close(self) -> None:
        """End a look that waits; it may raise MetadataError then."""


def drain_budget(left: float, drain: float) -> float:
    """Seconds for a drain, which may take `drain`, on a machine that goes in `left` seconds."""
    return max(LEAST, min(drain, left - MARGIN))


DMI = Path("/sys/class/dmi/id")
LINK_LOCAL = "169.254.169.254"  # of both clouds; the number, so that no name is looked up
_MOST = 4096


def detect_cloud(dmi: Path = DMI) -> Cloud | None:
    """What the firmware says (documented by both clouds as the way to find out)."""
    if _says(dmi, "product_name") in ("Google Compute Engine", "Google"):
        return "gcp"
    if _says(dmi, "sys_vendor") == "Amazon EC2" or _says(dmi, "board_asset_tag").startswith("i-"):
        return "aws"
    return None


def metadata_server(cloud: Cloud, env: Mapping[str, str]) -> Server | None:
    """The cloud's metadata server, or the one that its own variable names for its own programs. None: switched off by
    that cloud's variable, or named by something that is no address."""
    if cloud == "gcp":
        return _server("http://" + env.get("GCE_METADATA_HOST", "") if env.get("GCE_METADATA_HOST") else "")
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    return _server(env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ""))


def _server(url: str) -> Server | None:
    if not url:
        return Server(LINK_LOCAL)
    try:
        found = urlsplit(url)
        return Server(found.hostname, found.port or 80) if found.scheme == "http" and found.hostname else None
    except ValueError:
        return None


def _says(dmi: Path, name: str) -> str:
    return (read_plain(dmi / name, _MOST) or b"").decode("ascii", "replace").strip()


FIRST, CAP = 1.0, 10.0  # seconds after a failure; a notice may be short


class Watcher:
    """`start` once, `stop` once. `on_notice` is called in the thread, which ends behind a notice that drains."""

    def __init__(
        self,
        source: NoticeSource,
        clock: Clock,
        on_notice: Callable[[Notice], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed`: takes a failure of ours."""
        self._source = source
        self._clock = clock
        self._on_notice = on_notice
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="preemption", daemon=True)
        self.problem = ""  # why the newest look failed

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nobody waits for the thread: it is in a request, or about to end."""
        self._stop.set()
        self._source.close()

    def _loop(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = self._clock.boot()
            try:
                notice = self._source.poll()
                failures, self.problem = 0, ""
                if notice is not None:
                    self._on_notice(notice)
                    if notice.drain:
                        return
            except MetadataError as trouble:
                failures += 1
                self.problem = str(trouble)
                self._stop.wait(wait_after(failures))
                continue
            except Exception as error:  # noqa: BLE001 - reported; the run goes on without notices
                if not self._stop.is_set():
                    self._failed(error)
                return
            self._stop.wait(max(0.0, self._source.period - (self._clock.boot() - began)))


def wait_after(failures: int) -> float:
    """Seconds until the next look."""
    return float(min(CAP, FIRST * 2 ** min(failures - 1, 10)))


class Preempted(Stopped):
    """The machine goes away before the agent ran, as `down` says. `begun`: its `DrainStarted` was emitted already."""

    exit_code = 143

    def __init__(self, down: ShutdownPlan, begun: bool = False) -> None:
        super().__init__(f"this machine is going away ({down.source}); the agent was not started.")
        self.down = down
        self.begun = begun


class RunningAgent(Protocol):
    """What of the agent's life a notice reaches."""

    def shut_down(self, down: ShutdownPlan) -> None: ...

    def save_soon(self) -> None: ...


class Preemption:
    """`start` when the job is ours, `stop` at its end; in between `check` where the agent could be started."""

    def __init__(
        self,
        settings: Settings,
        env: Mapping[str, str],
        clock: Clock,
        emit: Emit,
        failed: Callable[[BaseException], None],
        detect: Callable[[], Cloud | None] = detect_cloud,
    ) -> None:
        self._drain = settings.drain
        self._clock = clock
        self._emit = emit
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
            running.shut_down(down)

    def detach(self) -> None:
        """It runs no more; a notice is left to `check`."""
        with self._lock:
            self._running = None

    def _noticed(self, notice: Notice) -> None:
        self._emit(NoticeReceived(notice.source, notice.left))
        now = self._clock.boot()
        until = now + drain_budget(notice.left, self._drain)
        with self._lock:
            running = self._running
            if notice.drain:
                self._down = ShutdownPlan("drain", notice.source, now, until, DENY_DRAINING)
        if running is None:
            return
        if self._down is not None:
            running.shut_down(self._down)
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
        from wal_agent.supervise.cloud_metadata import Gcp

        return Gcp(server)
    from wal_agent.supervise.cloud_metadata import Aws

    return Aws(server, clock)

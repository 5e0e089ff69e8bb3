"""Watch for a preemption notice of this machine's cloud, and shut the run down in good order on one.

Which cloud it is, is read from the firmware: nothing is asked over the network for it. A metadata server that is away
or lies costs nothing but its notice: plain HTTP, no proxy, no redirect, a bounded reply. Where no agent runs yet, none
is started.

`Gcp`: `instance/preempted`, which a request can wait on (30 s of notice for a spot machine). Source:
cloud.google.com/compute/docs/instances/create-use-spot and .../metadata/querying-metadata (wait_for_change, last_etag,
timeout_sec, Metadata-Flavor).

`Aws`: `spot/instance-action` by IMDSv2 (two minutes of notice) and the recommendation to rebalance before it. Source:
docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, rebalance-recommendations and
instancedata-data-retrieval (tokens; they are good for six hours at most).

`Azure`: scheduled events, of which a spot machine's eviction (at least 30 s) and the deletion of a machine of a scale
set end it. They name each machine of the set, so the own name is asked for first. Source: learn.microsoft.com/azure/
virtual-machines/linux/scheduled-events (once a second is its own advice) and .../instance-metadata-service.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.events import Emit, NoticeReceived
from wal_agent.safefs import read_plain
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.wal.job import Stopped
from wal_agent.wording.messages import DENY_DRAINING

if TYPE_CHECKING:
    from http.client import HTTPConnection

MAX_REPLY = 16 << 10  # bytes of a reply
GCP_PATH = "/computeMetadata/v1/instance/preempted"
GCP_NOTICE = 30.0  # seconds that a spot machine has from its notice on
GCP_WAIT = 60  # seconds that one request waits for a change
SLACK = 10.0  # seconds by which its reply may come late
TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
AWS_NOTICE = 120.0  # seconds from a notice on
TOKEN_TTL = 21600  # seconds
_MAX_TOKEN = 1024
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
AZURE_NOTICE = 30.0  # seconds that an evicted machine has from its notice on, at least
_LONGEST = 900.0  # seconds; the most that a deletion is put off
MARGIN = 5.0  # seconds of a notice that are left to the machine's own shutdown
LEAST = 2.0  # seconds; a notice that comes too late is tried all the same
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # of each machine in Azure; Hyper-V elsewhere has another
LINK_LOCAL = "169.254.169.254"  # of each cloud; the number, so that no name is looked up
_MOST = 4096
FIRST, CAP = 1.0, 10.0  # seconds after a failure; a notice may be short

FLAVOR = {"Metadata-Flavor": "Google"}
DMI = Path("/sys/class/dmi/id")


class Reply(msgspec.Struct, frozen=True):
    """`headers`: by names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class MetadataClient:
    """Asks `server`, one request at a time; `close` ends the one that waits, and all that follow."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._waits: HTTPConnection | None = None
        self._closed = False

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] = MappingProxyType({}), timeout: float = 2.0
    ) -> Reply:
        """`timeout`: seconds for each of: connect, and the next piece of the reply. MetadataError."""
        from http.client import HTTPConnection, HTTPException  # late, in the thread that asks: 10 ms

        connection = HTTPConnection(self._server.host, self._server.port, timeout=timeout)
        try:
            with self._lock:
                if self._closed:
                    raise MetadataError("closed")
                self._waits = connection
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(MAX_REPLY + 1)
            if len(body) > MAX_REPLY:
                raise MetadataError(f"its reply has more than {MAX_REPLY} bytes")
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, body)
        except (OSError, HTTPException, ValueError) as error:
            raise MetadataError(str(error) or type(error).__name__) from error
        finally:
            with self._lock:
                self._waits = None
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._waits is not None and self._waits.sock is not None:
                with suppress(OSError):
                    self._waits.sock.shutdown(socket.SHUT_RDWR)


class Gcp:
    period = 1.0  # the waiting is done there; this is for a server that does not wait

    def __init__(self, server: Server) -> None:
        self._asker = MetadataClient(server)
        self._etag = ""

    def poll(self) -> Notice | None:
        """The first look asks how it stands, each later one waits until that is another."""
        wait = f"?wait_for_change=true&timeout_sec={GCP_WAIT}&last_etag={self._etag}" if self._etag else ""
        reply = self._asker.ask("GET", GCP_PATH + wait, FLAVOR, timeout=GCP_WAIT + SLACK if wait else SLACK)
        if reply.status != 200 or reply.headers.get("metadata-flavor") != "Google":
            raise MetadataError(f"it answers {reply.status}, not as Google's metadata server does")
        etag = reply.headers.get("etag", "")
        self._etag = etag if etag.isascii() and etag.isalnum() and len(etag) <= 64 else "0"
        return Notice("gcp", GCP_NOTICE, drain=True) if reply.body.strip().upper() == b"TRUE" else None

    def close(self) -> None:
        self._asker.close()


class Aws:
    period = 5.0  # as AWS recommends

    def __init__(self, server: Server, clock: Clock) -> None:
        self._asker = MetadataClient(server)
        self._clock = clock
        self._token = ""
        self._until = 0.0  # boot time
        self._told = False  # of the recommendation

    def poll(self) -> Notice | None:
        action = self._get(ACTION)
        if action.status == 200:
            return Notice("aws", self._left(action), drain=True)
        if not self._told and self._get(REBALANCE).status == 200:
            self._told = True
            return Notice("aws-rebalance", 0.0, drain=False)
        return None

    def close(self) -> None:
        self._asker.close()

    def _get(self, path: str) -> Reply:
        """200 or 404."""
        if not self._token or self._clock.boot() >= self._until:
            self._renew()
        reply = self._asker.ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if reply.status == 401:
            self._token = ""
        if reply.status not in (200, 404):
            raise MetadataError(f"it answers {reply.status}")
        return reply

    def _renew(self) -> None:
        reply = self._asker.ask("PUT", TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL)})
        token = reply.body.decode("ascii", "replace").strip()
        if reply.status != 200 or not token or len(token) > _MAX_TOKEN or not token.isprintable():
            raise MetadataError(f"it gives no token ({reply.status})")
        self._token, self._until = token, self._clock.boot() + TOKEN_TTL / 2

    def _left(self, reply: Reply) -> float:
        """By the server's own clock where it tells one. A time that cannot be read is a notice all the same."""
        try:
            said: Any = json.loads(reply.body)
            at = _stamp(lambda: datetime.fromisoformat(said["time"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return AWS_NOTICE
        now = _server_time(reply)
        if at is None:
            return AWS_NOTICE
        return max(0.0, min(AWS_NOTICE, at - (self._clock.now() if now is None else now)))


class Azure:
    period = 1.0

    def __init__(self, server: Server, clock: Clock) -> None:
        self._asker = MetadataClient(server)
        self._clock = clock
        self._name = ""

    def poll(self) -> Notice | None:
        self._name = self._name or self._get(AZURE_NAME).body.decode("utf-8", "replace").strip().lower()
        if not self._name:
            raise MetadataError("it does not say this machine's name")
        reply = self._get(AZURE_EVENTS)
        try:
            said: Any = json.loads(reply.body)
            events = [event for event in said["Events"] if self._ends(event)]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MetadataError("its events cannot be read") from error
        return Notice("azure", min(self._left(event, reply) for event in events), drain=True) if events else None

    def close(self) -> None:
        self._asker.close()

    def _get(self, path: str) -> Reply:
        reply = self._asker.ask("GET", path, {"Metadata": "true"})
        if reply.status != 200:
            raise MetadataError(f"it answers {reply.status}")
        return reply

    def _ends(self, event: Any) -> bool:
        """Whether it ends this machine, by this machine's own name."""
        own = self._name in [str(name).lower() for name in event["Resources"]]
        return own and event["EventType"] in ("Preempt", "Terminate") and event.get("EventStatus") != "Completed"

    def _left(self, event: Any, reply: Reply) -> float:
        """Of one that has begun, `NotBefore` is empty."""
        from email.utils import parsedate_to_datetime

        at = _stamp(lambda: parsedate_to_datetime(str(event["NotBefore"]))) if event.get("NotBefore") else None
        if at is None:
            return 0.0 if event.get("EventStatus") == "Started" else AZURE_NOTICE
        now = _server_time(reply)
        return max(0.0, min(_LONGEST, at - (self._clock.now() if now is None else now)))


def _server_time(reply: Reply) -> float | None:
    """Now by the server's own clock, where it tells it."""
    from email.utils import parsedate_to_datetime

    date = reply.headers.get("date", "")
    return _stamp(lambda: parsedate_to_datetime(date)) if date else None


def _stamp(read: Callable[[], datetime]) -> float | None:
    """Seconds since 1970; None for what is no time."""
    try:
        found = read()
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


Cloud = Literal["gcp", "aws", "azure"]


class Notice(msgspec.Struct, frozen=True):
    """`source` as in events.NoticeReceived. `left`: seconds until the machine goes, 0 where that is not said.
    `drain`: it goes for certain; else what there is is saved now, and the work goes on."""

    source: Literal["gcp", "aws", "aws-rebalance", "azure"]
    left: float
    drain: bool


class Server(msgspec.Struct, frozen=True):
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


def detect_cloud(dmi: Path = DMI) -> Cloud | None:
    """What the firmware says (documented by Google and Amazon as the way to find out; of Azure as cloud-init does)."""
    if _says(dmi, "product_name") in ("Google Compute Engine", "Google"):
        return "gcp"
    if _says(dmi, "sys_vendor") == "Amazon EC2" or _says(dmi, "board_asset_tag").startswith("i-"):
        return "aws"
    return "azure" if _says(dmi, "chassis_asset_tag") == AZURE_TAG else None


def metadata_server(cloud: Cloud, env: Mapping[str, str]) -> Server | None:
    """The cloud's metadata server, or the one that its own variable (Azure has none) names for its own programs. None:
    switched off by that cloud's variable, or named by something that is no address."""
    if cloud == "gcp":
        return _server("http://" + env.get("GCE_METADATA_HOST", "") if env.get("GCE_METADATA_HOST") else "")
    if cloud == "azure":
        return Server(LINK_LOCAL)
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
        case "gcp" | "aws" | "azure" as named:
            cloud: Cloud | None = named
        case _:
            cloud = detect()
    server = metadata_server(cloud, env) if cloud is not None else None
    if server is None:
        return None
    if cloud == "gcp":
        return Gcp(server)
    return Azure(server, clock) if cloud == "azure" else Aws(server, clock)

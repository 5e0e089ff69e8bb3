"""Serve /metrics, /healthz and /readyz over HTTP: the Prometheus text format and the run's health."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from wal_agent import events
from wal_agent.clock import Clock
from wal_agent.concurrency import start_daemon
from wal_agent.errors import ConfigError

TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL = "wal_job"  # not `job`: that is the name of Prometheus' own
MAX_SAVE_AGE = 60.0  # seconds; a save is due far more often
MAX_CONNECTIONS = 8  # connections at a time
REQUEST_TIMEOUT = 5.0  # seconds for a request and its answer together
_LOOK = 0.5  # seconds between two looks for connections that are over their time
_PLAIN = "text/plain; charset=utf-8"


def exposition(registry: CollectorRegistry, job: str = "") -> Callable[[], bytes]:
    """What is told each time that somebody asks. `job`: on each sample, unless ""."""
    source = Samples(registry, {LABEL: job} if job else {})
    return lambda: generate_latest(source)


class Samples(Collector):
    """A registry's, without the times at which counters began (this process has one, and it is not news), and with
    labels of ours."""

    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for found in self._registry.collect():
            metric = Metric(found.name, found.documentation, found.type, found.unit)
            metric.samples = [
                sample._replace(labels={**sample.labels, **self._labels})
                for sample in found.samples
                if not sample.name.endswith("_created")
            ]
            yield metric


class Health:
    """Liveness goes by the supervisor's own loop and never by the bucket, whose outage must not restart a fleet."""

    def __init__(self, clock: Clock, stalled: Callable[[float], bool], autosave: float) -> None:
        self._clock = clock
        self._stalled = stalled
        self._oldest = max(MAX_SAVE_AGE, 3 * autosave)
        self._ready = False
        self._expires = self._saved = 0.0  # boot time

    def alive(self) -> str:
        """ "" or what is wrong."""
        return "the supervisor's loop hangs" if self._stalled(self._clock.awake()) else ""

    def ready(self) -> str:
        """ "" or why not."""
        now = self._clock.boot()
        if not self._ready:
            return "no agent is at work"
        if now >= self._expires:
            return "the lease is not held"
        if now - self._saved > self._oldest:
            return f"nothing could be saved for {now - self._saved:.0f} s"
        return self.alive()

    def on_event(self, at: float, event: events.Event) -> None:
        now = self._clock.boot()
        match event:
            case events.LeaseTaken(ttl=left) | events.LeaseRenewed(left=left) | events.RenewalFailed(left=left):
                self._expires = now + left
            case events.LeaseLost() | events.LeaseSettled():
                self._expires, self._ready = 0.0, False
            case events.Ready():
                self._ready, self._saved = True, now
            case events.AgentEnded():
                self._ready = False
            case events.Saved(what="session"):
                self._saved = now
            case _:
                return

    def close(self) -> None:
        self._ready = False


Answer = tuple[int, str, bytes]
"""Status, content type, body."""


def answers(metrics: Callable[[], bytes], health: Health) -> Callable[[str], Answer]:
    """Return what answers a request for a path."""

    def at(path: str) -> Answer:
        match path:
            case "/metrics":
                return 200, TYPE, metrics()
            case "/healthz" | "/readyz":
                wrong = health.alive() if path == "/healthz" else health.ready()
                return (503 if wrong else 200), _PLAIN, f"{wrong or 'ok'}\n".encode()
            case _:
                return 404, _PLAIN, b"/metrics, /healthz or /readyz\n"

    return at


class _Handler(BaseHTTPRequestHandler):
    """One request a connection; http.server bounds a line at 64 KiB and the headers at 100."""

    server: _Connections
    raw_requestline: bytes
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # 0.9 would get no status line
    error_content_type = _PLAIN
    error_message_format = "%(message)s\n"

    def parse_request(self) -> bool:
        if not self.raw_requestline.strip():
            self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
            self.send_error(400)
            return False
        if not super().parse_request():
            return False
        if self.command in ("GET", "HEAD"):
            return True
        self.send_error(405, "GET or HEAD")
        return False

    def do_GET(self) -> None:
        status, kind, body = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        self.close_connection = True

    do_HEAD = do_GET

    def end_headers(self) -> None:
        self.send_header("Allow", "GET, HEAD")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def version_string(self) -> str:
        return "wal-agent"

    def log_message(self, format: str, *args: object) -> None:
        return


class _Connections(ThreadingMixIn, TCPServer):  # HTTPServer would look up the host's name at a start
    """At most MOST connections, each for `patience` seconds at most; the oldest gives way to a new one."""

    allow_reuse_address = True  # of an earlier run's connections, not of a listener
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, port: int, answer: Callable[[str], Answer], patience: float) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answer = answer
        self._patience = patience
        self._open: dict[socket.socket, float] = {}  # oldest first; until when
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:  # closed, or no descriptor is left: do not spin
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        now = time.monotonic()
        with self._lock:
            self._open[request] = now + self._patience
            self._cut(list(self._open)[:-MAX_CONNECTIONS])
        threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="scrape", daemon=True
        ).start()

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._cut([client for client, until in self._open.items() if until <= now])

    def _cut(self, clients: list[socket.socket]) -> None:
        for client in clients:
            del self._open[client]
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # its thread closes it

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # the client went away, or was cut off


class Server:
    """Serve from the moment it is made until `close`. The socket is closed in what the agent runs (PEP 446)."""

    def __init__(self, address: str, answer: Callable[[str], Answer], patience: float = REQUEST_TIMEOUT) -> None:
        """`address`: host:port, port 0 for any. ConfigError: it cannot be served there."""
        host, _, port = address.rpartition(":")
        try:
            self._server = _Connections(host.strip("[]"), int(port), answer, patience)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "it is no address of this machine"
            raise ConfigError(
                f"metrics cannot be served at {address}: {why}. Nothing was run.",
                "Is another run there? Name another port with --metrics-addr, or 127.0.0.1:0 for any.",
            ) from None
        host, port = self._server.server_address[:2]  # type: ignore[assignment]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._thread = start_daemon("metrics", lambda: self._server.serve_forever(_LOOK))

    def on_event(self, at: float, event: events.Event) -> None:
        return

    def close(self) -> None:
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the loop
        self._server.shutdown()
        self._server.server_close()

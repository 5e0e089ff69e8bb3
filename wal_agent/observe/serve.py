"""Serve /metrics, /healthz and /readyz over HTTP: the Prometheus text format and the run's health."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from wal_agent.clock import Clock
from wal_agent.concurrency import start_daemon
from wal_agent.errors import ConfigError
from wal_agent.events import (
    AgentEnded,
    Event,
    LeaseLost,
    LeaseRenewed,
    LeaseSettled,
    LeaseTaken,
    Ready,
    RenewalFailed,
    Saved,
)

TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL = "wal_job"  # not `job`: that is the name of Prometheus' own


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


OLDEST = 60.0  # seconds; a save is due far more often


class Health:
    """Liveness goes by the supervisor's own loop and never by the bucket, whose outage must not restart a fleet."""

    def __init__(self, clock: Clock, stalled: Callable[[float], bool], autosave: float) -> None:
        self._clock = clock
        self._stalled = stalled
        self._oldest = max(OLDEST, 3 * autosave)
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

    def on_event(self, at: float, event: Event) -> None:
        now = self._clock.boot()
        match event:
            case LeaseTaken(ttl=left) | LeaseRenewed(left=left) | RenewalFailed(left=left):
                self._expires = now + left
            case LeaseLost() | LeaseSettled():
                self._expires, self._ready = 0.0, False
            case Ready():
                self._ready, self._saved = True, now
            case AgentEnded():
                self._ready = False
            case Saved(what="session"):
                self._saved = now
            case _:
                return

    def close(self) -> None:
        self._ready = False


MOST = 8  # connections at a time
PATIENCE = 5.0  # seconds for a request and its answer together
LONGEST = 8192  # bytes of a request

Answer = tuple[int, str, bytes]
"""Status, content type, body."""

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_PLAIN = "text/plain; charset=utf-8"


def answers(metrics: Callable[[], bytes], health: Health) -> Callable[[str], Answer]:
    """What stands at each path."""

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


class Server:
    """Listens from the moment it is made until `close`. The socket is closed in what the agent runs (PEP 446)."""

    def __init__(self, address: str, answer: Callable[[str], Answer], patience: float = PATIENCE) -> None:
        """`address`: host:port, port 0 for any. ConfigError: it cannot be had."""
        self._answer = answer
        self._patience = patience
        self._socket = _listen(address)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = start_daemon("metrics", self._accept)

    def on_event(self, at: float, event: Event) -> None:
        return

    def close(self) -> None:
        self._stop.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._socket.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed, or no descriptor is left
                self._stop.wait(0.1)
                continue
            with self._lock:
                self._open[client] = None
                oldest = next(iter(self._open)) if len(self._open) > MOST else None
                if oldest is not None:
                    del self._open[oldest]
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            try:
                threading.Thread(target=self._talk, args=(client,), name="scrape", daemon=True).start()
            except RuntimeError:  # no thread is to be had
                self._drop(client)

    def _talk(self, client: socket.socket) -> None:
        try:
            until = time.monotonic() + self._patience
            request = _request(client, until)
            if request is not None:
                client.settimeout(max(0.001, until - time.monotonic()))
                client.sendall(_reply(request, self._answer))
                client.shutdown(socket.SHUT_WR)
        except OSError:
            return
        finally:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        with self._lock:
            self._open.pop(client, None)
        client.close()


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of an earlier run's connections, not of a listener
        made.bind((host, int(port)))
        made.listen(128)
    except (OSError, UnicodeError) as error:
        made.close()
        why = getattr(error, "strerror", None) or "it is no address of this machine"
        raise ConfigError(
            f"metrics cannot be served at {address}: {why}. Nothing was run.",
            "Is another run there? Name another port with --metrics-addr, or 127.0.0.1:0 for any.",
        ) from None
    return made


def _request(client: socket.socket, until: float) -> bytes | None:
    """The head of the request; None: it did not come in time, or is too long."""
    data = b""
    while b"\r\n\r\n" not in data and b"\n\n" not in data:
        left = until - time.monotonic()
        if left <= 0 or len(data) > LONGEST:
            return None
        client.settimeout(left)
        more = client.recv(LONGEST)
        if not more:
            return None
        data += more
    return data


def _reply(request: bytes, answer: Callable[[str], Answer]) -> bytes:
    words = request.split(b"\n", 1)[0].decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        status, kind, body = 400, _PLAIN, b"not HTTP/1\n"
    elif words[0] not in ("GET", "HEAD"):
        status, kind, body = 405, _PLAIN, b"GET or HEAD\n"
    else:
        status, kind, body = answer(words[1].partition("?")[0])
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{'Allow: GET, HEAD' + chr(13) + chr(10) if status == 405 else ''}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    ).encode()
    return head if words[:1] == ["HEAD"] else head + body

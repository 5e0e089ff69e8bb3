"""observe/serve.py over real sockets: answers, slow and hostile clients, a taken port, and who inherits it."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.observe.story import STORY
from tests.unit.supervise.crew import until
from tests.unit.wal.world import FakeClock
from wal_agent.errors import ConfigError
from wal_agent.observe.metrics import Metrics
from wal_agent.observe.serve import MAX_CONNECTIONS, Health, Server, answers, exposition

TIMEOUT = 30.0


@pytest.fixture
def server() -> Iterator[Server]:
    clock = FakeClock()
    metrics, health = Metrics(clock), Health(clock, lambda now: False, 10)
    for event in STORY:
        metrics.on_event(0.0, event)
    made = Server("127.0.0.1:0", answers(exposition(metrics.registry), health))
    yield made
    made.close()


def ask(server: Server, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    asked = http.client.HTTPConnection(server.address, timeout=TIMEOUT)
    try:
        asked.request(method, path)
        got = asked.getresponse()
        return got.status, got.headers["Content-Type"], got.read()
    finally:
        asked.close()


def dial(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT)


def everything(client: socket.socket) -> bytes:
    found = b""
    try:
        while piece := client.recv(4096):
            found += piece
    except ConnectionResetError:
        pass
    return found


def test_metrics_are_prometheus_text(server: Server) -> None:
    status, kind, body = ask(server, "/metrics?x=1")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert {f.name for f in text_string_to_metric_families(body.decode())} >= {"wal_agent_lease_generation"}
    assert ask(server, "/metrics", "HEAD") == (200, kind, b"")


def test_probes_say_what_is_wrong(server: Server) -> None:
    assert ask(server, "/healthz")[::2] == (200, b"ok\n")
    assert ask(server, "/readyz")[::2] == (503, b"no agent is at work\n")
    assert ask(server, "/other")[0] == 404
    assert ask(server, "/metrics", "POST")[0] == 405


@pytest.mark.parametrize(
    ("sent", "begins"),
    [
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
        (b"\xff\xfe \x00 HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"GET /metrics HTTP/2\r\n\r\n", b"HTTP/1.1 400 "),
        (b"\r\n\r\n", b"HTTP/1.1 400 "),
    ],
)
def test_what_is_no_request_is_refused(server: Server, sent: bytes, begins: bytes) -> None:
    with dial(server) as client:
        client.sendall(sent)
        assert everything(client).startswith(begins)
    assert ask(server, "/healthz")[0] == 200


def test_a_request_without_an_end_is_not_read_for_ever(patient: Server) -> None:
    with dial(patient) as client:
        client.sendall(b"GET /" + b"a" * (1 << 17))
        assert not everything(client).startswith(b"HTTP/1.1 200 ")


def test_headers_without_an_end_are_not_read_for_ever(patient: Server) -> None:
    with dial(patient) as client, suppress(OSError):
        client.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200)
        assert not everything(client).startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def patient() -> Iterator[Server]:
    """Waits for a request as long as anybody likes."""
    made = Server("127.0.0.1:0", lambda path: (200, "text/plain", b""), patience=3600)
    yield made
    made.close()


def test_silent_clients_keep_nobody_out(patient: Server) -> None:
    """All places are taken by clients that say nothing: the oldest gives way, and the scraper is served."""
    silent = [dial(patient) for _ in range(3 * MAX_CONNECTIONS)]
    try:
        assert ask(patient, "/healthz")[0] == 200
        assert everything(silent[0]) == b""
        until(
            lambda: sum(t.name == "scrape" for t in threading.enumerate()) <= MAX_CONNECTIONS, "the others are let go"
        )
    finally:
        for client in silent:
            client.close()


def test_a_client_that_says_nothing_is_let_go() -> None:
    made = Server("127.0.0.1:0", lambda path: (200, "text/plain", b""), patience=0.05)
    with dial(made) as client:
        client.sendall(b"GET /metrics")
        assert everything(client) == b""
    made.close()


def test_a_client_that_does_not_read_holds_its_own_thread_alone(server: Server) -> None:
    huge = Server("127.0.0.1:0", lambda path: (200, "text/plain", b"x" * (64 << 20)), patience=0.2)
    with dial(huge) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ask(server, "/healthz")[0] == 200
        until(lambda: not any(t.name == "scrape" for t in threading.enumerate()), "it was let go")
    huge.close()


def test_a_taken_port_is_told_before_anything_runs(server: Server) -> None:
    with pytest.raises(ConfigError) as caught:
        Server(server.address, lambda path: (200, "", b""))
    assert str(caught.value).startswith(f"metrics cannot be served at {server.address}: Address already in use.")
    assert "--metrics-addr" in caught.value.hint and caught.value.exit_code == 78


@pytest.mark.parametrize("address", ["192.0.2.1:9", "a" * 70 + ".invalid:9"])
def test_an_address_that_is_not_ours_is_told(address: str) -> None:
    with pytest.raises(ConfigError, match="metrics cannot be served at"):
        Server(address, lambda path: (200, "", b""))


def test_the_agent_does_not_inherit_the_socket(server: Server) -> None:
    assert not os.get_inheritable(server._server.fileno())
    said = f"import os; os.fstat({server._server.fileno()})"
    assert subprocess.run([sys.executable, "-c", said], close_fds=False, capture_output=True).returncode == 1


def test_its_threads_take_no_signals(server: Server) -> None:
    """The supervisor waits for signals in its main thread; another thread that took SIGTERM would end the process."""
    with dial(server):
        until(lambda: any(t.name == "scrape" for t in threading.enumerate()), "the connection is talked to")
        for thread in threading.enumerate():
            if thread.name in ("metrics", "scrape") and thread.native_id:
                with suppress(FileNotFoundError, ProcessLookupError):  # one of another test's, which has ended
                    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
                    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
                    assert blocked >> (signal.SIGTERM - 1) & 1


def test_close_frees_the_port(server: Server) -> None:
    server.close()
    Server(server.address, lambda path: (200, "", b"")).close()

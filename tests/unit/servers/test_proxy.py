"""tests/servers/proxy.py: what it does to a request is what the tests that use it believe."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.servers import ROOT, Server
from tests.servers.http1 import Message
from tests.servers.proxy import (
    Hang,
    Late,
    LostReply,
    Proxy,
    Reply,
    ResetUpload,
    Script,
    SlowBody,
    StaleClose,
    Storm,
    proxied,
    refusal,
)

RESETS = (ConnectionResetError, BrokenPipeError)  # RemoteDisconnected is one too


class Upstream(ThreadingHTTPServer):
    """Keeps what is put under its path; `/chunked` and `/json` have replies of their own."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.expected: list[str | None] = []
        self.peers: list[int] = []
        self.patience: float | None = None  # seconds that a connection may be idle between requests
        self.let_go = threading.Event()

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        super().shutdown_request(request)
        self.let_go.set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    served = False

    def handle_one_request(self) -> None:
        self.connection.settimeout(self.server.patience if self.served else None)
        super().handle_one_request()
        self.served = True

    def do_PUT(self) -> None:
        self.server.expected.append(self.headers["Expect"])
        self.server.objects[self.path] = self._body()
        self._answer(200, b"put")

    def do_GET(self) -> None:
        self.server.peers.append(self.client_address[1])
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\none\r\n4;x=y\r\n two\r\n0\r\n\r\n")
        elif self.path == "/endless":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"to the end")
        elif self.path == "/json":
            where = "{}:{}".format(*self.server.server_address)
            text = f'{{"link": "http://{where}/o", "updated": "2026-01-31T23:59:59.5Z"}}'
            self._answer(200, text.encode(), "application/json")
        elif self.path in self.server.objects:
            self._answer(200, self.server.objects[self.path])
        else:
            self._answer(404, b"nothing here")

    def do_HEAD(self) -> None:
        self._answer(200, self.server.objects[self.path])

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _body(self) -> bytes:
        if "Transfer-Encoding" not in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[Proxy]:
    with proxied(behind(upstream)) as made:
        yield made


@pytest.fixture
def client(proxy: Proxy) -> Iterator[http.client.HTTPConnection]:
    made = connection(proxy)
    yield made
    made.close()


def behind(upstream: Upstream) -> Server:
    return Server("own", "s3", "127.0.0.1", upstream.server_address[1], os.getpid())


def connection(proxy: Proxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(proxy.server.host, proxy.server.port, timeout=20)


def ask(
    client: http.client.HTTPConnection, method: str, path: str, body: bytes | Iterator[bytes] | None = None
) -> tuple[int, bytes]:
    client.request(method, path, body, encode_chunked=not isinstance(body, bytes | None))
    reply = client.getresponse()
    return reply.status, reply.read()


# --- what passes is what was sent


def test_one_connection_carries_every_kind_of_message(upstream: Upstream, proxy: Proxy) -> None:
    client = connection(proxy)
    big = os.urandom(3_000_000)
    assert ask(client, "PUT", "/a", big) == (200, b"put")
    assert ask(client, "GET", "/a") == (200, big)
    client.request("PUT", "/b", iter([b"chu", b"nked"]), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert client.getresponse().read() == b"put"
    assert ask(client, "GET", "/b") == (200, b"chunked")
    assert ask(client, "HEAD", "/a") == (200, b"")
    assert ask(client, "GET", "/chunked") == (200, b"one two")
    assert ask(client, "DELETE", "/a") == (204, b"")
    assert ask(client, "GET", "/a")[0] == 404
    assert {seen.connection for seen in proxy.seen} == {0} and proxy.connections == 1
    assert len(set(upstream.peers)) == 1
    assert [seen.status for seen in proxy.seen] == [200, 200, 200, 200, 200, 200, 204, 404]
    assert ask(client, "GET", "/endless") == (200, b"to the end")
    client.close()


def test_each_connection_has_one_of_its_own_behind_it(upstream: Upstream, proxy: Proxy) -> None:
    clients = [connection(proxy) for _ in range(3)]
    for client in clients * 2:
        assert ask(client, "GET", "/chunked")[0] == 200
    assert proxy.connections == 3 and len(set(upstream.peers)) == 3
    for client in clients:
        client.close()


def test_a_store_that_closed_its_idle_connection_is_asked_on_a_new_one(
    upstream: Upstream, proxy: Proxy, client: http.client.HTTPConnection
) -> None:
    upstream.patience = 0.05
    assert ask(client, "PUT", "/a", b"1")[0] == 200
    upstream.let_go.wait()
    assert ask(client, "GET", "/a") == (200, b"1")
    assert proxy.connections == 1


def test_links_lead_to_the_proxy_and_clocks_are_moved(upstream: Upstream) -> None:
    with proxied(behind(upstream), skew=-3600.0) as proxy:
        client = connection(proxy)
        client.request("GET", "/json")
        reply = client.getresponse()
        body = reply.read().decode()
        client.close()
    assert body == f'{{"link": "{proxy.server.endpoint}/o", "updated": "2026-01-31T22:59:59.5Z"}}'
    assert parsedate_to_datetime(reply.headers["Date"]).timestamp() <= time.time() - 3600


# --- latency


def test_a_reply_leaves_one_latency_after_its_request_and_a_new_connection_costs_one_more(upstream: Upstream) -> None:
    with proxied(behind(upstream), latency=0.2) as proxy:
        began = time.monotonic()
        client = connection(proxy)
        ask(client, "PUT", "/a", b"1")
        first = time.monotonic()
        ask(client, "GET", "/a")
        second = time.monotonic()
        client.close()
    assert first - began >= 0.4 and second - first >= 0.2


def test_expect_costs_a_round_trip_and_does_not_reach_the_store(upstream: Upstream) -> None:
    with proxied(behind(upstream), latency=0.2, setup=0.0) as proxy:
        with socket.create_connection((proxy.server.host, proxy.server.port)) as raw, raw.makefile("rb") as inbox:
            began = time.monotonic()
            raw.sendall(b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
            assert inbox.readline() == b"HTTP/1.1 100 Continue\r\n"
            asked = time.monotonic()
            inbox.readline()
            raw.sendall(b"body")
            assert inbox.readline() == b"HTTP/1.1 200 OK\r\n"
            answered = time.monotonic()
        assert [seen.expect for seen in proxy.seen] == [True]
    assert asked - began >= 0.2 and answered - asked >= 0.2
    assert upstream.objects == {"/a": b"body"} and upstream.expected == [None]


def test_a_connection_that_hangs_holds_up_no_other(proxy: Proxy) -> None:
    proxy.plan = Script([Hang()], path="/hangs")
    waiting, other = connection(proxy), connection(proxy)
    waiting.request("GET", "/hangs")
    while not proxy.seen:
        time.sleep(0.01)
    assert ask(other, "PUT", "/a", b"1")[0] == 200
    proxy.close()
    with pytest.raises(RESETS):
        waiting.getresponse()
    assert proxy.seen[0].status is None
    waiting.close()
    other.close()


# --- faults


def test_a_reply_of_the_proxys_own_keeps_the_connection_and_the_store_hears_nothing(
    upstream: Upstream, proxy: Proxy, client: http.client.HTTPConnection
) -> None:
    slow = refusal("s3", 503)
    proxy.plan = Script([slow, refusal("gs", 403, "no storage.objects.get")])
    assert ask(client, "PUT", "/a", b"1") == (503, slow.body) and b"<Code>SlowDown</Code>" in slow.body
    status, body = ask(client, "GET", "/a")
    assert status == 403 and b'"reason": "forbidden"' in body and b"no storage.objects.get" in body
    assert ask(client, "PUT", "/b", b"2")[0] == 200
    assert upstream.objects == {"/b": b"2"} and proxy.connections == 1


def test_a_reply_to_head_has_no_body(proxy: Proxy) -> None:
    proxy.plan = Script([Reply(403, b"why")])
    with socket.create_connection((proxy.server.host, proxy.server.port)) as raw, raw.makefile("rb") as inbox:
        raw.sendall(b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert inbox.read() == b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\n"


def test_a_lost_reply_was_carried_out(upstream: Upstream, proxy: Proxy, client: http.client.HTTPConnection) -> None:
    proxy.plan = Script([LostReply()])
    with pytest.raises(http.client.RemoteDisconnected):
        ask(client, "PUT", "/a", b"1")
    assert upstream.objects == {"/a": b"1"} and proxy.seen[0].status == 200


@pytest.mark.parametrize(("size", "after"), [(5_000_000, 0), (5_000_000, 100_000), (5, 1), (5, 5)])
def test_a_reset_upload_never_arrives(upstream: Upstream, proxy: Proxy, size: int, after: int) -> None:
    proxy.plan = Script([ResetUpload(after)])
    client = connection(proxy)
    with pytest.raises(RESETS) as raised:
        ask(client, "PUT", "/a", bytes(size))
    client.close()
    assert raised.type is not http.client.RemoteDisconnected  # that would be a close as usual
    assert upstream.objects == {} and proxy.seen[0].status is None


def test_a_late_request_arrives_before_the_nth_further_one(upstream: Upstream, proxy: Proxy) -> None:
    proxy.plan = Script([Late(2)])
    client = connection(proxy)
    with pytest.raises(http.client.RemoteDisconnected):
        ask(client, "PUT", "/a", b"late")
    assert ask(client, "GET", "/a")[0] == 404
    assert ask(client, "GET", "/a") == (200, b"late")
    client.close()


def test_a_late_request_without_a_number_arrives_when_it_is_released(upstream: Upstream, proxy: Proxy) -> None:
    proxy.plan = Script([Late()])
    client = connection(proxy)
    with pytest.raises(http.client.RemoteDisconnected):
        ask(client, "PUT", "/a", b"late")
    assert ask(client, "PUT", "/a", b"later")[0] == 200
    assert proxy.seen[0].status is None and upstream.objects == {"/a": b"later"}
    assert proxy.release() == [200] and proxy.release() == []
    assert proxy.seen[0].status == 200 and upstream.objects == {"/a": b"late"}
    client.close()


def test_a_body_can_be_cut_or_dribble(upstream: Upstream, proxy: Proxy, client: http.client.HTTPConnection) -> None:
    upstream.objects["/a"] = b"0123456789"
    proxy.plan = Script([SlowBody(4), SlowBody(4, pause=0.001)])
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(client, "GET", "/a")
    assert (cut.value.partial, cut.value.expected) == (b"0123", 6)
    client.close()
    assert ask(client, "GET", "/a") == (200, b"0123456789")


def test_a_stale_connection_is_closed_behind_its_reply(proxy: Proxy) -> None:
    proxy.plan = Script([StaleClose()])
    with socket.create_connection((proxy.server.host, proxy.server.port)) as raw:
        raw.sendall(b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1")
        with raw.makefile("rb") as inbox:
            assert inbox.read().endswith(b"\r\n\r\nput")


def test_a_stale_connection_may_go_just_as_it_is_used_again(upstream: Upstream, proxy: Proxy) -> None:
    proxy.plan = Script([StaleClose(noticed=False)])
    client = connection(proxy)
    assert ask(client, "PUT", "/a", b"1")[0] == 200
    with pytest.raises(RESETS):
        ask(client, "PUT", "/a", b"2")
    client.close()
    assert upstream.objects == {"/a": b"1"} and [seen.status for seen in proxy.seen] == [200, None]


# --- the network


def test_a_partition_resets_what_is_open_and_what_is_new_until_it_heals(upstream: Upstream, proxy: Proxy) -> None:
    old, new = connection(proxy), connection(proxy)
    assert ask(old, "PUT", "/a", b"1")[0] == 200
    proxy.partition()
    for client in (old, new):
        with pytest.raises(RESETS):
            ask(client, "PUT", "/a", b"2")
        client.close()
    proxy.heal()
    assert ask(new, "GET", "/a") == (200, b"1")
    assert upstream.objects == {"/a": b"1"}
    new.close()


def test_a_black_hole_says_nothing_and_what_fell_in_is_reset_when_it_heals(upstream: Upstream, proxy: Proxy) -> None:
    put = b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"
    where = (proxy.server.host, proxy.server.port)
    with socket.create_connection(where) as old, socket.create_connection(where) as new:
        for served in (old, new):
            served.sendall(put)
            answered = served.recv(1000)
            while not answered.endswith(b"put"):
                answered += served.recv(1000)
        upstream.objects.clear()
        proxy.partition("blackhole")
        for swallowed in (old, new):
            swallowed.settimeout(0.2)
            swallowed.sendall(put)
            with pytest.raises(TimeoutError):
                swallowed.recv(1)
        proxy.heal()
        for swallowed in (old, new):
            swallowed.settimeout(20)
            with pytest.raises(ConnectionResetError):
                swallowed.recv(1)
    assert upstream.objects == {}
    client = connection(proxy)
    assert ask(client, "PUT", "/a", b"1")[0] == 200
    client.close()


def test_a_reply_that_a_partition_overtakes_is_lost(upstream: Upstream, proxy: Proxy) -> None:
    def overtaken(request: Message) -> Message:
        proxy.partition()
        proxy.heal()
        return request

    proxy.change = overtaken
    client = connection(proxy)
    with pytest.raises(RESETS):
        ask(client, "PUT", "/a", b"1")
    client.close()
    assert upstream.objects == {"/a": b"1"}


# --- plans


def test_a_script_meets_only_what_it_names() -> None:
    script = Script([LostReply(), None, Hang()], method="PUT", path="/a", forever=True)
    met = [script(*asked, 0) for asked in [("GET", "/a"), ("PUT", "/b"), *[("PUT", "/x/a")] * 5]]
    assert met == [None, None, LostReply(), None, Hang(), Hang(), Hang()]


def test_a_storm_repeats_itself_and_spares_what_it_is_told_to() -> None:
    def storm(seed: int) -> list[object]:
        plan = Storm(seed, "s3", lost=0.2, late=0.2, refused=0.2, cut=0.2, only=lambda method, path: path != "/b")
        return [plan(method, path, 0) for path in ("/a", "/b", "/c") for method in ("PUT", "GET") for _ in range(99)]

    one = storm(1)
    assert one == storm(1) and one != storm(2)
    assert one[198:396] == [None] * 198
    assert {type(fault) for fault in one} == {type(None), LostReply, Late, Reply, SlowBody}
    assert not any(isinstance(fault, Late) for fault in one[99:198])


# --- as a process


def test_it_runs_as_a_process_of_its_own(upstream: Upstream) -> None:
    line = [sys.executable, "-m", "tests.servers.proxy", "--upstream", f"127.0.0.1:{upstream.server_address[1]}"]
    process = subprocess.Popen([*line, "--latency-ms", "100"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    client = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=20)
    began = time.monotonic()
    assert ask(client, "PUT", "/a", b"1") == (200, b"put")
    assert time.monotonic() - began >= 0.2 and upstream.objects == {"/a": b"1"}
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.stdout.close()

"""A proxy on loopback between a client and an object store server: adds latency, breaks requests, cuts the network.

Real sockets all the way: keep-alive to the client, and one connection to the store for each of the client's.

Latency is a fixed round trip: half before the store hears of a request, half before the client hears of its reply, so
that no reply leaves earlier than `latency` after its request came. `Expect: 100-continue` costs one round trip of its
own. The kernel shakes hands at once, so a connection's set-up is charged to its first request: nothing is answered on
a new connection before `setup` further round trips are over (1: TCP; 2 stands for TCP and TLS 1.3; no TLS is spoken).
Connections do not wait for each other. Bandwidth, slow start and loss are not modelled.
"""

from __future__ import annotations

import argparse
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import BinaryIO, Literal

from tests.servers import Server
from tests.servers.faults import (
    Fault,
    Hang,
    Late,
    LostReply,
    Plan,
    Reply,
    ResetUpload,
    Script,
    SlowBody,
    StaleClose,
    Storm,
    calm,
    refusal,
)
from tests.servers.http1 import BODYLESS, Message, read_head, read_reply, read_request

__all__ = [
    "Fault",
    "Hang",
    "Late",
    "LostReply",
    "Plan",
    "Proxy",
    "Reply",
    "ResetUpload",
    "Script",
    "Seen",
    "SlowBody",
    "StaleClose",
    "Storm",
    "calm",
    "proxied",
    "refusal",
]

CLOSE_SECONDS = 10.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(slots=True)
class Seen:
    """A request as it came. `status` is the store's answer, None while it has none; `headers` are names in lower case;
    connections are numbered from 0."""

    method: str
    path: str
    connection: int
    headers: tuple[str, ...]
    fault: Fault | None
    status: int | None = None

    @property
    def expect(self) -> bool:
        return "expect" in self.headers


class _Drop(Exception):
    """Close the client's connection here; with a reset (RST) or as usual (FIN)."""

    def __init__(self, reset: bool = False) -> None:
        self.reset = reset


@dataclass(slots=True)
class _UnderWay:
    """A request that its sender has given up and the store gets before the `left`-th further one (None: by release)."""

    request: Message
    seen: Seen
    left: int | None


class Proxy:
    """`plan` may be replaced at any time, and `change`, which says what of a request is passed on. `skew` seconds are
    added to every date that the store tells."""

    def __init__(
        self, server: Server, *, latency: float, setup: float, plan: Plan | None, host: str, skew: float
    ) -> None:
        self.plan: Plan = plan or calm
        self.change: Callable[[Message], Message] = lambda request: request
        self.latency, self.setup, self.skew = latency, setup, skew
        self.seen: list[Seen] = []
        self.connections = self.partitions = 0
        self.upstream = server
        self._listener = socket.create_server((host, 0), backlog=128)
        self.server = replace(server, host=host, port=int(self._listener.getsockname()[1]))
        self._open: set[socket.socket] = set()
        self._under_way: list[_UnderWay] = []
        self._cut: Literal["", "reset", "blackhole"] = ""
        self._closed = False
        self._news = threading.Condition()  # guards what is above; told when _cut or _closed changes
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def partition(self, how: Literal["reset", "blackhole"] = "reset") -> None:
        """Cut every connection and every new one, until `heal`: with a reset, or by silence. What the store is doing
        at that moment it does, and nobody hears of it."""
        with self._news:
            self._cut, self.partitions = how, self.partitions + 1
            self._news.notify_all()
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)  # wakes its reader, which then finds out why

    def heal(self) -> None:
        """Serve new connections again; those that the partition met are reset."""
        with self._news:
            self._cut = ""
            self._news.notify_all()

    def release(self) -> list[int]:
        """Let every request that is still under way arrive now; the store's answers, which nobody else hears."""
        return self._land(lambda late: True)

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):  # wakes the thread that accepts
            socket.create_connection((self.server.host, self.server.port), CLOSE_SECONDS).close()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)
        self._listener.close()

    # --- what a connection asks its proxy

    def note(self, connection: int, head: Message, fault: Fault | None = None) -> Seen:
        """Write the request down with its fault (the plan's, unless given), after whatever was to arrive before it."""
        with self._news:
            fault = fault or self.plan(head.method, head.path, len(self.seen))
            names = tuple(name.lower() for name, _ in head.headers)
            seen = Seen(head.method, head.path, connection, names, fault)
            self.seen.append(seen)
            for late in self._under_way:
                late.left = None if late.left is None else late.left - 1
        self._land(lambda late: late.left is not None and late.left <= 0)
        return seen

    def postpone(self, request: Message, seen: Seen, after: int | None) -> None:
        with self._news:
            self._under_way.append(_UnderWay(request, seen, after))

    def gate(self, since: int) -> None:
        """Nothing passes while the network is cut, nor ever again on a connection older than the last cut."""
        with self._news:
            if not self._cut and self.partitions == since:
                return
            self._news.wait_for(lambda: self._closed or self._cut != "blackhole")
        raise _Drop(reset=True)

    def hang(self, since: int) -> None:
        with self._news:
            self._news.wait_for(lambda: self._closed or self.partitions != since)
        raise _Drop(reset=True)

    def ask(self, upstream: socket.socket, request: Message) -> Message:
        """The store's reply, told as the proxy's own: its address and its clock."""
        upstream.sendall(self.change(request.without("expect")).wire())
        with upstream.makefile("rb") as inbox:
            return _moved(_skewed(read_reply(inbox, request.method), self.skew), self.upstream, self.server)

    def connect(self) -> socket.socket:
        upstream = socket.create_connection((self.upstream.host, self.upstream.port))
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return upstream

    # --- inside

    def _land(self, due: Callable[[_UnderWay], bool]) -> list[int]:
        with self._news:
            landing = [late for late in self._under_way if due(late)]
            self._under_way = [late for late in self._under_way if not due(late)]
        for late in landing:
            with self.connect() as upstream:
                late.seen.status = self.ask(upstream, late.request).status
        return [late.seen.status or 0 for late in landing]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._news:
                if self._closed:
                    client.close()
                    return
                self._open.add(client)
                number, self.connections = self.connections, self.connections + 1
                self._start(partial(self._serve, client, number))

    def _serve(self, client: socket.socket, number: int) -> None:
        try:
            _Connection(self, client, number).serve()
        finally:
            with self._news:
                self._open.discard(client)
                client.close()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()


class _Connection:
    """A client's connection and the one to the store behind it."""

    def __init__(self, proxy: Proxy, client: socket.socket, number: int) -> None:
        self._proxy, self._client, self._number = proxy, client, number
        self._upstream: socket.socket | None = None
        self._since = proxy.partitions
        self._ready = time.monotonic() + proxy.latency * proxy.setup
        self._stale = False
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> None:
        try:
            self._gate()
            with self._client.makefile("rb") as inbox:
                while (head := read_head(inbox)) is not None:
                    self._exchange(inbox, head)
            self._gate()
        except _Drop as drop:
            if drop.reset:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except (OSError, EOFError):
            pass  # one end went away; so does the other
        finally:
            if self._upstream is not None:
                self._upstream.close()

    def _gate(self) -> None:
        self._proxy.gate(self._since)

    def _exchange(self, inbox: BinaryIO, head: Message) -> None:
        """One request and its reply. _Drop when the connection ends with it."""
        proxy = self._proxy
        time.sleep(max(0.0, self._ready - time.monotonic()))
        self._gate()
        seen = proxy.note(self._number, head, ResetUpload() if self._stale else None)
        request = self._receive(inbox, head, seen.fault)
        time.sleep(proxy.latency / 2)
        reply = self._reply(request, seen)
        time.sleep(proxy.latency / 2)
        self._gate()
        match seen.fault:
            case LostReply():
                raise _Drop
            case SlowBody(after, pause):
                self._dribble(reply, after, pause)
                raise _Drop
            case _:
                self._client.sendall(reply.wire())
        match seen.fault:
            case StaleClose(noticed=True):
                raise _Drop
            case StaleClose(noticed=False):
                self._stale = True
        if request.last or reply.last or _endless(reply, request.method):
            raise _Drop

    def _receive(self, inbox: BinaryIO, head: Message, fault: Fault | None) -> Message:
        """The whole request, its body asked for where the client waits for that."""
        if fault == ResetUpload(0):
            raise _Drop(reset=True)
        if head.expects:
            time.sleep(self._proxy.latency)
            self._gate()
            self._client.sendall(_CONTINUE)
        if isinstance(fault, ResetUpload):
            inbox.read(fault.after if head.length is None else min(fault.after, head.length))
            raise _Drop(reset=True)
        return read_request(inbox, head)

    def _reply(self, request: Message, seen: Seen) -> Message:
        self._gate()
        match seen.fault:
            case Hang():
                self._proxy.hang(self._since)
            case Late(after):
                self._proxy.postpone(request, seen, after)
                raise _Drop
            case Reply(status, body, headers):
                start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
                reply = Message(start, headers).with_content(body)
                return replace(reply, body=b"") if request.method == "HEAD" else reply
        reply = self._ask(request)
        seen.status = reply.status
        return reply

    def _ask(self, request: Message) -> Message:
        if self._upstream is not None and _ended(self._upstream):
            self._upstream.close()
            self._upstream = None
        self._upstream = self._upstream or self._proxy.connect()
        return self._proxy.ask(self._upstream, request)

    def _dribble(self, reply: Message, after: int, pause: float | None) -> None:
        head = replace(reply, body=b"").wire()
        self._client.sendall(head + reply.body[:after])
        if pause is not None:
            for byte in reply.body[after:]:
                time.sleep(pause)
                self._gate()
                self._client.sendall(bytes([byte]))


def _ended(connection: socket.socket) -> bool:
    """Whether the other end has closed an idle connection: it can be read, and nothing was asked."""
    return bool(select.select([connection], [], [], 0)[0])


def _endless(reply: Message, method: str) -> bool:
    """Whether only the connection's end says where this reply's body ends."""
    return reply.length is None and not reply.chunked and method != "HEAD" and reply.status not in BODYLESS


def _skewed(reply: Message, seconds: float) -> Message:
    """The reply with every date moved, in headers and in the store's own JSON and XML; objects stay what they are."""
    if not seconds:
        return reply
    by = timedelta(seconds=seconds)

    def header(name: str, value: str) -> str:
        if name.lower() not in ("date", "last-modified"):
            return value
        return format_datetime(parsedate_to_datetime(value) + by, usegmt=True)

    def stamp(found: re.Match[bytes]) -> bytes:
        return (datetime.fromisoformat(found[0].decode()) + by).isoformat().encode()

    headers = tuple((name, header(name, value)) for name, value in reply.headers)
    told = any(kind in reply.header("content-type") for kind in ("json", "xml"))
    return replace(reply, headers=headers, body=_STAMP.sub(stamp, reply.body) if told else reply.body)


def _moved(reply: Message, upstream: Server, here: Server) -> Message:
    """The reply with links to the store leading to the proxy, lest a client goes past it."""
    there, mine = f"{upstream.host}:{upstream.port}", f"{here.host}:{here.port}"
    headers = tuple((name, value.replace(there, mine)) for name, value in reply.headers)
    moved = replace(reply, headers=headers)
    if "json" not in reply.header("content-type") or there.encode() not in reply.body:
        return moved
    return moved.with_content(moved.content.replace(there.encode(), mine.encode()))


@contextmanager
def proxied(
    server: Server,
    *,
    latency: float = 0.0,
    setup: float = 1.0,
    plan: Plan | None = None,
    host: str = "127.0.0.1",
    skew: float = 0.0,
) -> Iterator[Proxy]:
    """A proxy in front of the server until the block ends. `latency` is seconds of a round trip, `setup` how many of
    them a new connection costs."""
    proxy = Proxy(server, latency=latency, setup=setup, plan=plan, host=host, skew=skew)
    try:
        yield proxy
    finally:
        proxy.close()


def main() -> None:
    """Serve until SIGTERM or SIGINT; the port is the first line of stdout. SIGUSR1: print how many requests came."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers.proxy")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--setup", type=float, default=1.0, help="round trips that a new connection costs")
    parser.add_argument("--scheme", choices=["gs", "s3"], default="s3")
    parser.add_argument("--host", default="127.0.0.1")
    chosen = parser.parse_args()
    host, _, port = chosen.upstream.rpartition(":")
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    server = Server("upstream", chosen.scheme, host, int(port), 0)
    with proxied(server, latency=chosen.latency_ms / 1000, setup=chosen.setup, host=chosen.host) as proxy:
        print(proxy.server.port, flush=True)
        while signal.sigwait(signals) == signal.SIGUSR1:
            print(len(proxy.seen), flush=True)


if __name__ == "__main__":
    main()

"""Object stores for benches: an emulator on this machine, alone or behind a proxy that adds a fixed round trip time."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from subprocess import PIPE, Popen

from tests.servers import ROOT, Server, fresh_bucket, started

ROUND_TRIP = 30.0  # ms; a bucket in the next region, or in the same one with TLS and some load
NAMES = {"gs://": "fake-gcs", "s3://": "ministack"}


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket at `url` on `server`; `name` says which and how far away, `round_trip` in ms."""

    name: str
    server: Server
    url: str
    round_trip: float = 0.0
    proxy: Popen[str] | None = None

    def requests(self) -> int:
        """How many requests came until now; through a proxy only."""
        assert self.proxy is not None and self.proxy.stdout is not None
        self.proxy.send_signal(signal.SIGUSR1)
        return int(self.proxy.stdout.readline())

    @contextmanager
    def environment(self) -> Iterator[None]:
        """This process's SDKs find the store meanwhile."""
        before = {name: os.environ.get(name) for name in self.server.env}
        os.environ.update(self.server.env)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    @contextmanager
    def through_proxy(self, round_trip: float) -> Iterator[Store]:
        """The same bucket, `round_trip` ms away, each request counted."""
        argv = [sys.executable, "-m", "tests.servers.proxy", "--upstream", f"{self.server.host}:{self.server.port}"]
        words = [*argv, "--latency-ms", str(round_trip)]
        with Popen(words, cwd=ROOT, stdout=PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            try:
                front = replace(self.server, port=int(proxy.stdout.readline()))
                yield Store(f"{self.name} + {round_trip:.0f} ms", front, self.url, round_trip, proxy)
            finally:
                proxy.kill()


@contextmanager
def store(scheme: str, round_trip: float) -> Iterator[Store]:
    """A new, empty bucket of this scheme, which this process's SDKs find meanwhile; behind a proxy if it is to be far
    away."""
    with started(NAMES[scheme]) as server:
        near = Store(scheme, server, fresh_bucket(server))
        with near.through_proxy(round_trip) if round_trip else nullcontext(near) as at, at.environment():
            yield at


class RawPut:
    """The least that a conditional put can cost: one request on a connection that is open, no SDK, no signature."""

    def __init__(self, at: Store) -> None:
        self._connection = http.client.HTTPConnection(at.server.host, at.server.port)
        self._bucket = at.url.partition("://")[2]
        self._scheme = at.server.scheme
        self._count = 0

    def __call__(self, data: bytes) -> None:
        self._count += 1
        key = f"raw-{self._count}"
        if self._scheme == "s3":
            self._connection.request("PUT", f"/{self._bucket}/{key}", data, {"If-None-Match": "*"})
        else:
            told = json.dumps({"name": key}).encode()
            head = b"--x\r\nContent-Type: application/json\r\n\r\n" + told
            body = head + b"\r\n--x\r\nContent-Type: application/octet-stream\r\n\r\n" + data + b"\r\n--x--"
            path = f"/upload/storage/v1/b/{self._bucket}/o?uploadType=multipart&ifGenerationMatch=0"
            self._connection.request("POST", path, body, {"Content-Type": "multipart/related; boundary=x"})
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"a raw put was answered with {answer.status}")

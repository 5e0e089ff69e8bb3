"""Object stores for benches: an emulator on this machine, alone or behind a proxy that adds a fixed round trip time."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.servers import ROOT, Server, fresh_bucket, started

ROUND_TRIP = 30.0  # ms; a bucket in the next region, or in the same one with TLS and some load
NAMES = {"gs://": "fake-gcs", "s3://": "ministack"}


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket at `url` on `server`; `name` says which and how far away, `round_trip` in ms."""

    name: str
    server: Server
    url: str
    round_trip: float


@contextmanager
def store(scheme: str, round_trip: float) -> Iterator[Store]:
    """A new, empty bucket of this scheme; this process's environment leads the SDKs to it meanwhile."""
    with started(NAMES[scheme]) as server:
        url = fresh_bucket(server)
        far = f"{scheme} + {round_trip:.0f} ms" if round_trip else scheme
        with _behind(server, round_trip) as front, _environment(front.env):
            yield Store(far, front, url, round_trip)


@contextmanager
def _behind(server: Server, round_trip: float) -> Iterator[Server]:
    if not round_trip:
        yield server
        return
    argv = [sys.executable, "-m", "tests.servers.proxy", "--upstream", f"{server.host}:{server.port}"]
    with subprocess.Popen(
        [*argv, "--latency-ms", str(round_trip)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as proxy:
        assert proxy.stdout is not None
        try:
            yield replace(server, port=int(proxy.stdout.readline()))
        finally:
            proxy.kill()


@contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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

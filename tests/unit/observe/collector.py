"""A stand-in for an OpenTelemetry collector: OTLP over HTTP on loopback, protobuf as opentelemetry-proto reads it."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Sink)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[tuple[str, str, ExportTraceServiceRequest]] = []
        """Path, X-Token, body."""

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for _, _, request in list(self.requests)
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class Sink(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)  # type: ignore[no-untyped-call]
        self.server.requests.append((self.path, self.headers["X-Token"], request))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()

"""A service on loopback that takes apprise's `json://`: what it got, in order."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONG = 60.0  # seconds that a test waits for what must come


class Sink:
    """`status`: of its answers. While `silent` is set it answers nothing: what it got is told, then it waits."""

    def __init__(self) -> None:
        self.got: queue.Queue[dict[str, Any]] = queue.Queue()
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                sink.got.put(body)
                sink.open.wait(LONG)
                try:
                    self.send_response(sink.status)
                    self.end_headers()
                except OSError:
                    return

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self._server.server_port}/s3cret-p4th"

    def next(self) -> dict[str, Any]:
        return self.got.get(timeout=LONG)

    def rest(self) -> list[dict[str, Any]]:
        found = []
        while not self.got.empty():
            found.append(self.got.get())
        return found

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()


def nobody() -> str:
    """A URL that nobody answers at."""
    sink = Sink()
    sink.close()
    return sink.url

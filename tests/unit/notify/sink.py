"""A service on loopback that takes apprise's `json://`: what it got, in order."""

from __future__ import annotations

import json
import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONG = 200.0  # seconds that a test waits for what must come: a sender is the last to have its turn


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

    @property
    def patient(self) -> str:
        """A URL whose reader waits for an answer as long as it may."""
        return f"{self.url}?rto=60&cto=60"

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


_DEAF = socket.socket()  # kept, so that nobody else is given its port; who does not listen refuses
_DEAF.bind(("127.0.0.1", 0))


def nobody() -> str:
    """A URL that nobody answers at."""
    return f"json://127.0.0.1:{_DEAF.getsockname()[1]}/s3cret-p4th"

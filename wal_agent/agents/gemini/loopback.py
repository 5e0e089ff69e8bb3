"""A scripted model behind Gemini CLI's REST API, on loopback: says what a test wrote, logs what it was asked.

In a test: `with GeminiModel([Turn(calls=[("run_shell_command", {"command": "true"})]), Turn(text="done")]) as model`,
then `model.env` for the CLI and `model.requests` for what the model received. As a program, in a session of your own:

    python gemini_model.py TURNS.json [--port N] [--log FILE]        # TURNS.json: [{"text": "hi"}, {"calls": [...]}]

Turns answer the requests that declare tools, in order; a turn with `when` waits for a request whose last content holds
that text. Other requests (summaries, the model router) get a dummy that fits the schema that they ask for.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

Json = dict[str, Any]


@dataclass
class Turn:
    """One answer: text, then calls. It is held back until `hold` is set, when there is one."""

    text: str = ""
    calls: Sequence[tuple[str, Json]] = ()
    when: str = ""
    status: int = 200
    hold: threading.Event | None = None

    def parts(self) -> list[Json]:
        said: list[Json] = [{"text": self.text}] if self.text else []
        return said + [{"functionCall": {"name": name, "args": args}} for name, args in self.calls]


@dataclass
class GeminiModel:
    turns: list[Turn] = field(default_factory=list)
    port: int = 0
    requests: list[Json] = field(default_factory=list)  # bodies of the requests that declared tools
    log: Path | None = None
    host: str = "127.0.0.1"  # where it listens

    def __post_init__(self) -> None:
        self._lock = threading.Condition()
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> GeminiModel:
        model = self

        class Handler(_Handler):
            owner = model

        self._server = _Server((self.host, self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        for turn in self.turns:
            if turn.hold is not None:
                turn.hold.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> GeminiModel:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def env(self) -> dict[str, str]:
        return {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{self.port}"}

    def wait_for(self, requests: int, timeout: float = 30) -> None:
        """Until so many requests with tools have arrived."""
        with self._lock:
            if not self._lock.wait_for(lambda: len(self.requests) >= requests, timeout):
                raise TimeoutError(f"{len(self.requests)} of {requests} requests after {timeout} s")

    def take(self, body: Json) -> Turn:
        """Log the request and choose its answer."""
        last = json.dumps((body.get("contents") or [{}])[-1], ensure_ascii=False)
        with self._lock:
            self.requests.append(body)
            if self.log is not None:
                with self.log.open("a") as f:
                    f.write(json.dumps(body) + "\n")
            self._lock.notify_all()
            for i, turn in enumerate(self.turns):
                if turn.when in last:
                    return self.turns.pop(i)
        return Turn(text="The script has ended.")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A CLI that was killed in a request is what stories and tests are made of, and no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: GeminiModel

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json({"models": []})

    def do_POST(self) -> None:
        body: Json = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self.path.partition("?")[0]
        if path.endswith("countTokens"):
            return self._json({"totalTokens": 100})
        if not path.lower().endswith("generatecontent"):
            return self._json({})
        turn = self.owner.take(body) if body.get("tools") else Turn(text=_side_answer(body))
        if turn.hold is not None:
            turn.hold.wait(60)
        if turn.status != 200:
            return self._json({"error": {"code": turn.status, "message": "scripted", "status": "X"}}, turn.status)
        answer = {
            "candidates": [{"index": 0, "content": {"role": "model", "parts": turn.parts()}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
            "modelVersion": "scripted",
        }
        if "alt=sse" not in self.path:
            return self._json(answer)
        return self._send(b"data: " + json.dumps(answer).encode() + b"\r\n\r\n", "text/event-stream")

    def _json(self, value: Json, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the CLI was killed meanwhile: that is what the test wanted


def _side_answer(body: Json) -> str:
    config = body.get("generationConfig") or {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    return json.dumps(_dummy(schema)) if schema else "ok"


def _dummy(schema: Json) -> Any:
    kind = str(schema.get("type", "string")).lower()
    if schema.get("enum"):
        return schema["enum"][0]
    if kind == "object":
        return {k: _dummy(v) for k, v in schema.get("properties", {}).items()}
    return {"array": [], "integer": 1, "number": 1, "boolean": False}.get(kind, "x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("turns", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    turns = [
        Turn(**{**t, "calls": [tuple(c) for c in t.get("calls", [])]}) for t in json.loads(given.turns.read_text())
    ]
    with GeminiModel(turns, port=given.port, log=given.log) as model:
        for name, value in model.env.items():
            print(f"export {name}={value}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()

"""A scripted model on loopback: says what a script wrote, logs what it was asked. `Dialect` is the API that it speaks.

    with Model(Gemini(), [Turn(calls=[("run_shell_command", {"command": "true"})]), Turn(text="done")]) as model: ...

Turns answer the requests that declare tools, in order; a turn with `when` waits for a request whose last message holds
that text. Other requests (summaries, titles, routers) get what the dialect says.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

Json = dict[str, Any]
Call = tuple[str, Json]  # a tool's name as the model says it, and its input

HELD = 600.0  # seconds after which a turn that is held back is said after all


class Turn(msgspec.Struct):
    """One answer: text, then calls. It is held back until `hold` is set, when there is one. `id`s of calls are made by
    the dialect. With a `status` that is not 200 it is an error: `error` is its body, else the dialect's own, and
    `headers` (retry-after) go with it."""

    text: str = ""
    calls: Sequence[Call] = ()
    when: str = ""
    status: int = 200
    hold: threading.Event | None = None
    error: Json | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    tokens: int = 100  # that the request is said to have had: many make an agent compact its conversation


class HistoryText(msgspec.Struct, frozen=True):
    """Text in a request's history. `role`: user, model or system."""

    role: str
    text: str


class Called(msgspec.Struct, frozen=True):
    """A tool call in a request's history."""

    tool: str
    input: Json
    id: str = ""


class Returned(msgspec.Struct, frozen=True):
    """A tool's result in a request's history; `id` is its call's. `text` is all that it says, errors too."""

    id: str
    text: str


Part = HistoryText | Called | Returned


class Reply(msgspec.Struct, frozen=True):
    data: bytes
    kind: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(json.dumps(value).encode(), status=status)


def sse(events: Sequence[tuple[str, Json]]) -> Reply:
    """Server-sent events, each with its name (empty: none)."""
    parts = [(f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n" for name, data in events]
    return Reply("".join(parts).encode(), "text/event-stream")


class Dialect(Protocol):
    """One API. Stateless but for the ids that it makes."""

    def is_turn(self, path: str, body: Json) -> bool:
        """A request for the model's next words, which the script answers."""

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        """The scripted answer, also one with a status that is not 200."""

    def refuse(self, path: str, body: Json) -> Reply | None:
        """The API's 400 for a conversation that it does not take, None for one that it takes."""

    def other(self, method: str, path: str, body: Json) -> Reply:
        """The answer to any other request."""

    def history(self, body: Json) -> list[Part]:
        """What the model is sent, in order, system text first."""

    def last(self, body: Json) -> str:
        """The text of the last message, results included, for `Turn.when`."""


@dataclass
class Model:
    dialect: Dialect
    turns: list[Turn] = field(default_factory=list)
    port: int = 0
    requests: list[Json] = field(default_factory=list)  # bodies of the requests that the script answered
    log: Path | None = None
    host: str = "127.0.0.1"  # where it listens
    asides: list[Json] = field(default_factory=list)  # bodies of other requests, such as for a summary

    def __post_init__(self) -> None:
        self._lock = threading.Condition()
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> Model:
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

    def __enter__(self) -> Model:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://127.0.0.1:{self.port}"

    def history(self, n: int = -1) -> list[Part]:
        """What the model was sent with request `n`."""
        return self.dialect.history(self.requests[n])

    def wait_for(self, requests: int, timeout: float = 120) -> None:
        """Until so many requests for a turn have arrived."""
        with self._lock:
            if not self._lock.wait_for(lambda: len(self.requests) >= requests, timeout):
                raise TimeoutError(f"{len(self.requests)} of {requests} requests after {timeout} s")

    def refuse(self, path: str, body: Json) -> Reply | None:
        """Return the API's 400 for a conversation that it does not take, None for one that it takes."""
        return self.dialect.refuse(path, body)

    def take(self, body: Json) -> Turn:
        """Log the request and choose its answer."""
        last = self.dialect.last(body)
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
    owner: Model

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send(Reply(b""))

    def do_GET(self) -> None:
        self._send(self.owner.dialect.other("GET", self.path.partition("?")[0], {}))

    def do_POST(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        dialect = self.owner.dialect
        if (refused := self.owner.refuse(path, body)) is not None:
            return self._send(refused)
        if not dialect.is_turn(path, body):
            self.owner.asides.append(body)
            return self._send(dialect.other("POST", self.path, body))
        turn = self.owner.take(body)
        if turn.hold is not None:
            turn.hold.wait(HELD)
        if turn.error is not None:
            reply = json_reply(turn.error, turn.status)
        else:
            reply = dialect.turn(turn, self.path, body)
        return self._send(replace(reply, headers=turn.headers))

    def _body(self) -> Json:
        if (self.headers.get("Transfer-Encoding") or "").lower() == "chunked":
            data = b""
            while (size := int(self.rfile.readline().strip() or b"0", 16)) > 0:
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(data or b"{}")
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    def _send(self, reply: Reply) -> None:
        try:
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.data)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.data)
        except OSError:
            self.close_connection = True  # the CLI was killed meanwhile: that is what the test wanted

"""Serve the unix socket that hook clients call: one connection is one hook call (hookwire). Decides nothing itself.

0600 in a 0700 folder, and the peer's uid is checked; which process it is, and below which others, is read at once for
whoever answers (callers.py). A client that does not speak the protocol gets no answer, which its agent's hook line
turns into a refusal (I5). Commands ask a live run on this machine over the same socket (`ask`): its status, a person's
decision on a call, a pause.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wal_agent import hookwire
from wal_agent.records import Host
from wal_agent.supervise.callers import Process, chain_of, peer_of

IDLE = 60.0  # seconds without a byte after which a connection is dropped
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class HookRequest:
    """One hook call, or control command. `agent`: the CLI that the caller says it belongs to. `chain`: the process that
    connected, and its ancestors below this one."""

    agent: str
    event: str
    payload: bytes
    chain: tuple[Process, ...] = ()


class HookServer:
    """Serves until `close`. `handle` returns the bytes for the client to print, or None: the connection is then closed
    without an answer. It runs in a thread per connection and may raise: then too, and `failed` is called."""

    def __init__(
        self,
        path: Path,
        run: str,
        handle: Callable[[HookRequest], bytes | None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._run = run
        self._handle = handle
        self._failed = failed
        self._path = path
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)  # before anyone can connect; a umask would be all threads'
        self._socket.listen(128)
        self._thread = threading.Thread(target=self._accept, name="hooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take no further call; the path is free again. Calls under way are the gate's affair."""
        self._closed.set()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed; or a lack of descriptors, which passes
                self._closed.wait(0.05)
                continue
            try:
                pid, uid = peer_of(connection)
                if uid != os.getuid():
                    connection.close()
                    continue
                chain = chain_of(pid, os.getpid())  # now: the caller may end at any moment
                threading.Thread(target=self._serve, args=(connection, chain), name="hook", daemon=True).start()
            except OSError:
                connection.close()
            except RuntimeError as error:  # no more threads now: this call is denied by its line, the next one may do
                connection.close()
                self._failed(error)

    def _serve(self, connection: socket.socket, chain: tuple[Process, ...]) -> None:
        with connection:
            try:
                connection.settimeout(IDLE)
                call = self._receive(connection)
                if call is None or call.hello is None or call.hello.run != self._run:
                    return
                said = self._handle(HookRequest(call.hello.agent, call.hello.event, bytes(call.payload), chain))
                if said is None:
                    return
                connection.sendall(hookwire.answer(said))
                while not call.told and (data := connection.recv(_PIECE)):
                    call.feed(data)
            except (hookwire.WireError, OSError):
                return  # the client's side fails closed; a call whose client said nothing stays open (R7: unknown)
            except Exception as error:  # noqa: BLE001 - reported; nobody else sees it in this thread
                self._failed(error)

    @staticmethod
    def _receive(connection: socket.socket) -> hookwire.Call | None:
        call = hookwire.Call()
        while not call.complete:
            data = connection.recv(_PIECE)
            if not data:
                return None
            call.feed(data)
        return call


CONTROL_PREFIX = "wal-agent."
STATUS = CONTROL_PREFIX + "status"
ACK = CONTROL_PREFIX + "ack"
PAUSE = CONTROL_PREFIX + "pause"
CONTROL_TIMEOUT = 30.0


def ask_run(owner: Host, run: str, event: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """The run's answer; None when it cannot be reached from here. The path comes from the bucket, so only a socket of
    this user's answers; the run id must fit as well."""
    try:
        return ask_socket(Path(owner.lock).with_name("hook.sock"), run, event, question)
    except ValueError:
        return None


def ask_socket(path: Path, run: str, event: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """`ask`, of the socket at `path`."""
    try:
        hello = hookwire.Hello(run, "wal-agent", event, os.getpid(), 0)
        if path.lstat().st_uid != os.getuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONTROL_TIMEOUT)
            connection.connect(str(path))
            connection.sendall(hookwire.frame(hookwire.HELLO, hookwire.encode_hello(hello)))
            connection.sendall(hookwire.frame(hookwire.DATA, json.dumps(question).encode()))
            connection.sendall(hookwire.frame(hookwire.END))
            with connection.makefile("rb") as stream:
                head = stream.read(hookwire.HEAD.size)
                if len(head) < hookwire.HEAD.size:
                    return None
                kind, size = hookwire.HEAD.unpack(head)
                if kind != hookwire.ANSWER or size > hookwire.MAX_FRAME:
                    return None
                answer = json.loads(stream.read(size))
            connection.sendall(hookwire.frame(hookwire.TOLD))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None

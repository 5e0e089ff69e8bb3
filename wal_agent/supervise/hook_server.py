"""Serve the unix socket that hook clients call.

One connection is one hook call (hook_line.Call); the server decides nothing itself. The socket is 0600 in a 0700
folder, and the peer's uid is checked. A client that does not speak the protocol gets no answer, which its agent's hook
line turns into a refusal (I5). Commands ask over the same socket (control.py).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from wal_agent.agents import hook_line
from wal_agent.supervise.ancestry import Ancestry, ancestry_of
from wal_agent.supervise.callers import peer_of

MAX_CONNECTIONS = 256  # at once; the next ones wait. Log and lease need threads and descriptors too
HELLO_SECONDS = 10.0  # in which a client says what it is; it does so at once
IDLE = 60.0  # seconds in which its request is whole, and without a byte after the answer
_PIECE = 1 << 18


class HookRequest(msgspec.Struct, frozen=True):
    """One hook call, or control command. `agent`: the CLI that the caller says it belongs to. `caller`: the process
    that connected, and its ancestors below this one."""

    agent: str
    event: str
    payload: bytes
    caller: Ancestry = Ancestry()

    @property
    def from_outside(self) -> bool:
        """Whether a process asks that this run did not start; what is not known counts as the agent's (I8)."""
        return self.caller.end == "top" or (self.caller.end == "supervisor" and not self.caller.processes)


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
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)  # before anyone can connect; a umask would be all threads'
        self._place = _place_of(path)
        self._socket.listen(128)
        self._thread = threading.Thread(target=self._accept, name="hooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_replaced(self) -> bool:
        """Whether something else stands where the socket was, and may answer the hooks. Where nothing does, they refuse
        by themselves."""
        return _place_of(self._path) not in (None, self._place)

    def close(self) -> None:
        """Take no further call; the path is free again. Calls under way are the gate's affair."""
        self._closed.set()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not self._free.acquire(timeout=0.5):
                continue
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed; or a lack of descriptors, which passes
                self._free.release()
                self._closed.wait(0.05)
                continue
            try:
                pid, uid = peer_of(connection)
                if uid != os.getuid():
                    self._drop(connection)
                    continue
                caller = ancestry_of(pid, os.getpid())  # now: the caller may end at any moment
                threading.Thread(target=self._serve, args=(connection, caller), name="hook", daemon=True).start()
            except OSError:
                self._drop(connection)
            except RuntimeError as error:  # no more threads now: this call is denied by its line, the next one may do
                self._drop(connection)
                self._failed(error)

    def _drop(self, connection: socket.socket) -> None:
        connection.close()
        self._free.release()

    def _serve(self, connection: socket.socket, caller: Ancestry) -> None:
        try:
            self._answer(connection, caller)
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket, caller: Ancestry) -> None:
        with connection:
            try:
                call = self._receive(connection)
                connection.settimeout(IDLE)
                if call is None or call.hello is None or call.hello.run != self._run:
                    return
                said = self._handle(HookRequest(call.hello.agent, call.hello.event, bytes(call.payload), caller))
                if said is None:
                    return
                connection.sendall(hook_line.answer(said))
                while not call.told and (data := connection.recv(_PIECE)):
                    call.feed(data)
            except (hook_line.WireError, OSError):
                return  # the client's side fails closed; a call whose client said nothing stays open (R7: unknown)
            except Exception as error:  # noqa: BLE001 - reported; nobody else sees it in this thread
                self._failed(error)

    @staticmethod
    def _receive(connection: socket.socket) -> hook_line.Call | None:
        call, began = hook_line.Call(), time.monotonic()
        while not call.complete:
            until = began + (HELLO_SECONDS if call.hello is None else IDLE)
            connection.settimeout(max(0.001, until - time.monotonic()))
            data = connection.recv(_PIECE)
            if not data:
                return None
            call.feed(data)
        return call


def _place_of(path: Path) -> tuple[int, int] | None:
    """What file that is; its number goes to no other one as long as a socket that was made there is open."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

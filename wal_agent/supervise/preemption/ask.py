"""One request to a metadata server: plain HTTP, no proxy, no redirect, a bounded reply."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from types import MappingProxyType

from wal_agent.supervise.preemption.data import MetadataError, Server

MAX_REPLY = 16 << 10  # bytes of a reply


@dataclass(frozen=True, slots=True)
class Reply:
    """`headers`: by names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class MetadataClient:
    """Asks `server`, one request at a time; `close` ends the one that waits, and all that follow."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._waits: HTTPConnection | None = None
        self._closed = False

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] = MappingProxyType({}), timeout: float = 2.0
    ) -> Reply:
        """`timeout`: seconds for each of: connect, and the next piece of the reply. Trouble."""
        connection = HTTPConnection(self._server.host, self._server.port, timeout=timeout)
        try:
            with self._lock:
                if self._closed:
                    raise MetadataError("closed")
                self._waits = connection
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(MAX_REPLY + 1)
            if len(body) > MAX_REPLY:
                raise MetadataError(f"its reply has more than {MAX_REPLY} bytes")
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, body)
        except (OSError, HTTPException, ValueError) as error:
            raise MetadataError(str(error) or type(error).__name__) from error
        finally:
            with self._lock:
                self._waits = None
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._waits is not None and self._waits.sock is not None:
                with suppress(OSError):
                    self._waits.sock.shutdown(socket.SHUT_RDWR)

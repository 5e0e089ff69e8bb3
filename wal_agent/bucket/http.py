"""Bound how long a reply of a store may take. A socket's timeout bounds the wait for each byte, so that a reply which
comes byte by byte, through a proxy that is half dead, would hold its caller for hours: the log's writer too, long after
the store is well again.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

GRACE = 20.0  # seconds that a reply may take from its first byte on, whatever its size; and
SLOWEST = 16 << 10  # bytes, for each of which it may take a second more


def proxy_of(url: str) -> str:
    """Host and port of the proxy that the environment sets for a URL (HTTPS_PROXY, NO_PROXY ...); "" for none."""
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname or urllib.request.proxy_bypass_environment(parts.hostname):  # type: ignore[attr-defined]
        return ""
    found = urllib.request.getproxies_environment()
    named = found.get(parts.scheme) or found.get("all", "")
    return named.rpartition("@")[2].rpartition("://")[2].rstrip("/")


class PacedReply(http.client.HTTPResponse):
    """A reply that ends with TimeoutError, in its head or body, when it is slower than that."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Paced(sock.makefile("rb", buffering=0)))


class _Paced(io.RawIOBase):
    def __init__(self, inner: io.RawIOBase) -> None:
        self._inner = inner
        self._until: float | None = None

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._inner.fileno()

    def readinto(self, buffer: Any) -> int | None:
        if self._until is not None and time.monotonic() > self._until:
            raise TimeoutError("the reply comes too slowly")
        size = self._inner.readinto(buffer)
        self._until = (self._until or time.monotonic() + GRACE) + (size or 0) / SLOWEST
        return int(size) if size is not None else None

    def close(self) -> None:
        self._inner.close()
        super().close()


def paced_pools(pools: Mapping[str, type]) -> dict[str, type]:
    """urllib3's classes of connection pools, by scheme, with connections whose replies are paced."""
    return {scheme: _paced_pool(pool) for scheme, pool in pools.items()}


def _paced_pool(pool: Any) -> type:
    connection = type("PacedConnection", (pool.ConnectionCls,), {"response_class": PacedReply})
    return type("PacedPool", (pool,), {"ConnectionCls": connection})

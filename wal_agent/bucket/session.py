"""Sessions of `requests` for stores, and what their errors say: connections are kept, nothing is retried or redirected,
no reply may come too slowly."""

from __future__ import annotations

import base64
import binascii
import re
import socket
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.poolmanager import pool_classes_by_scheme

from wal_agent.bucket.base import CONNECT_TIMEOUT, CONNECTIONS, READ_TIMEOUT, too_large_error
from wal_agent.bucket.http import paced_pools, proxy_of
from wal_agent.text import quote

SLOWEST = 256 << 10  # bytes a second; a line slower than this is as good as none
# urllib3's own object, before what went wrong
_POOL = re.compile(r"^<?[\w.]*(?:Pool|Connection)\(host='([^']+)', port=(\d+)\)(?: at 0x[0-9a-f]+>)?: ")


class _KeptAlive(HTTPAdapter):
    """Keeps connections, and finds out when one has died without a word (behind a NAT an idle one is just forgotten),
    or brings next to nothing."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        probe = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        if hasattr(socket, "TCP_KEEPIDLE"):
            probe += [(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)]
        options = [*HTTPConnection.default_socket_options, *probe]
        super().init_poolmanager(*args, socket_options=options, **kwargs)
        self.poolmanager.pool_classes_by_scheme = paced_pools(pool_classes_by_scheme)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = paced_pools(pool_classes_by_scheme)
        return manager


def for_store(session: requests.Session) -> None:
    """Set it up for a store: connections are kept, and a redirect is an error."""
    session.max_redirects = 0
    for scheme in ("https://", "http://"):
        session.mount(scheme, _KeptAlive(pool_connections=2, pool_maxsize=CONNECTIONS, max_retries=0))


def put_timeouts(size: int) -> tuple[float, float]:
    """Of a put of so many bytes. The first of the two bounds the sending as a whole, so large data need more."""
    slack = size / SLOWEST
    return CONNECT_TIMEOUT + slack, READ_TIMEOUT + slack


def read_body(reply: requests.Response, what: str, most: int) -> bytes:
    """All of a reply that is streamed, as it was sent; Damaged when that is more than `most` bytes."""
    if int(reply.headers.get("Content-Length", 0)) > most:
        raise too_large_error(what, most)
    data = bytearray()
    for chunk in reply.raw.stream(1 << 20, decode_content=False):
        data += chunk
        if len(data) > most:
            raise too_large_error(what, most)
    return bytes(data)


def is_digest(text: str, digest: bytes) -> bool:
    """Whether a header's base64 says this digest."""
    try:
        return base64.b64decode(text, validate=True) == digest
    except binascii.Error:
        return False


def unreached(error: BaseException, store: str, fallback: str) -> str:
    """A sentence for a request that got no reply. `fallback`: a URL of the store, for its proxy, where the error names
    no request."""
    asked = getattr(error, "request", None)
    url = str(getattr(asked, "url", "") or fallback)
    by = f" by the HTTP proxy {quote(proxy)}" if (proxy := proxy_of(url)) else ""
    return f"{store} could not be reached{by} ({quote(bottom(error))})."


def bottom(error: BaseException) -> str:
    """What went wrong at the bottom; the layers above wrap it in what only their authors understand, and in URLs."""
    inner = (*error.args, getattr(error, "reason", None))
    below = next((one for one in inner if isinstance(one, BaseException)), None)
    if below is not None:
        return bottom(below)
    # Of urllib3's some begin with the connection; the second of google-auth's is the whole reply of the login server.
    words = [] if isinstance(error, OSError) or len(error.args) < 2 else [w for w in error.args if isinstance(w, str)]
    text = words[0] if words else str(error)
    return _POOL.sub(r"\1:\2: ", text) or type(error).__name__

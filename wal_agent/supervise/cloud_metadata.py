"""Ask the metadata servers of Google Compute Engine and Amazon EC2 for preemption notices: plain HTTP, no proxy, no
redirect, a bounded reply.

`Gcp`: `instance/preempted`, which a request can wait on (30 s of notice for a spot machine). Source:
cloud.google.com/compute/docs/instances/create-use-spot and .../metadata/querying-metadata (wait_for_change, last_etag,
timeout_sec, Metadata-Flavor).

`Aws`: `spot/instance-action` by IMDSv2 (two minutes of notice) and the recommendation to rebalance before it. Source:
docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, rebalance-recommendations and
instancedata-data-retrieval (tokens; they are good for six hours at most).
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from types import MappingProxyType
from typing import Any

from wal_agent.clock import Clock
from wal_agent.supervise.preemption import MetadataError, Notice, Server

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
        """`timeout`: seconds for each of: connect, and the next piece of the reply. MetadataError."""
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


GCP_PATH = "/computeMetadata/v1/instance/preempted"
FLAVOR = {"Metadata-Flavor": "Google"}
GCP_NOTICE = 30.0  # seconds that a spot machine has from its notice on
GCP_WAIT = 60  # seconds that one request waits for a change
SLACK = 10.0  # seconds by which its reply may come late


class Gcp:
    period = 1.0  # the waiting is done there; this is for a server that does not wait

    def __init__(self, server: Server) -> None:
        self._asker = MetadataClient(server)
        self._etag = ""

    def poll(self) -> Notice | None:
        """The first look asks how it stands, each later one waits until that is another."""
        wait = f"?wait_for_change=true&timeout_sec={GCP_WAIT}&last_etag={self._etag}" if self._etag else ""
        reply = self._asker.ask("GET", GCP_PATH + wait, FLAVOR, timeout=GCP_WAIT + SLACK if wait else SLACK)
        if reply.status != 200 or reply.headers.get("metadata-flavor") != "Google":
            raise MetadataError(f"it answers {reply.status}, not as Google's metadata server does")
        etag = reply.headers.get("etag", "")
        self._etag = etag if etag.isascii() and etag.isalnum() and len(etag) <= 64 else "0"
        return Notice("gcp", GCP_NOTICE, drain=True) if reply.body.strip().upper() == b"TRUE" else None

    def close(self) -> None:
        self._asker.close()


TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
AWS_NOTICE = 120.0  # seconds from a notice on
TOKEN_TTL = 21600  # seconds
_MOST_TOKEN = 1024


class Aws:
    period = 5.0  # as AWS recommends

    def __init__(self, server: Server, clock: Clock) -> None:
        self._asker = MetadataClient(server)
        self._clock = clock
        self._token = ""
        self._until = 0.0  # boot time
        self._told = False  # of the recommendation

    def poll(self) -> Notice | None:
        action = self._get(ACTION)
        if action.status == 200:
            return Notice("aws", self._left(action), drain=True)
        if not self._told and self._get(REBALANCE).status == 200:
            self._told = True
            return Notice("aws-rebalance", 0.0, drain=False)
        return None

    def close(self) -> None:
        self._asker.close()

    def _get(self, path: str) -> Reply:
        """200 or 404."""
        if not self._token or self._clock.boot() >= self._until:
            self._renew()
        reply = self._asker.ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if reply.status == 401:
            self._token = ""
        if reply.status not in (200, 404):
            raise MetadataError(f"it answers {reply.status}")
        return reply

    def _renew(self) -> None:
        reply = self._asker.ask("PUT", TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL)})
        token = reply.body.decode("ascii", "replace").strip()
        if reply.status != 200 or not token or len(token) > _MOST_TOKEN or not token.isprintable():
            raise MetadataError(f"it gives no token ({reply.status})")
        self._token, self._until = token, self._clock.boot() + TOKEN_TTL / 2

    def _left(self, reply: Reply) -> float:
        """By the server's own clock where it tells one. A time that cannot be read is a notice all the same."""
        try:
            said: Any = json.loads(reply.body)
            at = _stamp(lambda: datetime.fromisoformat(said["time"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return AWS_NOTICE
        date = reply.headers.get("date", "")
        now = _stamp(lambda: parsedate_to_datetime(date)) if date else None
        if at is None:
            return AWS_NOTICE
        return max(0.0, min(AWS_NOTICE, at - (self._clock.now() if now is None else now)))


def _stamp(read: Callable[[], datetime]) -> float | None:
    """Seconds since 1970; None for what is no time."""
    try:
        found = read()
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None

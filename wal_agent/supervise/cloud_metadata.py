"""Amazon EC2, by IMDSv2: `spot/instance-action` (two minutes of notice) and the recommendation to rebalance before it.

Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, rebalance-recommendations
and instancedata-data-retrieval (tokens; they are good for six hours at most).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from wal_agent.clock import Clock
from wal_agent.supervise.preemption.ask import MetadataClient, Reply
from wal_agent.supervise.preemption.data import MetadataError, Notice, Server

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

    def look(self) -> Notice | None:
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

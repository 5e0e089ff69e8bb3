"""Carry the messages of a job by its bucket and by a server: a sender needs to know only one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from wal_agent.errors import Denied, Unavailable, WalAgentError
from wal_agent.inbox import MAX_AT_ONCE, Driver, Message


class Both:
    """Either may be away."""

    def __init__(
        self,
        bucket: Driver,
        server: Driver,
        every: float = 0.0,
        secret: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`every`: seconds between two looks into the bucket, whose listings cost money. `secret`: the job is
        encrypted, so nothing is written to the server."""
        self._bucket, self._server, self._every, self._now = bucket, server, every, now
        self._secret, self.name = secret, f"{bucket.name}+{server.name}"
        self._due = -float("inf")

    def fetch(self, known: Callable[[str], bool]) -> Sequence[Message]:
        """Look into the bucket when a look is due, and before anything new from the server is given: a sender that
        could not reach the server has put its earlier message there. What has no possible name is passed over: the log
        would not know it again."""
        errors: list[WalAgentError] = []

        def look(driver: Driver) -> Sequence[Message]:
            try:
                return [message for message in driver.fetch(known) if message.is_named]
            except WalAgentError as error:
                errors.append(error)
                return ()

        served = look(self._server)
        put: Sequence[Message] = ()
        if served or self._now() >= self._due:
            self._due = self._now() + self._every
            put = look(self._bucket)
        found = {message.identity: message for message in (*put, *served)}
        if errors and not found:
            raise errors[0]
        waiting = sorted(found.values(), key=lambda m: m.sent) if put and served else list(found.values())
        return waiting[:MAX_AT_ONCE]

    def ack(self, identities: Collection[str]) -> None:
        try:
            self._bucket.ack(identities)
        finally:
            self._server.ack(identities)

    def send(self, message: Message) -> bool:
        """By the server; by the bucket where that cannot be reached: a message that came both ways is one."""
        if self._secret:
            return self._bucket.send(message)
        try:
            return self._server.send(message)
        except (Unavailable, Denied):
            return self._bucket.send(message)

    def publish(self, subject: str, message: Message) -> bool:
        """On both. Unavailable: one of them is away; the same message again completes it."""
        new = self._bucket.publish(subject, message)
        return new if self._secret else self._server.publish(subject, message) or new

    def notify(self, wake: Callable[[], None]) -> None:
        self._bucket.notify(wake)
        self._server.notify(wake)

    def close(self) -> None:
        self._bucket.close()
        self._server.close()

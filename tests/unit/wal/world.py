"""What the tests of the log share: a clock that they own, a bucket that loses replies, short ways to make things."""

from __future__ import annotations

import random
from collections.abc import Callable

from wal_agent.bucket.base import BucketDecorator, MemoryBucket, Version
from wal_agent.errors import Denied, Unavailable, WalAgentError
from wal_agent.records import End, Host, Intent, Payload
from wal_agent.recovery.lease_policy import Acquire, Local, admit
from wal_agent.wal import lease
from wal_agent.wal.job import OpenedJob, OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore
from wal_agent.wal.writer import WriterListener

KEYS = Keys("shop")
TTL = 30.0
FIELDS = OpeningFields(agent_version="0.61.0", version="0")


class FakeClock:
    """Moves only when told, or slept on. `ahead`: of the wall clock, which somebody may set."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at
        self.ahead = 0.0

    def now(self) -> float:
        return self.at + self.ahead

    def boot(self) -> float:
        return self.at

    def awake(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class Flaky(BucketDecorator):
    """A bucket whose next put is handled by `fate`, once: "lost" (landed, no reply), "dropped" (never lands), or
    "denied"."""

    def __init__(self, inner: MemoryBucket) -> None:
        super().__init__(inner)
        self.url, self.inner = "flaky://", inner
        self.fates: list[str] = []
        self.before_put: Callable[[str], None] | None = None
        self.puts: list[tuple[str, bytes]] = []
        self.dropped = ""  # a prefix below which no put lands

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        self.puts.append((key, data))
        if self.before_put is not None:
            hook, self.before_put = self.before_put, None
            hook(key)
        fate = self.fates.pop(0) if self.fates else ""
        if fate == "denied":
            raise Denied("denied")
        if fate == "dropped" or (self.dropped and key.startswith(self.dropped)):
            raise Unavailable("dropped")
        version = self.inner.put(key, data, if_version=if_version)
        if fate == "lost":
            raise Unavailable("lost")
        return version


class World:
    """A clock, a bucket on that clock, and hosts that open the job in it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rng = random.Random(7)
        self.inner = MemoryBucket(clock=self.clock.now)
        self.bucket = Flaky(self.inner)

    @property
    def store(self) -> JobStore:
        return JobStore(self.bucket, KEYS, self.clock, self.rng, parallel=1)

    def seen(self) -> lease.StoredLease | None:
        return lease.read_lease(self.bucket, KEYS)

    def open(self, run: str) -> OpenedJob:
        seen = self.seen()
        decision = admit(seen, Local(boot="", pidns=""))
        assert isinstance(decision, Acquire), decision
        return open_job(
            self.store,
            claim=claim(run),
            fields=FIELDS,
            seen=seen,
            cause=decision.cause,
        )

    def take_over(self, run: str) -> OpenedJob:
        """Open after the owner's ttl has passed."""
        self.clock.at += TTL + 1
        return self.open(run)


def host(run: str) -> Host:
    return Host(name=f"host-{run}", boot=f"boot-{run}", pidns="1", pid=7, lock="/x")


def claim(run: str) -> LeaseRequest:
    return LeaseRequest(run=run, host=host(run), agent="gemini", workspace="/w", ttl=TTL)


def intent(call: int, uid: str = "", time: float = 1.0) -> Intent:
    return Intent(
        time=time,
        call=call,
        tool="run_shell_command",
        input=Payload(size=2, data=b"{}"),
        cls="unknown",
        rule="default",
        session="s",
        agent_call=uid,
    )


def end(call: int, time: float = 2.0) -> End:
    return End(time=time, call=call, how="done", by="hook")


class Ended(WriterListener):
    """What ended a writer."""

    def __init__(self) -> None:
        self.errors: list[WalAgentError] = []

    def on_ended(self, error: WalAgentError) -> None:
        self.errors.append(error)


def drain(job: OpenedJob) -> None:
    while job.writer.commit_once() == "acked":
        pass

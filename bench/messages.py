"""How soon has the agent a message, and what does an idle inbox cost? `python -m bench messages`.

Send to given: from the sender's command to the words that a hook can give, whose record is in the log (in memory here).
The agent is at a boundary all the time, so that only carrier and inbox count. An idle hour is not waited for: its looks
are made one after the other on a clock that jumps, and the requests are counted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from nats.aio.client import Client

from bench.measure import scaled
from tests.servers.nats import NatsServer
from tests.unit.supervise.crew import Post
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Entry, MemoryBucket
from wal_agent.inbox import BucketDriver, Driver, make_message
from wal_agent.messages.both import Both
from wal_agent.messages.connection import Connection
from wal_agent.messages.nats_driver import NatsDriver
from wal_agent.supervise.inbox import NEAR, Inbox

T = TypeVar("T")
MESSAGES = scaled(60, 2)
HOUR = scaled(3600.0, 120.0)  # simulated seconds
EVERY = 30.0  # of --inbox, seconds


class CountingBucket(MemoryBucket):
    """Counts its requests."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self.counts["listings"] += 1
        return super().list(prefix, start_after)


class CountingConnection(Connection):
    """Counts what is asked of the server."""

    counts: Counter[str]

    def call(self, act: Callable[[Client], Awaitable[T]], within: float) -> T:
        self.counts["looks at the server"] += 1
        return super().call(act, within)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wal-agent-bench-") as folder:
        server = NatsServer(Path(folder) / "nats").start()
        try:
            measure(Path(folder), server)
            count(Path(folder), server)
        finally:
            server.kill()


def measure(folder: Path, server: NatsServer) -> None:
    bucket = open_bucket((folder / "bucket").as_uri())

    def connect() -> NatsDriver:
        return NatsDriver(Connection(server.url, {}, print, "bench", NatsDriver.STREAMS), "web")

    ways: dict[str, Callable[[], Driver]] = {
        "bucket, a local folder": lambda: BucketDriver(bucket, "web"),
        "NATS": connect,
    }
    for name, opened in ways.items():
        with closing(opened()) as sender, closing(opened()) as reader:
            print(line(name, latencies(folder, sender, reader)), flush=True)
    print(f"  {'bucket, gs:// or s3://':<24} 0 to {EVERY:.0f} s by design: it is listed so often (--inbox)")


def latencies(folder: Path, sender: Driver, reader: Driver) -> list[float]:
    post = Post(folder)
    inbox = Inbox(post.context, reader, NEAR)
    inbox.start()
    found: list[float] = []
    with post.committing():
        for n in range(MESSAGES):
            time.sleep(n * 0.618 % 1.0 * 0.5)  # spread over the time between two looks
            began = time.monotonic()
            sender.send(make_message(f"note {n}", "bench"))
            while not inbox.take():
                time.sleep(0.001)
            found.append(time.monotonic() - began)
    inbox.stop()
    return found


def line(name: str, times: Sequence[float]) -> str:
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    p50, most = statistics.median(ordered), ordered[-1]
    return f"  {name:<24} send to given p50 {p50:6.3f} s  p95 {p95:6.3f} s  most {most:6.3f} s"


def count(folder: Path, server: NatsServer) -> None:
    for carrier in ("bucket", "NATS"):
        for resting in (False, True):
            counts = count_idle(folder, server if carrier == "NATS" else None, resting)
            what = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
            print(
                f"  idle for {HOUR:.0f} s, {carrier}, {'a person is awaited' if resting else 'the agent works'}: {what}"
            )


def count_idle(folder: Path, server: NatsServer | None, resting: bool) -> Counter[str]:
    """Count the requests of an inbox's idle hour, in simulated time. `server`: None for the bucket alone; `resting`: a
    person is awaited."""
    counts = Counter[str]()
    clock = [0.0]
    driver: Driver = BucketDriver(CountingBucket(counts), "idle")
    if server is not None:
        link = CountingConnection(server.url, {}, print, "bench", NatsDriver.STREAMS)
        link.counts = counts
        driver = Both(driver, NatsDriver(link, "idle"), EVERY, now=lambda: clock[0])
    inbox = Inbox(Post(folder).context, driver, NEAR if server is not None else EVERY)
    inbox.resting = lambda: resting
    while clock[0] < HOUR:
        inbox.look()
        clock[0] += inbox._pause()
    driver.close()
    return counts


if __name__ == "__main__":
    main()

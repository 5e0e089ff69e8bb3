"""What do agents of a bucket feel as they reach its limits? `python -m bench load` (a minute; docs/SCALE.md).

Each agent is a job with the real writer and the real lease: its log, its group commit, its heartbeats, its backoff. The
bucket is in memory, 30 ms away, and has the limits that S3 and GCS name: so many writes a second, and for GCS one a
second for each object; a write beyond them is refused, as 503 and 429 are. Time is simulated: one event is one step of
one agent. All is scaled by SCALE, agents and writes a second alike. That is harder than the real size: fewer agents
come in bigger waves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import msgspec

from bench.measure import scaled
from bench.store import ROUND_TRIP
from tests.longlog import HOST
from wal_agent.bucket.base import MemoryBucket, Version
from wal_agent.bucket.decorators import backoff
from wal_agent.clock import SystemClock
from wal_agent.errors import BucketError, Unavailable
from wal_agent.records import End, Intent, Payload, Turn
from wal_agent.supervise.lease_keeper import LeaseTiming
from wal_agent.wal.job import OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore
from wal_agent.wal.writer import CALL, LATER, SOON, Ticket, Wait, next_due

SCALE = 50
CALLS = 300  # changing calls of an agent in an hour
TOOL = 2.0  # seconds that a call takes
TTL = 30.0
DENIED = 20.0  # seconds after which a call is denied
SECONDS = scaled(120.0, 20.0)
WARMUP = scaled(20.0, 2.0)
LOADS = scaled((0.5, 0.9, 1.0, 1.1, 1.5), (0.5, 1.5))  # what the agents ask for, of what the bucket bears
ALONE = scaled(40, 4)  # agents by which the requests of one are measured


class Limits(msgspec.Struct, frozen=True):
    """What a store names, in writes a second. `each`: for one object; 0: no limit."""

    name: str
    writes: float
    each: float = 0.0


STORES = (Limits("S3, one prefix", 3_500), Limits("GCS, a new bucket", 1_000, 1))


class Clock(SystemClock):
    """The agent's whose event it is."""

    at = 1_000_000.0

    def now(self) -> float:
        return self.at

    boot = now

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class LimitedBucket(MemoryBucket):
    """A store with limits, a round trip away; what one second leaves unused is there in the next, once."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        super().__init__(clock=clock.now, url="s3://limited")
        self._time, self._limits = clock, limits
        self._left, self._filled = limits.writes / SCALE, clock.at
        self._written: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.limited = False

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        arrived = self._time.at + ROUND_TRIP / 2000
        self._time.at += ROUND_TRIP / 1000
        self.counts["puts"] += 1
        if self.limited and not self._admitted(key, arrived):
            self.counts["refused"] += 1
            raise Unavailable("the store asks to slow down")
        self._written[key] = arrived
        return super().put(key, data, if_version=if_version)

    def _admitted(self, key: str, now: float) -> bool:
        rate, each = self._limits.writes / SCALE, self._limits.each
        if each and now - self._written.get(key, 0.0) < 1 / each:
            return False
        self._left = min(rate, self._left + max(0.0, now - self._filled) * rate)
        self._filled = max(now, self._filled)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Events:
    """What happens next, and to whom."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._heap, self._count = clock, list[tuple[float, int, Callable[[], None]]](), count()

    def at(self, time: float, act: Callable[[], None]) -> None:
        heappush(self._heap, (time, next(self._count), act))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] < until:
            time, _, act = heappop(self._heap)
            self._clock.at = time
            act()
        self._clock.at = until


class Found(msgspec.Struct):
    """What agents felt: seconds that calls were blocked, and how often a lease was too old to allow anything."""

    blocked: list[float] = msgspec.field(default_factory=list)
    denied: int = 0
    looks: int = 0
    late: int = 0


class SimulatedAgent:
    """Calls that follow each other, and heartbeats, over the real log and lease."""

    def __init__(self, n: int, bucket: LimitedBucket, clock: Clock, events: Events, found: Found) -> None:
        self._rng, self._clock, self._events, self._found = random.Random(n), clock, events, found
        claim = LeaseRequest(run=f"run-{n}", host=HOST, agent="gemini", workspace="/w", ttl=TTL)
        fields = OpeningFields(agent_version="1", version="1")
        keys = Keys(f"job-{n}")
        self._job = open_job(
            JobStore(bucket, keys, clock, self._rng, parallel=1), claim=claim, fields=fields, seen=None, cause="first"
        )
        self._call, self._attempt = 0, 0
        self._due = float("inf")  # of the one step of the writer that is planned
        self._began = 0.0
        self._ticket: Ticket | None = None  # of its call, once one began
        events.at(clock.at + self._rng.uniform(0, TTL / 3), self._beat)
        events.at(clock.at + self._rng.expovariate(CALLS / 3600), self._begin)

    def overdue(self) -> bool:
        """Whether its call still waits, longer than it may."""
        waits = self._ticket is not None and self._ticket.status == "undecided"
        return waits and self._clock.at - self._began > DENIED

    def _append(self, record: Intent | End | Turn, wait: Wait) -> Ticket:
        ticket = self._job.writer.append(record, wait=wait)
        self._plan()
        return ticket

    def _plan(self) -> None:
        """The writer's thread: one step when it is due."""
        if self._attempt:
            return  # a put is sent again when its backoff is over
        writer = self._job.writer
        due = max(self._clock.at, next_due(writer._queue, writer._put_time))
        if due < self._due:
            self._due = due
            self._events.at(due, self._commit)

    def _commit(self) -> None:
        if self._clock.at < self._due:
            return  # it was planned anew
        self._due = float("inf")
        step = self._job.writer.commit_once()
        self._attempt = self._attempt + 1 if step == "undecided" else 0
        if step == "ended":
            raise RuntimeError("a writer ended")
        if self._attempt:
            self._due = self._clock.at + backoff(self._attempt, self._rng)
            self._events.at(self._due, self._commit)
        else:
            self._plan()

    def _begin(self) -> None:
        self._call, self._began = self._call + 1, self._clock.at
        if not self._job.lease.may_allow(LeaseTiming(TTL).margin):
            self._found.late += 1
        self._found.looks += 1
        command = Payload(size=24, data=b'{"command":"make target"}')
        record = Intent(
            time=self._began, call=self._call, tool="sh", input=command, cls="unknown", rule="", session="s"
        )
        self._ticket = self._append(record, CALL)
        self._ticket.when_acked(self._allowed)

    def _allowed(self) -> None:
        waited = self._clock.at - self._began
        self._found.blocked.append(waited)
        self._found.denied += waited > DENIED
        self._events.at(self._clock.at + TOOL, self._end)

    def _end(self) -> None:
        now = self._clock.at
        result = Payload(size=4, data=b'"ok"')
        self._append(End(time=now, call=self._call, how="done", by="hook", result=result), SOON)
        self._append(Turn(time=now, state="started", session="s"), LATER)  # stands for a capture
        pause = max(0.0, 3600 / CALLS - TOOL)
        self._events.at(now + self._rng.expovariate(1 / pause), self._begin)

    def _beat(self) -> None:
        period = LeaseTiming(TTL).period
        try:
            self._job.lease.renew(phase="executing_tools", seq=self._job.writer.acked.seq)
        except BucketError:
            period /= 4
        self._events.at(self._clock.at + period, self._beat)


def simulate(limits: Limits, agents: int, limited: bool) -> tuple[Found, Counter[str]]:
    clock, found = Clock(), Found()
    bucket, events = LimitedBucket(clock, limits), Events(clock)
    those = [SimulatedAgent(n, bucket, clock, events, found) for n in range(agents)]
    bucket.limited = limited
    start = clock.at
    events.run(start + WARMUP)
    bucket.counts.clear()
    found.blocked.clear()
    found.denied = found.looks = found.late = 0
    events.run(start + WARMUP + SECONDS)
    found.denied += sum(agent.overdue() for agent in those)
    return found, bucket.counts


def main() -> None:
    _, counts = simulate(STORES[0], ALONE, limited=False)
    rate = counts["puts"] / ALONE / SECONDS
    print(f"  one agent: {rate * 3600:.0f} writes an hour with {CALLS} changing calls, {rate:.3f} a second", flush=True)
    for store in STORES:
        for load in LOADS:
            agents = round(load * store.writes / SCALE / rate)
            found, counts = simulate(store, agents, limited=True)
            times = sorted(found.blocked) or [0.0]
            median, worst = times[len(times) // 2], times[int(len(times) * 0.99)]
            refused, old = counts["refused"] / counts["puts"], found.late / max(1, found.looks)
            print(
                f"  {store.name}: {agents * SCALE:6,} agents, {load:.1f} x its limit: a call waits "
                f"{median * 1000:.0f} ms, p99 {worst:.2f} s; {refused:.1%} of writes refused, "
                f"{found.denied / len(times):.1%} of calls denied, {old:.1%} begun under a lease too old to allow them",
                flush=True,
            )


if __name__ == "__main__":
    main()

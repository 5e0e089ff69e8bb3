"""One seed: a world is rolled from it, lived through, and at its end a fresh run has to find a sound job (LIVE)."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

from tests.faults.model.baton import Actor
from tests.faults.model.ghost import Violation
from tests.faults.model.owner import Owner, weak
from tests.faults.model.world import KEYS, TTL, Clock, HostBucket, HostClock, Shape, World
from wal_agent.bucket.base import Bucket, MemoryBucket
from wal_agent.errors import Fenced, LeaseHeld, NotFound, Unavailable, WalAgentError
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import write_file
from wal_agent.wal.lease import may_allow
from wal_agent.wal.retention import Retention
from wal_agent.wal.store import JobStore

TIMED = Shape(unlock=0.003, gc=0.002)
FREE = Shape(timed=False, lifecycle=0.001, unlock=0.001, gc=0.004)
"""Clock-free: any owner may be held for dead at any moment and R7 is off, so only the log protects."""
BLOBS = replace(
    FREE,
    lifecycle=0.0,
    unlock=0.0,
    lost=0.05,
    late=0.1,
    naps=0.05,
    sleeps=(25.0, 50.0),
    steps=600,
    age=0.0,
    beat=1.0,
    gc=0.02,
    append=2,
    commit=8,
    renew=0,
    snapshot=4,
    retain=4,
    idle=0,
    file=6,
)
"""Clock-free, and full of files: owners, fenced ones and strangers delete blobs at once, and some deletes come late."""


class Failure(AssertionError):
    """A violation with its history."""


def shape_of(seed: int) -> Shape:
    """Half of the seeds have clocks; each has its own weather."""
    rng = random.Random(f"shape {seed}")
    base = TIMED if seed % 2 else FREE
    return replace(
        base,
        hosts=rng.choice([2, 2, 3, 4]),
        lost=rng.choice([0.0, 0.03, 0.1]),
        late=rng.choice([0.0, 0.05, 0.15]),
        crash=rng.choice([0.0, 0.004, 0.01]),
        naps=rng.choice([0.0, 0.0, 0.1]),
        age=rng.choice([0.0, 20.0]),
        beat=rng.choice([2.0, 10.0]),
        snapshot=rng.choice([1, 3, 5]),
        retain=rng.choice([0, 3, 5]),
        close=rng.choice([0, 1, 2]),
        sleepy=rng.choice([0.0, 0.01, 0.04]),
    )


def simulate(seed: int, shape: Shape | None = None, make_store: Callable[[Clock], Bucket] = MemoryBucket) -> World:
    """Live through the seed; the world at its end. Failure: an invariant does not hold."""
    world = World(random.Random(f"world {seed}"), shape or shape_of(seed), make_store=make_store)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(leases, "may_allow", rule_seven(world.shape)):
        try:
            Life(world, Path(folder)).run()
        except Violation as found:
            text = "\n".join(world.trace[-120:])
            raise Failure(f"seed {seed}, {world.shape}\n{text}\n{found}") from found
        finally:
            world.end()
    return world


def rule_seven(shape: Shape) -> Callable[..., bool]:
    """R7 as it is; in a clock-free world an allow has no date."""
    return may_allow if shape.timed else lambda *_: True


class Life:
    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.rng, self.shape = world, world.rng, world.shape
        self.folder = folder
        self.steps = 0
        self.numbers = itertools.count(1)

    def run(self) -> None:
        for host in range(self.shape.hosts):
            self.boot(host)
        self.world.burst = self.burst
        while self.steps < self.shape.steps:
            self.weather()
            ready = self.world.ready()
            if ready:
                self.world.step(self.rng.choice(ready))
            else:
                self.wait()
        self.finale()

    def burst(self, actor: Actor) -> bool:
        """Bursts of one actor get further than fair turns (and cost no switch of threads)."""
        if self.steps >= self.shape.steps or self.world.quiet:
            return False
        self.weather()
        return self.world.can_run(actor) and self.rng.random() < 0.75

    def boot(self, host: int) -> None:
        life = next(self.numbers)
        self.world.spawn(f"h{host}", lambda actor: Owner(self.world, host, life, self.private, actor).live())

    def private(self) -> Path:
        path = self.folder / str(next(self.numbers))
        path.mkdir()
        return path

    def weather(self) -> None:
        """What happens by itself at each step."""
        self.steps += 1
        self.world.time += self.rng.choice([0, 0, 0.1, 1.0])
        world, rng, shape = self.world, self.rng, self.shape
        if world.net and rng.random() < 0.08:
            world.land(rng.randrange(len(world.net)))
        alive = {a.name for a in world.actors}
        for host in range(shape.hosts):
            if f"h{host}" not in alive and rng.random() < 0.05:
                self.boot(host)
        if rng.random() < shape.sleepy:
            name = f"h{rng.randrange(shape.hosts)}"
            world.asleep[name] = world.time + rng.choice(shape.sleeps)
            world.note(name, f"sleeps until {world.asleep[name] - 1_000_000:.0f}")
        if rng.random() < shape.unlock:
            world.spawn("person", self.unlock)
        if rng.random() < shape.gc:
            world.spawn("gc", self.collect)
        if rng.random() < shape.lifecycle:
            world.store.delete(KEYS.lease)
            world.counts["lease deleted"] += 1
            world.note("rule", "a lifecycle rule DELETES the lease")

    def wait(self) -> None:
        """Nobody can run: time goes on to when somebody can."""
        world = self.world
        wakes = [max(a.wake, world.asleep.get(a.name.partition(".")[0], 0)) for a in world.actors]
        world.time = max(world.time, min(wakes, default=world.time + 1))

    def unlock(self, actor: Actor) -> None:
        world = self.world
        bucket, clock = HostBucket(world, actor, lambda op, key: ""), HostClock(world, actor, 9)
        try:
            seen = leases.read_lease(bucket, KEYS)
            if seen is None or seen.doc.state != "held":
                return
            world.note("person", f"unlocks epoch {seen.doc.epoch}")
            leases.unlock(JobStore(bucket, KEYS, clock, self.rng), seen=seen, reason="test")
            world.counts["unlocked"] += 1
        except (LeaseHeld, Fenced, Unavailable, NotFound) as error:
            world.note("person", f"unlock: {error}")

    def collect(self, actor: Actor) -> None:
        """`wal-agent gc`, by somebody who holds nothing."""
        bucket = HostBucket(self.world, actor, lambda op, key: weak(self.world, op))
        with suppress(Unavailable):
            done = Retention(bucket, KEYS, age=self.shape.age, parallel=1).run()
            self.world.counts["blobs collected"] += done.blobs.count

    def finale(self) -> None:
        """Everyone is gone, the network is empty, the weather is fine: a fresh run must be able to go on."""
        world = self.world
        world.end()
        world.quiet = True
        while world.net and self.rng.random() < 0.8:
            world.land(self.rng.randrange(len(world.net)))
        world.ghost.check()
        world.time += 10 * TTL
        for _ in range(2):
            self.fresh()
            while world.net and self.rng.random() < 0.8:
                world.land(self.rng.randrange(len(world.net)))
            world.ghost.check()

    def fresh(self) -> None:
        world = self.world
        actor = Actor("fresh", lambda: None)
        owner = Owner(world, 7, next(self.numbers), self.private, actor)
        try:
            opened = owner.open()
            if opened is None:
                raise Violation("LIVE: a fresh run is refused for ever")
            owner.append(opened)
            while opened.writer.commit_once() == "acked":
                world.ghost.was_acked(opened.writer.acked.hash)
            for name, file in opened.replay.state.files.items():
                write_file(opened.blobs, file, self.private() / "file")
                world.counts["files restored"] += 1
                assert name
            owner.close(opened)
        except WalAgentError as error:
            raise Violation(f"LIVE: a fresh run ends with: {error}") from error

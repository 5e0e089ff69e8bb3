"""The world of a simulation: a bucket behind a network that loses and delays; hosts that run, sleep and crash."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.faults.model.baton import Actor
from tests.faults.model.ghost import Ghost, Violation
from wal_agent.bucket.base import Bucket, Entry, MemoryBucket, Object, Version
from wal_agent.errors import Conflict, Unavailable
from wal_agent.wal.keys import Keys

KEYS = Keys("job")
TTL = 30.0
FATES = ("", "lost", "late", "dropped")  # of a put: decided at once; landed, no reply; lands later; never lands


@dataclass(frozen=True)
class Shape:
    """How a world is: what happens in it, and how often. Rates are chances for each bucket call or step."""

    hosts: int = 3
    timed: bool = True  # False: any owner may be held for dead at any time, and nothing rests on clocks
    steps: int = 260
    lost: float = 0.04
    late: float = 0.05
    dropped: float = 0.02
    unread: float = 0.01  # a get or list that fails
    crash: float = 0.004
    sleepy: float = 0.02  # a host is not scheduled for a while, of `sleeps` seconds
    sleeps: tuple[float, ...] = (5.0, TTL, 3 * TTL, 20 * TTL)
    naps: float = 0.0  # a host falls asleep where it hurts: right before a put into the log, or when its reply is lost
    unlock: float = 0.0  # a person unlocks
    lifecycle: float = 0.0  # the lease is deleted behind everyone's back
    gc: float = 0.0  # a person cleans up
    age: float = 20.0  # of retention, instead of a day
    beat: float = 10.0  # seconds at most between what snapshots and retention do
    # what an owner does next, by weight
    append: int = 10
    commit: int = 10
    renew: int = 4
    snapshot: int = 2
    retain: int = 1
    close: int = 1
    idle: int = 2
    file: int = 2


@dataclass
class Late:
    """A put, or a delete (no data), in the network: sent, answered to nobody, not there yet."""

    by: str
    key: str
    data: bytes | None
    if_version: Version | None


Clock = Callable[[], float]


@dataclass
class World:
    """`make_store` gives the bucket that all hosts share; what it tells of times has to come from the clock given."""

    rng: random.Random
    shape: Shape
    time: float = 1_000_000.0
    net: list[Late] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    actors: list[Actor] = field(default_factory=list)
    burst: Callable[[Actor], bool] = lambda actor: False  # whether an actor may go on without the scheduler
    quiet: bool = False  # no more faults, no more baton: the last, fresh run
    make_store: Callable[[Clock], Bucket] = MemoryBucket

    def __post_init__(self) -> None:
        self.store = self.make_store(lambda: self.time)
        self.ghost = Ghost(KEYS, self.store, self.shape.timed, self.counts)
        self.asleep: dict[str, float] = {}

    def note(self, who: str, what: str) -> None:
        self.trace.append(f"{self.time - 1_000_000:8.1f}  {who:<6} {what}")

    # --- the store, with the ghost looking on

    def apply(self, by: str, key: str, data: bytes, if_version: Version | None) -> Version:
        version = self.store.put(key, data, if_version=if_version)
        self.ghost.landed(key, data)
        return version

    def land(self, index: int) -> None:
        """A late put arrives."""
        put = self.net.pop(index)
        if put.data is None:
            self.store.delete(put.key)
            self.counts["deleted late"] += 1
            self.note("net", f"the late delete of {put.by} takes {put.key}")
            return
        try:
            self.apply(put.by, put.key, put.data, put.if_version)
        except Conflict:
            self.note("net", f"the late put of {put.by} to {put.key} finds the place taken")
        else:
            self.counts["landed late"] += 1
            self.note("net", f"the late put of {put.by} to {put.key} LANDS")

    # --- the scheduler

    def spawn(self, name: str, work: Callable[[Actor], None]) -> Actor:
        actor = Actor(name, lambda: work(actor))
        actor.go_on = lambda: self.burst(actor)
        self.actors.append(actor)
        return actor

    def step(self, actor: Actor) -> None:
        """Let one actor run to its next bucket call."""
        actor.resume()
        if actor.error is not None:
            raise actor.error
        if actor.done:
            self.actors.remove(actor)
        if actor.crashed:
            self.crash(actor.name.partition(".")[0])

    def crash(self, host: str) -> None:
        """All actors of a host stop where they stand."""
        for actor in [a for a in self.actors if a.name.split(".")[0] == host]:
            actor.kill()
            self.actors.remove(actor)

    def end(self) -> None:
        for actor in self.actors:
            actor.kill()
        self.actors.clear()

    def can_run(self, actor: Actor) -> bool:
        return max(actor.wake, self.asleep.get(actor.name.partition(".")[0], 0)) <= self.time

    def ready(self) -> list[Actor]:
        return [a for a in self.actors if self.can_run(a)]


class HostClock:
    """A host's clocks: boot time runs as the world does from an own beginning; the wall clock is wrong."""

    def __init__(self, world: World, actor: Actor | None, seed: int) -> None:
        self._world, self._actor = world, actor
        self._boot, self._skew = 1000.0 * seed, 5000.0 * (seed - 2)

    def now(self) -> float:
        return self._world.time + self._skew

    def boot(self) -> float:
        return self._world.time - self._boot

    def awake(self) -> float:
        return self._world.time

    def sleep(self, seconds: float) -> None:
        if self._actor is None or self._world.quiet:
            self._world.time += seconds
        else:
            self._actor.pause("sleep", self._world.time + seconds)


class HostBucket:
    """The bucket as one actor sees it: every call hands the baton back first, and may go wrong in each known way."""

    url = "sim://"

    def __init__(self, world: World, actor: Actor, faults: Callable[[str, str], str]) -> None:
        self._world, self._actor, self._faults = world, actor, faults

    def get(self, key: str) -> Object:
        self._read("get", key)
        return self._world.store.get(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self._read("list", prefix)
        return self._world.store.list(prefix, start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        self._read("list", prefix)
        return self._world.store.folders(prefix)

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        self._nap(key)
        self._yield("put", key)
        fate = self._faults("put", key)
        if fate:
            self._nap(key)
        if fate:
            self._world.counts[fate] += 1
        if fate == "late":
            self._world.net.append(Late(self._actor.name, key, data, if_version))
        if fate in ("late", "dropped"):
            self._note(f"put {key}: no reply [{fate}]")
            raise Unavailable(fate)
        try:
            version = self._world.apply(self._actor.name, key, data, if_version)
        except Conflict:
            if fate == "lost":
                self._note(f"put {key}: conflict, no reply")
                raise Unavailable(fate) from None
            self._note(f"put {key}: conflict")
            raise
        if fate == "lost":
            self._note(f"put {key}: LANDED, no reply")
            raise Unavailable(fate)
        self._note(f"put {key}: ok")
        return version

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._yield("delete", key)
            if self._faults("delete", key) == "late":
                self._world.net.append(Late(self._actor.name, key, None, None))
                self._note(f"delete {key}: no reply [late]")
                raise Unavailable("late")
            self._world.store.delete(key)
            self._world.counts["deleted"] += 1
            self._note(f"delete {key}")

    def time(self) -> float:
        return self._world.time

    def close(self) -> None:
        pass

    def _read(self, op: str, key: str) -> None:
        self._yield(op, key)
        if self._faults(op, key):
            self._note(f"{op} {key}: no reply")
            raise Unavailable(op)

    def _yield(self, op: str, key: str) -> None:
        if not self._world.quiet:
            self._actor.pause(f"{op} {key}")

    def _nap(self, key: str) -> None:
        world = self._world
        if world.shape.naps and not world.quiet and key.startswith(KEYS.log) and world.rng.random() < world.shape.naps:
            name = self._actor.name.partition(".")[0]
            world.asleep[name] = world.time + world.rng.choice(world.shape.sleeps)
            self._note(f"naps before put {key}")

    def _note(self, what: str) -> None:
        self._world.note(self._actor.name, what)


__all__ = ["FATES", "KEYS", "TTL", "Clock", "HostBucket", "HostClock", "Shape", "Violation", "World"]

"""Schedules that chance finds too seldom, each the shortest trace of the model checker through the real code.

Owners act in the middle of each other's bucket calls where the schedule says so; time passes only when it says so.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from tests.faults.model.baton import Actor
from tests.faults.model.owner import MARGIN, Owner
from tests.faults.model.simulate import rule_seven
from tests.faults.model.world import KEYS, TTL, Shape, World
from wal_agent.errors import Fenced
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.retention import Mirror, Retention, Snapshots
from wal_agent.wal.spool import Spool, SpoolOwner
from wal_agent.wal.store import JobStore


class Staged(Owner):
    """An owner whose next put under `prefix` meets with `event`: one of the fates, or what others do first."""

    prefix = ""
    event: str | Callable[[], None] = ""

    def fate(self, op: str, key: str) -> str:
        if op != "put" or not self.prefix or not key.startswith(self.prefix):
            return ""
        self.prefix, event = "", self.event
        if isinstance(event, str):
            return event
        event()
        return ""

    def meets(self, prefix: str, event: str | Callable[[], None]) -> None:
        self.prefix, self.event = prefix, event

    def take(self) -> OpenedJob:
        opened = self.open()
        assert opened is not None
        return opened

    def intend(self, opened: OpenedJob, times: int = 1) -> None:
        """Append and commit, but answer nobody yet."""
        with mock.patch.object(Owner, "answer"), mock.patch.object(self.rng, "random", lambda: 1.0):
            for _ in range(times):
                self.append(opened)
                self.commit(opened)

    def tidy(self, opened: OpenedJob) -> None:
        """Two snapshots and a retention that has waited for long enough; the bucket's time hardly moves."""
        taking = Snapshots(self.bucket, KEYS, opened.writer, Mirror(Path("/nonexistent"), opened.blobs))
        taking.take()
        self.intend(opened)
        taking.take()
        self.world.time += 0.01
        Retention(self.bucket, KEYS, opened.blobs, lambda: True, age=0.0, parallel=1).run()


class Stage:
    """A world in fine weather, and its owners."""

    def __init__(self, *, timed: bool) -> None:
        self.world = World(random.Random(1), Shape(timed=timed))
        self.world.quiet = True

    def owner(self, index: int) -> Staged:
        folder = tempfile.gettempdir()
        return Staged(self.world, index, index, lambda: Path(folder), Actor(f"h{index}", lambda: None))

    def wake(self, owner: Staged, opened: OpenedJob) -> None:
        """A host that slept goes on where it was."""
        try:
            owner.commit(opened)
        except Fenced as fenced:
            self.world.ghost.fenced(owner.run, opened.lease.epoch, fenced.what)


def clock_free(schedule: Callable[[Stage], None]) -> Callable[[], None]:
    def play() -> None:
        stage = Stage(timed=False)
        with mock.patch.object(leases, "may_allow", rule_seven(stage.world.shape)):
            schedule(stage)
            stage.world.ghost.check()

    return play


@clock_free
def opening_into_a_hole(stage: Stage) -> None:
    """V6: B lists, sleeps; A goes on, and retention takes the seq behind what B saw; B's opening lands in the hole."""
    a, b = stage.owner(0), stage.owner(1)
    first = a.take()
    a.intend(first)

    def meanwhile() -> None:
        a.intend(first, 3)
        a.tidy(first)

    b.meets(KEYS.log, meanwhile)
    b.take()


@clock_free
def append_again_where_it_was(stage: Stage) -> None:
    """V5: A's intent lands, its reply is lost, A sleeps. B opens behind it and tidies up. A sends the intent again."""
    a, b = stage.owner(0), stage.owner(1)
    first = a.take()
    a.meets(KEYS.log, "lost")
    a.intend(first)
    second = b.take()
    b.intend(second, 2)
    b.tidy(second)
    stage.wake(a, first)


@clock_free
def append_where_the_opening_was(stage: Stage) -> None:
    """V5e: A's intent never lands, A sleeps. B opens at that very seq and tidies up. A sends the intent again."""
    a, b = stage.owner(0), stage.owner(1)
    first = a.take()
    a.meets(KEYS.log, "dropped")
    a.intend(first)
    second = b.take()
    b.intend(second, 2)
    b.tidy(second)
    stage.wake(a, first)


@clock_free
def spool_of_a_copied_disk(stage: Stage) -> None:
    """R9: A spools in an outage, its disk is copied. B carries the spool in on the original, C starts on the copy."""
    a, b, c = (stage.owner(n) for n in range(3))
    whose = SpoolOwner(KEYS.job, a.bucket.url)
    with tempfile.TemporaryDirectory() as folder:
        original, copy = Path(folder, "original"), Path(folder, "copy")
        a.spool = Spool.create(original, "a", whose)
        first = a.take()
        a.meets(KEYS.log, "dropped")
        a.intend(first)
        assert first.writer.spool_once(at_once=True)
        a.spool.release()
        shutil.copytree(original, copy)
        for owner, disk in ((b, original), (c, copy)):
            owner.spool = Spool.adopt(disk, str(disk / a.spool.folder.name), whose)
            assert owner.spool is not None
            owner.take()


def allow_after_the_takeover() -> None:
    """V8: A's intent is acknowledged, A freezes for longer than its ttl, B opens, A thaws and would answer."""
    stage = Stage(timed=True)
    a, b = stage.owner(0), stage.owner(1)
    first = a.take()
    a.intend(first)
    stage.world.time += TTL + 1
    b.take()
    a.answer(first)


def takeover_right_after_unlock() -> None:
    """V11: A's intent is acknowledged; a person unlocks, B opens; A, within its ttl, answers."""
    stage = Stage(timed=True)
    a, b = stage.owner(0), stage.owner(1)
    first = a.take()
    a.intend(first)
    seen = leases.read_lease(stage.world.store, KEYS)
    assert seen is not None and first.lease.may_allow(MARGIN)
    leases.unlock(JobStore(b.bucket, KEYS, b.clock, stage.world.rng), seen=seen, reason="test")
    b.take()
    a.answer(first)


def task_allows_after_the_takeover() -> None:
    """T2: a task was answered, its run and A's freeze for longer than A's ttl, B opens, the task thaws and goes on."""
    stage = Stage(timed=True)
    a, b = stage.owner(0), stage.owner(1)
    first = a.take()
    until = a.task_of(first).until()
    a.task_goes_on(first, until)
    stage.world.time += TTL + 1
    b.take()
    a.task_goes_on(first, until)


def task_asks_after_the_takeover() -> None:
    """T1: the same, but the task asks behind the takeover; A has not noticed it yet."""
    stage = Stage(timed=True)
    a, b = stage.owner(0), stage.owner(1)
    first = a.take()
    stage.world.time += TTL + 1
    b.take()
    a.task_goes_on(first, a.task_of(first).until())

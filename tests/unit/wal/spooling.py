"""A machine with a disk: runs that spool on it, are cut off, and are followed by others, here or elsewhere."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tests.unit.wal.world import FIELDS, KEYS, World, claim, host, intent
from wal_agent.records import AnyRecord, Host, Intent, Opening
from wal_agent.supervise.lease_keeper import AcquireOptions, acquire_job
from wal_agent.supervise.options import Screen
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.reader import iter_segments
from wal_agent.wal.store import JobStore
from wal_agent.wal.writer import Ticket


class Disk:
    """The folder of one machine's spools."""

    def __init__(self, world: World, spools: Path) -> None:
        self.world, self.spools = world, spools
        self.boots = 1
        self.told: list[str] = []

    def start(self, run: str, *, spool: bool = True, accept_loss: bool = False) -> OpenedJob:
        """What `wal-agent run` does until the job is opened."""
        here = self.host(run)
        return acquire_job(
            JobStore(self.world.bucket, KEYS, self.world.clock, random.Random(run)),
            replace(claim(run), host=here),
            FIELDS,
            AcquireOptions(self.spools, spool, accept_loss),
            Screen(self.told.append, self.told.extend),
        )

    def host(self, run: str) -> Host:
        return msgspec.structs.replace(host(run), boot=f"{self.spools}, boot {self.boots}")

    def reboot(self) -> None:
        """The kernel is another one: its locks are all free, also where a run of before holds its own."""
        self.boots += 1


def down(world: World) -> None:
    world.bucket.fates = ["dropped"] * 100_000


def up(world: World) -> None:
    world.bucket.fates = []


def spooled(job: OpenedJob, *records: AnyRecord) -> Ticket:
    """Append in an outage that has lasted; on the disk when this returns."""
    ticket = job.writer.append(*records)
    assert job.writer.commit_once() == "undecided"
    assert job.writer.spool_once(at_once=True)
    assert ticket.status == "spooled"
    return ticket


def call(job: OpenedJob, uid: str) -> Ticket:
    """A call whose intent is spooled."""
    return spooled(job, intent(job.writer.next_call(), uid))


def cut_off(job: OpenedJob) -> None:
    """The process is gone: the kernel frees its lock, and that is all."""
    assert job.spool is not None
    job.spool.release()


def log(world: World) -> list[tuple[int, AnyRecord]]:
    """Every record in the bucket with its segment's epoch, in order."""
    return [(s.epoch, r) for _, s in iter_segments(world.inner, KEYS) for r in s.records]


def calls(world: World) -> list[tuple[int, str]]:
    """The numbers and ids of the intents in the log, in order."""
    return [(r.call, r.agent_call) for _, r in log(world) if isinstance(r, Intent)]


def openings(world: World) -> list[tuple[int, str]]:
    return [(r.epoch, r.cause) for _, r in log(world) if isinstance(r, Opening)]

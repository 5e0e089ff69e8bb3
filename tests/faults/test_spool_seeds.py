"""Seeded walks over the real code of R9: two machines with disks, outages, lost and late puts, crashes anywhere.

What must hold whenever a run has opened the job: every call that was answered "acked" or "spooled" is in its log, once,
unless a person accepted the loss; and the log is sound. Where disks are copied and an older copy is put in, a call that
only one copy had may be missing from the log, but not from every disk. `WAL_AGENT_SEEDS=FROM-TO` runs others than the
first 600.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from tests.tiers import once
from tests.unit.wal.spooling import Disk, calls
from tests.unit.wal.world import TTL, Flaky, World, intent
from wal_agent.bucket import folder as files
from wal_agent.bucket.base import Version
from wal_agent.errors import Conflict, Fenced, LeaseHeld, Unavailable
from wal_agent.records import Intent
from wal_agent.wal import codec, spool, writer
from wal_agent.wal import job as jobs
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.reader import replay
from wal_agent.wal.writer import Ticket

FIRST, _, LAST = os.environ.get("WAL_AGENT_SEEDS", "0-600").partition("-")
CHUNK = 100
OFTEN = {
    "spooled": 300,
    "carried in": 60,
    "cut off": 150,
    "cut off at a failpoint": 40,
    "loss accepted": 5,
    "refused": 100,
    "fenced": 3,
    "closed or released": 40,
    "landed late": 5,
}
"""How often each thing has to happen in a chunk of seeds."""


class Killed(BaseException):
    """The process is gone."""


class Weather(Flaky):
    """Loses requests and replies, delivers late, or is down."""

    def __init__(self, world: World, rng: random.Random, counts: Counter[str]) -> None:
        super().__init__(world.inner)
        self.rng, self.counts = rng, counts
        self.bad = 0.0
        self.down = False
        self.late: list[tuple[str, bytes, Version | None]] = []

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        if self.down:
            self.fates = ["dropped"]
        elif self.rng.random() < self.bad:
            self.fates = [self.rng.choice(["lost", "dropped", "late"])]
        else:
            self.fates = []
        if self.fates == ["late"]:
            self.late.append((key, data, if_version))
            self.fates = ["dropped"]
        return super().put(key, data, if_version=if_version)

    def land(self) -> None:
        """One late put arrives."""
        if self.late:
            key, data, version = self.late.pop(self.rng.randrange(len(self.late)))
            try:
                self.inner.put(key, data, if_version=version)
                self.counts["landed late"] += 1
            except Conflict:
                pass


class Walk:
    def __init__(self, seed: int, folder: Path, counts: Counter[str], *, copies: bool = False) -> None:
        self.rng, self.counts = random.Random(f"spool {seed}"), counts
        self.world = World()
        self.folder, self.copies = folder, copies
        self.copied: list[Path] = []  # of the first machine's disk
        self.weather = Weather(self.world, self.rng, counts)
        self.world.bucket = self.weather
        self.disks = [Disk(self.world, folder / name / "spools") for name in ("vm-1", "vm-2")]
        self.jobs: list[OpenedJob | None] = [None, None]
        self.tickets: dict[str, tuple[Ticket, OpenedJob]] = {}
        self.answered: set[str] = set()
        self.lost: set[str] = set()
        self.taken = 0  # the epoch that was opened with the loss accepted
        self.runs = 0
        self.left = 0  # visits of failpoints until the process is gone; 0: it lives on

    def failpoint(self, name: str) -> None:
        if name.startswith(("spool.", "append.")) and self.left:
            self.left -= 1
            if self.left == 0:
                self.counts["cut off at a failpoint"] += 1
                raise Killed

    def go(self) -> None:
        with (
            mock.patch.object(spool, "failpoint", self.failpoint),
            mock.patch.object(writer, "failpoint", self.failpoint),
        ):
            self.start(0, spooling=True, accept_loss=False)  # the bucket is tried out by the first start of all
            self.weather.bad = self.rng.choice([0.0, 0.1, 0.3])
            for _ in range(80):
                self.step()
            self.last()

    def step(self) -> None:
        rng = self.rng
        self.world.clock.at += rng.choice([0.0, 0.5, 4.0, TTL + 1])
        if rng.random() < 0.12:
            self.weather.down = not self.weather.down
        if rng.random() < 0.3:
            self.weather.land()
        host = rng.randrange(2) if not self.copies else 0
        job = self.jobs[host]
        self.left = rng.choice([0, 0, 0, 0, 0, 0, rng.randrange(1, 8)])
        if self.copies:
            self.copy_disk()
        try:
            if job is None:
                self.start(host, spooling=rng.random() < 0.75, accept_loss=rng.random() < 0.03)
            else:
                self.act(host, job)
        except Killed:
            self.cut_off(host)
        finally:
            self.left = 0
        self.hear()

    def copy_disk(self) -> None:
        """The first machine's disk is copied; or, while nothing of it runs, a copy takes its place."""
        disk, kept = self.disks[0], self.folder / f"copy {len(self.copied)}"
        holds = any(disk.spools.glob("*/*/*"))
        if holds and self.rng.random() < 0.1:
            shutil.copytree(disk.spools, kept)
            self.copied.append(kept)
        elif self.copied and self.jobs[0] is None and self.rng.random() < 0.3:
            copy = self.rng.choice(self.copied)
            disk.spools.rename(self.folder / "away")
            copy.rename(disk.spools)
            (self.folder / "away").rename(copy)
            disk.reboot()
            self.world.clock.at += TTL + 1
            self.counts["a copy put in"] += 1

    def on_disks(self) -> set[str]:
        """The calls that any disk has, whatever its folders are called."""
        found: set[str] = set()
        for root in (*(disk.spools for disk in self.disks), *self.copied):
            for path in root.glob("*/*/*"):
                segment = codec.decode_segment(path.read_bytes(), job="shop", seq=int(path.name))
                found |= {r.agent_call for r in segment.records if isinstance(r, Intent)}
        return found

    def start(self, host: int, spooling: bool, accept_loss: bool) -> None:
        self.runs += 1
        disk = self.disks[host]
        told = len(disk.told)
        before = set(calls(self.world))
        try:
            job = disk.start(f"{host}-{self.runs}", spool=spooling, accept_loss=accept_loss)
        except (LeaseHeld, Unavailable, Fenced) as error:
            self.counts["refused" if isinstance(error, LeaseHeld) else "failed to start"] += 1
            return
        finally:
            if any("--accept-loss" in text for text in disk.told[told:]):
                self.counts["loss accepted"] += 1
                self.lost |= self.answered - {uid for _, uid in calls(self.world)}
                self.taken = self.world_epoch()
        self.jobs[host] = job
        self.counts["carried in"] += bool(set(calls(self.world)) - before)
        self.counts["set aside"] += any(".aside-" in text for text in disk.told[told:])
        self.check(job)

    def world_epoch(self) -> int:
        seen = self.world.seen()
        return seen.doc.epoch if seen else 0

    def act(self, host: int, job: OpenedJob) -> None:
        match self.rng.choices(["call", "commit", "spool", "renew", "crash", "close"], [8, 6, 8, 3, 2, 1])[0]:
            case "call" if job.writer.ended is None:
                number = job.writer.next_call()
                uid = f"{job.writer.run_id}#{number}"
                self.tickets[uid] = (job.writer.append(intent(number, uid)), job)
            case "commit":
                if job.writer.commit_once() == "ended":
                    assert isinstance(job.writer.ended, Fenced)
                    self.counts["fenced"] += 1
                    self.cut_off(host)
            case "spool":
                job.writer.spool_once()
            case "renew":
                try:
                    job.lease.renew()
                except Fenced:
                    self.cut_off(host)
                except Unavailable:
                    pass
            case "crash":
                self.counts["cut off"] += 1
                self.cut_off(host)
            case "close":
                try:
                    how = close_job(job, "closed", budget=1.0)
                    self.counts["left" if how == "left" else "closed or released"] += 1
                except Fenced:
                    pass
                self.hear()
                self.cut_off(host)

    def hear(self) -> None:
        """What the agents are told of their calls."""
        for uid, (ticket, job) in list(self.tickets.items()):
            try:
                word = ticket.status
            except Fenced:
                del self.tickets[uid]
                continue
            if word == "undecided":
                continue
            self.answered.add(uid)
            self.counts[word] += 1
            if word == "spooled" and job.writer.epoch < self.taken:
                self.lost.add(uid)  # answered by an owner that does not know yet that somebody accepted the loss
            del self.tickets[uid]

    def cut_off(self, host: int) -> None:
        self.hear()
        job = self.jobs[host]
        self.jobs[host] = None
        self.tickets = {uid: held for uid, held in self.tickets.items() if held[1] is not job}
        if job is not None and job.spool is not None:
            job.spool.release()

    def check(self, job: OpenedJob) -> None:
        found = [uid for _, uid in calls(self.world)]
        assert len(found) == len(set(found)), "a record came into the log twice"
        missing = self.answered - set(found) - (self.on_disks() if self.copies else self.lost)
        assert not missing, "a run opened without what was answered"
        for run in {uid.partition("#")[0] for uid in found}:
            own = [int(uid.partition("#")[2]) for uid in found if uid.partition("#")[0] == run]
            assert own == sorted(own), "the order is another one"
        state = replay(self.world.inner, job.keys, parallel=1)
        assert state.damage is None and state.state == job.replay.state

    def last(self) -> None:
        """Everyone is gone, the weather is fine: the machine that the lease names goes on, else any."""
        for host in (0, 1):
            self.cut_off(host)
        while self.weather.late and self.rng.random() < 0.7:
            self.weather.land()
        self.weather.late.clear()
        self.weather.down, self.weather.bad = False, 0.0
        self.world.clock.at += 10 * TTL
        for host, accept_loss in ((0, False), (1, False), *([(0, True)] if self.copies else [])):
            self.start(host, spooling=False, accept_loss=accept_loss)  # a copy may lack the folder that the lease names
            if self.jobs[host] is not None:
                return
        raise AssertionError("nobody can go on")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the processes. The disk stays, so that no run waits for it."""
    for module in (files, spool):
        monkeypatch.setattr(module, "sync", lambda _: None)


@pytest.mark.parametrize("first", once(range(int(FIRST), int(LAST), CHUNK), int(FIRST)))
def test_seeds(first: int, tmp_path: Path) -> None:
    """I3 for what was spooled; R9."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        live(Walk(seed, tmp_path / str(seed), counts), seed)
    rare = {what: counts[what] for what, least in OFTEN.items() if counts[what] < least}
    assert not rare, counts


@pytest.mark.parametrize("seeds", once([range(25), range(25, CHUNK)], range(25)), ids=len)
def test_copied_disks(tmp_path: Path, seeds: range) -> None:
    """R9, I3, I8: an older copy of the disk starts where the newer one, or another copy, had carried its spool in."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        live(Walk(seed, tmp_path / str(seed), counts, copies=True), seed)
    often = {"a copy put in": 150, "carried in": 30, "set aside": 10}  # in a chunk
    assert not {what: counts[what] for what, n in often.items() if counts[what] * CHUNK < n * len(seeds)}, counts


def test_copied_disks_need_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "epoch_that_carried", lambda *_: 0)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(CHUNK):
            live(Walk(seed, tmp_path / str(seed), Counter(), copies=True), seed)


def live(walk: Walk, seed: int) -> None:
    try:
        walk.go()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error

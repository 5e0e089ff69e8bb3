"""One host of the simulation: it opens the job through the real code, acts, snapshots, closes, as its world rolls."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.model.baton import Actor
from tests.faults.model.ghost import FATES_OF_TOOLS, Fate, Tool, Violation
from tests.faults.model.world import KEYS, TTL, HostBucket, HostClock, World
from wal_agent.agents.base import Status
from wal_agent.errors import Damaged, Fenced, LeaseHeld, Unavailable
from wal_agent.records import Cause, Cut, Edit, End, FileDelta, Host, Intent, Payload, RunsOn
from wal_agent.recovery.lease_policy import Acquire, Local, Wait, admit
from wal_agent.supervise import ends
from wal_agent.supervise.lease_keeper import LeaseKeeper, LeaseTiming
from wal_agent.supervise.tasks import CallerRun, TaskBounds
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.job import OpenedJob, OpeningFields, close_job, open_job
from wal_agent.wal.lease import LeaseRequest, StoredLease, longest_ttl
from wal_agent.wal.retention import Mirror, Retention, Snapshots
from wal_agent.wal.spool import Spool
from wal_agent.wal.store import JobStore
from wal_agent.wal.writer import Sealed, Ticket

MARGIN = 2.0
COMMON = [bytes([n]) * 20 for n in range(3)]
FIELDS = OpeningFields(agent_version="1", version="1")


@dataclass
class Call:
    """A call whose hook waits for an answer."""

    number: int
    uid: str
    ticket: Ticket
    answered: bool = False


class TasksOwnLease:
    """Of a task's job: nobody takes it, so that only its caller's counts."""

    def may_allow(self) -> bool:
        return True

    def seconds_left(self) -> float:
        return TTL


@dataclass
class Owner:
    """A host's process. `index` makes its names; a restart after a crash is a new Owner with a new `life`."""

    world: World
    index: int
    life: int
    folder: Callable[[], Path]
    actor: Actor
    calls: list[Call] = field(default_factory=list)
    content: bytes = b""
    spool: Spool | None = None  # R9

    def __post_init__(self) -> None:
        self.rng: random.Random = self.world.rng
        self.run = f"h{self.index}-{self.life}"
        self.clock = HostClock(self.world, self.actor, self.index)
        self.bucket = HostBucket(self.world, self.actor, self.fate)
        self.host = Host(name=f"h{self.index}", boot=f"b{self.index}", pidns="1", pid=self.life, lock="")

    def fate(self, op: str, key: str) -> str:
        """What becomes of a bucket call."""
        shape, roll = self.world.shape, self.rng.random()
        if self.world.quiet:
            return ""
        if roll < shape.crash:
            self.world.counts["crash"] += 1
            self.world.note(self.actor.name, f"CRASHES before {op} {key}")
            self.actor.crash()
        if op != "put":
            return "unread" if roll > 1 - shape.unread else ""
        for name in ("lost", "late", "dropped"):
            rate = getattr(shape, name)
            roll -= rate
            if roll < shape.crash:
                return name
        return ""

    # --- opening

    def live(self) -> None:
        """Open the job and act, until the process ends in one of the ways in which it can."""
        try:
            opened = self.open()
            if opened is None:
                return
            self.act(opened)
        except LeaseHeld as held:
            self.world.note(self.actor.name, f"ends: {held.what}")
        except Unavailable:
            self.world.note(self.actor.name, "ends: the bucket is away")
        except Fenced as fenced:
            self.world.note(self.actor.name, f"ends: {fenced.what}")
            self.world.ghost.fenced(self.run, self.epoch(), fenced.what)
        except Damaged as damage:
            raise Violation(f"DAMAGE: {self.run}: {damage.what}") from damage

    def epoch(self) -> int:
        """The epoch that the lease was last seen to give this run, by the ghost's eyes."""
        seen = leases.read_lease(self.world.store, KEYS)
        return seen.doc.epoch if seen is not None and seen.doc.run == self.run else 0

    def open(self) -> OpenedJob | None:
        for _ in range(6):
            seen = leases.read_lease(self.bucket, KEYS)
            cause = self.admitted(seen)
            if cause is not None:
                break
            self.clock.sleep(self.rng.choice([1.0, 10.0, TTL]))
        else:
            return None
        opened = open_job(
            JobStore(self.bucket, KEYS, self.clock, self.rng, parallel=1),
            claim=LeaseRequest(self.run, self.host, "gemini", "/w", TTL),
            fields=FIELDS,
            seen=seen,
            cause=cause,
            spool=self.spool,
            spooling=self.spool is not None,
        )
        self.world.note(self.actor.name, f"PLANS in epoch {opened.lease.epoch} on the log up to {opened.replay.seq}")
        self.world.ghost.planned(self.run, opened.lease.epoch, opened.replay)
        return opened

    def admitted(self, seen: StoredLease | None) -> Cause | None:
        decision = admit(seen, Local(boot=self.host.boot, pidns=self.host.pidns))
        match decision:
            case Acquire(cause):
                return cause
            case Wait() if not self.world.shape.timed:
                return "unlocked"
            case _:
                return "dead" if not self.world.shape.timed else None

    # --- acting

    def act(self, opened: OpenedJob) -> None:
        shape = self.world.shape
        choices: dict[str, Callable[[], object]] = {
            "append": lambda: self.append(opened),
            "commit": lambda: self.commit(opened),
            "renew": lambda: self.renew(opened),
            "idle": lambda: self.idle(opened),
            "file": lambda: self.capture(opened),
            "close": lambda: self.close(opened),
        }
        weights = [getattr(shape, name) for name in choices]
        self.content = b""
        self.background(opened)
        for _ in range(60):
            name = self.rng.choices(list(choices), weights)[0]
            try:
                if choices[name]() == "gone":
                    return
            except Unavailable:
                pass  # every one of these may be done again

    def idle(self, opened: OpenedJob) -> None:
        """A task of this run asks for a call, and allows it some time later, or not (docs/TASKS.md)."""
        task = self.task_of(opened)
        until = task.until()
        self.clock.sleep(self.rng.uniform(0, TTL / 2))
        self.task_goes_on(opened, until)

    def task_of(self, opened: OpenedJob) -> TaskBounds:
        """The bounds of a task's run, which asks this one."""
        own = TaskBounds(LeaseKeeper(LeaseTiming(TTL), self.clock, opened.lease), self.clock)
        epoch = opened.lease.epoch
        return TaskBounds(TasksOwnLease(), self.clock, CallerRun(lambda asked: own.answer(asked, epoch, ""), epoch))

    def task_goes_on(self, opened: OpenedJob, until: float) -> None:
        """The last check of a task's call, as the gate makes it."""
        if self.clock.boot() < until:
            self.world.ghost.task_allows(self.run, opened.lease.epoch)
        else:
            self.world.counts["task denied"] += 1

    def append(self, opened: OpenedJob) -> None:
        number = opened.writer.next_call()
        uid = f"{self.run}#{number}"
        tool = Payload(size=2, data=b"{}")
        made = Intent(
            time=self.clock.now(),
            call=number,
            tool="sh",
            input=tool,
            cls="unknown",
            rule="",
            session="s",
            agent_call=uid,
        )
        self.calls.append(Call(number, uid, opened.writer.append(made)))
        if self.rng.random() < 0.7:
            self.commit(opened)

    def commit(self, opened: OpenedJob) -> None:
        """A step of the log, and the answers that it allows: checked after the ack, as the last thing (R7)."""
        step = opened.writer.commit_once()
        if step == "ended":
            assert opened.writer.ended is not None
            raise opened.writer.ended
        if step == "acked":
            self.world.ghost.was_acked(opened.writer.acked.hash)
        self.answer(opened)

    def answer(self, opened: OpenedJob) -> None:
        for call in [c for c in self.calls if not c.answered]:
            if call.ticket.status == "acked":
                call.answered = True
                if opened.lease.may_allow(MARGIN):
                    self.world.note(self.actor.name, f"ALLOWS {call.uid}")
                    epoch, hash_ = opened.writer.epoch, self.segment_of(opened, call)
                    self.world.ghost.allows(self.run, epoch, call.uid, hash_)
                    self.end(opened, call, "done")
                else:
                    self.world.counts["denied"] += 1
                    self.end(opened, call, "refused")
            elif self.rng.random() < 0.2:
                call.answered = True  # the hook's deadline has come: denied, and its record stays in the queue (R3)
                self.world.counts["denied"] += 1
                self.end(opened, call, "refused")

    def segment_of(self, opened: OpenedJob, call: Call) -> bytes:
        """The hash of the segment that the writer says holds this call."""
        at = opened.writer.acked
        hash_ = at.hash
        while (found := self.world.ghost.archive[hash_]).seq > call.ticket.seq:
            hash_ = found.prev
        return hash_

    def end(self, opened: OpenedJob, call: Call, how: str) -> None:
        """What is logged of a call's end: a refusal of ours, or what the real rule makes of what the agent reports."""
        if how != "refused" and self.rng.random() >= 0.85:
            return
        at, number = self.clock.now(), call.number
        record: End | Cut | RunsOn = End(time=at, call=number, how="refused", by="hook")
        if how != "refused":
            tool = roll_tool(random.Random(f"{call.uid} {self.world.time}"))
            self.world.ghost.tools[number] = tool
            self.world.counts[f"tool: {tool.fate}"] += 1
            match ends.outcome_of(tool.status, tool.clean, tool.seen):
                case "cut":
                    record = Cut(time=at, call=number, by="hook", why="")
                case "runs_on":
                    record = RunsOn(time=at, call=number, by="hook", why="")
                case outcome:
                    record = End(time=at, call=number, how=outcome, by="hook")
        with suppress(Sealed):
            opened.writer.append(record)

    def renew(self, opened: OpenedJob) -> None:
        reached = opened.writer.acked.seq
        opened.lease.renew(seq=reached, ttl=self.rng.choice((TTL, longest_ttl(TTL))))
        if opened.lease.held and opened.lease.doc.seq < reached:
            raise Violation(f"END: {self.run} renewed at record {reached}, its lease says {opened.lease.doc.seq}")

    def capture(self, opened: OpenedJob) -> None:
        """A file of the session grows, or is cut and grows."""
        old = self.content
        keep = len(old) if self.rng.random() < 0.8 else self.rng.randint(0, len(old))
        # Half of the time bytes that others put too, and this one has put before.
        more = self.rng.choice(COMMON) if self.rng.random() < 0.5 else self.rng.randbytes(self.rng.randint(8, 30))
        new = old[:keep] + more
        name = opened.blobs.put(more)
        edit = Edit(offset=keep, data=Payload(size=len(more), blob=name))
        delta = FileDelta(
            time=self.clock.now(),
            path=f"{self.run}.jsonl",
            size=len(new),
            sha256=hashlib.sha256(new).hexdigest(),
            edits=(edit,),
            session="s",
        )
        opened.writer.append(delta)
        self.content = new

    def close(self, opened: OpenedJob) -> str:
        how = close_job(opened, "closed" if self.rng.random() < 0.5 else "released", budget=5.0)
        self.world.ghost.was_acked(opened.writer.acked.hash)
        self.world.note(self.actor.name, f"gives the job up: {how}")
        for _ in range(3):  # whoever still waits gets what R6 lets through: nothing
            self.commit(opened)
        return "gone"

    # --- beside it

    def background(self, opened: OpenedJob) -> None:
        """Snapshots and retention run in a thread of their own in production, so they do here."""
        shape = self.world.shape
        if not shape.snapshot + shape.retain:
            return

        def work(actor: Actor) -> None:
            bucket = HostBucket(self.world, actor, lambda op, key: "" if self.world.quiet else weak(self.world, op))
            clock = HostClock(self.world, actor, self.index)
            blobs = Blobs(JobStore(bucket, KEYS, clock, self.rng), epoch=opened.lease.epoch, parallel=1)
            blobs.names = opened.blobs.names  # the same pins, through this actor's calls
            taking = Snapshots(bucket, KEYS, opened.writer, Mirror(self.folder(), blobs))
            retention = Retention(bucket, KEYS, opened.blobs, self.may_act(opened), age=shape.age, parallel=1)
            for _ in range(12):
                clock.sleep(self.rng.uniform(0, shape.beat))
                try:
                    if self.rng.random() * (shape.snapshot + shape.retain) < shape.snapshot:
                        if taking.take() is not None:
                            self.world.counts["snapshots"] += 1
                    else:
                        done = retention.run()
                        self.world.counts["retained"] += done.segments.count
                        self.world.counts["blobs retained"] += done.blobs.count
                except Unavailable:
                    pass
                except Damaged as damage:
                    if self.world.ghost.taken <= opened.lease.epoch:  # what only fenced runs name may be gone
                        raise Violation(f"DAMAGE: {self.run} in the background: {damage.what}") from damage
                    return

        self.world.spawn(f"{self.actor.name}.bg{self.life}", work)

    def may_act(self, opened: OpenedJob) -> Callable[[], bool]:
        # Without clocks a fenced owner may go on deleting segments: R4 has to hold by itself.
        return (lambda: opened.lease.may_allow(MARGIN)) if self.world.shape.timed else (lambda: True)


def roll_tool(rng: random.Random) -> Tool:
    """A tool's fate, and what its agent says of it: agents that are stopped end their tools and report whatever they
    like; else they mistake a No for an Esc, and a start in the background for a completion."""
    fate: Fate = rng.choices(FATES_OF_TOOLS, (12, 1, 1, 1))[0]
    stopping = rng.random() < 0.4
    clean = fate == "completed" and rng.random() < 0.8
    honest: dict[Fate, tuple[Status, ...]] = {
        "completed": ("done", "failed"),
        "background": ("done", "runs_on", "failed"),
        "cut": ("cancelled", "failed", "done", "refused") if stopping else ("cancelled",),
        "refused": ("cancelled", "refused"),
    }
    status = rng.choice(honest[fate])
    clean = status == "done" and (clean or fate == "background")
    begun = fate != "refused"
    asked = fate == "refused" or rng.random() < 0.3
    seen = ends.Seen("unknown", stopping, asked, begun, fate == "background", untouched=not begun)
    return Tool(fate, status, clean, seen)


def weak(world: World, op: str) -> str:
    """What becomes of a bucket call of an actor that does not crash."""
    shape, roll = world.shape, world.rng.random()
    match op:
        case "put":
            return "lost" if roll < shape.lost else "late" if roll < shape.lost + shape.late else ""
        case "delete":
            return "late" if roll < shape.late else ""
        case _:
            return "unread" if roll < shape.unread else ""

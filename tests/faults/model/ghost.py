"""What an all-seeing observer knows of a simulated job, and the invariants that it checks at every step.

It keeps every segment that ever landed, also those that retention took, and finds the true log by following `prev` from
the newest one; replay has to agree with that. The checks are those of the model checker that found the rules:
I2, I3, DAMAGE, ZOMBIE, LATE, SEEN, FALSE FENCE, ACT, LIVE, TASK for the tasks of a run, and CLAIM for ends that are
not known (I8).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from wal_agent.agents.base import Status
from wal_agent.bucket.base import Bucket
from wal_agent.budget import FOREIGN
from wal_agent.records import End, Intent
from wal_agent.supervise import ends
from wal_agent.wal import codec, lease, reader
from wal_agent.wal import codec as packing
from wal_agent.wal import lease as leases
from wal_agent.wal.codec import START, Segment
from wal_agent.wal.keys import Keys
from wal_agent.wal.retention import referenced_blobs
from wal_agent.wal.state import State, apply_all


class Violation(Exception):
    """An invariant does not hold; begins with its name."""


@dataclass(frozen=True)
class Plan:
    """An owner whose recovery was planned on the log up to `at` (a hash)."""

    run: str
    epoch: int
    seen: frozenset[bytes]


Fate = Literal["completed", "background", "cut", "refused"]
FATES_OF_TOOLS: tuple[Fate, ...] = get_args(Fate)


@dataclass(frozen=True)
class Tool:
    """What became of an allowed call, what its agent says of it, and what the run saw."""

    fate: Fate
    status: Status
    clean: bool
    seen: ends.Seen


@dataclass
class Ghost:
    keys: Keys
    store: Bucket
    timed: bool
    counts: Counter[str]
    archive: dict[bytes, Segment] = field(default_factory=dict)
    top: int = 0
    taken: int = 0  # the highest epoch that has opened at the end of the log
    late: set[bytes] = field(default_factory=set)  # records that came to stand after a newer epoch had opened
    acked: set[bytes] = field(default_factory=set)
    plans: list[Plan] = field(default_factory=list)
    allowed: dict[str, bytes] = field(default_factory=dict)  # call -> segment
    last: bytes = START  # hash of segment `top`
    settled: set[int] = field(default_factory=set)  # epochs whose owner gave the job up
    tools: dict[int, Tool] = field(default_factory=dict)  # by call

    # --- what happened

    def landed(self, key: str, data: bytes) -> None:
        """An object was created or replaced."""
        if key.startswith(self.keys.log):
            self._segment_landed(data)
        elif key == self.keys.lease:
            doc = lease.decode_lease(data, self.keys.job)
            if doc.state in ("closed", "released"):
                self.settled.add(doc.epoch)
                self.counts[doc.state] += 1
            if doc.state == "closed" and (open := self._state().unlooked):
                raise Violation(f"CLAIM: epoch {doc.epoch} closed the job, and call {open[0].intent.call} is open")
            self._says_where_it_ends(doc)

    def _state(self) -> State:
        """The state by the true log."""
        state = State()
        for _, found in self.chain(self.last):
            state = apply_all(state, found.seq, found.origin, found.records)
        return state

    def _says_where_it_ends(self, doc: lease.LeaseDoc) -> None:
        """A reader misses what lies before the number in the lease, so it is never above the log's end; a
        job that was given up names its end exactly."""
        if doc.seq > self.top:
            raise Violation(f"END: the lease of epoch {doc.epoch} says record {doc.seq}, the log ends at {self.top}")
        if doc.state in ("closed", "released") and (doc.seq, bytes.fromhex(doc.end)) != (self.top, self.last):
            raise Violation(f"END: epoch {doc.epoch} was given up at record {doc.seq}, the log ends at {self.top}")

    def _segment_landed(self, data: bytes) -> None:
        found = msgspec.msgpack.decode(packing.decompress(data, FOREIGN.segment), type=Segment)
        self.archive[codec.digest(data)] = found
        if found.epoch < self.taken and found.opening is None:
            self.late.add(codec.digest(data))
        if found.seq <= self.top:
            self.counts["landed in a hole"] += 1
            return
        self.top, self.last = found.seq, codec.digest(data)
        if found.epoch < self.taken:
            raise Violation(
                f"I2: a record of epoch {found.epoch} stands at {found.seq}, behind an opening of {self.taken}"
            )
        if found.epoch in self.settled:
            raise Violation(
                f"ACT: record {found.seq} of epoch {found.epoch} landed after its owner had given the job up"
            )
        if found.opening is not None:
            self.taken = max(self.taken, found.epoch)
            self.counts[f"opened: {found.opening.cause}"] += 1

    def was_acked(self, hash_: bytes) -> None:
        if hash_ not in self.archive:
            raise Violation("I3: what was acknowledged never landed")
        self.acked.add(hash_)

    def planned(self, run: str, epoch: int, replay: reader.Replay) -> None:
        """An owner begins its recovery on `replay` (R2)."""
        if replay.damage is not None:
            raise Violation(f"DAMAGE: {run} (epoch {epoch}) reads: {replay.damage.why}")
        chain = self.chain(replay.hash)
        self._compare(chain, replay.state, f"{run} (epoch {epoch})")
        if epoch == self.taken:
            self._check_blobs(replay.state, f"{run} (epoch {epoch})")
        seen = frozenset(h for h, _ in chain)
        for uid, hash_ in self.allowed.items():
            if hash_ not in seen and self.archive[hash_].epoch <= epoch:
                raise Violation(f"SEEN: {run} (epoch {epoch}) plans its recovery without the allowed call {uid}")
        if lost := {h for h in self.acked - seen if self.archive[h].epoch <= epoch}:
            raise Violation(f"I3: {run} (epoch {epoch}) plans without acknowledged {self._names(lost)}")
        self.plans.append(Plan(run, epoch, seen))

    def allows(self, run: str, epoch: int, uid: str, hash_: bytes) -> None:
        """`run` tells its agent to go on with a changing tool."""
        self.counts["allowed"] += 1
        if hash_ in self.late:
            raise Violation(f"ZOMBIE: {run} (epoch {epoch}) allows {uid}, recorded behind the opening of {self.taken}")
        if self.timed and self.taken > epoch:
            raise Violation(f"LATE: {run} (epoch {epoch}) allows {uid} after epoch {self.taken} has opened")
        if epoch in self.settled:
            raise Violation(f"ACT: {run} (epoch {epoch}) allows {uid} after it gave the job up")
        for plan in self.plans:
            if plan.epoch > epoch and hash_ not in plan.seen:
                raise Violation(f"SEEN: {run} allows {uid}, but {plan.run} planned its recovery without it")
            if plan.epoch == epoch and plan.run != run:
                raise Violation(f"ACT: {run} and {plan.run} both act in epoch {epoch}")
        self.allowed[uid] = hash_

    def task_allows(self, run: str, epoch: int) -> None:
        """A task of `run` goes on with a changing tool. Its own log is another job's; here its caller's counts."""
        self.counts["task allowed"] += 1
        if self.timed and self.taken > epoch:
            raise Violation(f"TASK: a task of {run} (epoch {epoch}) allows a call after epoch {self.taken} has opened")
        if epoch in self.settled:
            raise Violation(f"TASK: a task of {run} (epoch {epoch}) allows a call after that gave its job up")

    def fenced(self, run: str, epoch: int, why: str) -> None:
        """`run` was told that the job is another's. Is it?"""
        self.counts["fenced"] += 1
        seen = leases.read_lease(self.store, self.keys)
        others = any(s.epoch > epoch or (s.epoch == epoch and s.run != run) for s in self.archive.values())
        doc = seen.doc if seen is not None else None  # judged here: is_mine itself is one of the rules on trial
        mine = doc is not None and (doc.run, doc.epoch, doc.state) == (run, epoch, "held")
        if mine and self.taken <= epoch and not others:
            raise Violation(f"FALSE FENCE: {run} (epoch {epoch}): {why}")

    # --- what must hold of the store at any time

    def check(self) -> reader.Replay:
        found = reader.replay(self.store, self.keys, parallel=1)
        if found.damage is not None:
            raise Violation(f"DAMAGE: {found.damage.why}")
        chain = self.chain(found.hash)
        if lost := self.acked - {h for h, _ in chain}:
            raise Violation(f"I3: acknowledged {self._names(lost)} are in no replay")
        self._compare(chain, found.state, "the store")
        self._check_blobs(found.state, "the store")
        self._check_order(chain)
        return found

    def chain(self, at: bytes) -> list[tuple[bytes, Segment]]:
        """The true log that ends at hash `at`, oldest first."""
        links: list[tuple[bytes, Segment]] = []
        while at != START:
            if at not in self.archive:
                raise Violation("DAMAGE: the log chains to a segment that never landed")
            links.append((at, self.archive[at]))
            at = links[-1][1].prev
        return links[::-1]

    def _check_order(self, chain: list[tuple[bytes, Segment]]) -> None:
        epoch, runs, calls = 0, dict[int, str](), set[int]()
        for _, found in chain:
            for end in (r for r in found.records if isinstance(r, End)):
                fate = self.tools[end.call].fate if end.call in self.tools else "refused"
                if fate in ("background", "cut") or (end.how == "refused") is not (fate == "refused"):
                    raise Violation(f"CLAIM: record {found.seq} ends call {end.call} as {end.how}: {fate}")
            if found.epoch < epoch or (found.epoch > epoch and found.opening is None):
                raise Violation(f"I2: record {found.seq} of epoch {found.epoch} follows epoch {epoch}")
            epoch = found.epoch
            if runs.setdefault(epoch, found.run) != found.run:
                raise Violation(f"I2: {runs[epoch]} and {found.run} both write in epoch {epoch}")
            numbers = [r.call for r in found.records if isinstance(r, Intent)]
            if len(numbers) != len(set(numbers)) or calls & set(numbers):
                raise Violation(f"I8: record {found.seq} uses a call's number again")
            calls |= set(numbers)

    def _compare(self, chain: list[tuple[bytes, Segment]], state: State, who: str) -> None:
        """Replay's state is the reduction of every record that ever was, whatever snapshots and retention did."""
        want = State()
        for _, found in chain:
            want = apply_all(want, found.seq, found.origin, found.records)
        if comparable(want) != comparable(state):
            raise Violation(f"I3: {who} replays another state than the records give")

    def _check_blobs(self, state: State, who: str) -> None:
        stored = {e.key.rpartition("/")[2] for e in self.store.list(self.keys.blobs)}
        if gone := set(referenced_blobs(state)) - stored:
            raise Violation(f"I4: {who} replays {min(gone)}, which is gone")

    def _names(self, hashes: set[bytes]) -> str:
        return ", ".join(sorted(f"record {self.archive[h].seq} (epoch {self.archive[h].epoch})" for h in hashes))


def comparable(state: State) -> object:
    """The state with each file as what it is, not as how it is stored."""
    files = {path: (f.session, f.size, f.sha256) for path, f in state.files.items()}
    return (files, msgspec.structs.replace(state, files={}))

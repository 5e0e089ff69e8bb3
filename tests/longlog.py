"""A long log, written at once as a run writes it: few records a segment, a snapshot after each 200."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from wal_agent.bucket.base import Bucket, Entry, MemoryBucket, Object
from wal_agent.records import AgentStarted, AnyRecord, End, Host, Intent, Opening, Payload, Recovery, RunEnded, Turn
from wal_agent.wal import codec
from wal_agent.wal.codec import START
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseDoc
from wal_agent.wal.state import State, apply

KEYS = Keys("long")
HOST = Host(name="vm-1", boot="b", pidns="1", pid=7, lock="/nowhere")
PAGE = 1000  # keys that a store lists in one request


def records(count: int, runs: tuple[int, ...]) -> Iterator[tuple[int, AnyRecord]]:
    """(epoch, record) of each of `count` segments. `runs`: numbers at which one run has ended and the next one opens;
    the record before is its end, the one behind the recovery of it."""
    epoch = 0
    for seq in range(1, count + 1):
        if seq == 1 or seq in runs:
            epoch += 1
            yield epoch, opening(epoch, seq)
        elif seq + 1 in runs:
            yield epoch, RunEnded(time=float(seq), code=-9, completed=False, cls="killed")
        elif seq - 1 in runs:
            yield epoch, Recovery(time=float(seq), from_epoch=epoch - 1, verdicts=(), told="")
        elif seq == 2:
            yield epoch, AgentStarted(time=2.0, pid=7, session="s", resumed=False)
        elif seq == 3:
            yield epoch, Turn(time=3.0, state="started", session="s")
        elif seq % 2 == 0:
            command = Payload(size=9, data=b'{"a":"b"}')
            yield epoch, Intent(time=float(seq), call=seq, tool="t", input=command, cls="unknown", rule="", session="s")
        else:
            yield epoch, End(time=float(seq), call=seq - 1, how="done", by="hook", result=Payload(size=2, data=b"{}"))


def opening(epoch: int, seq: int) -> Opening:
    return Opening(
        time=float(seq),
        run=f"run-{epoch}",
        epoch=epoch,
        cause="first" if epoch == 1 else "dead",
        host=HOST,
        agent="gemini",
        agent_version="0.61.0",
        version="0",
        workspace="/w",
    )


def write(
    bucket: Bucket,
    count: int,
    runs: tuple[int, ...] = (),
    every: int = 200,
    behind: int = 0,
    parallel: int = 1,
    together: int = 1,
) -> int:
    """A log of `count` records with its lease, which says `behind` segments fewer; `every`: segments to a snapshot.
    `together`: records of a segment, but for openings, which have one of their own. Return the newest segment."""
    state, before = State(), START
    objects: list[tuple[str, bytes]] = []
    epoch = seq = 0
    for epoch, group in _grouped(records(count, runs), together):
        seq += 1
        data = codec.encode_segment(
            codec.Author(KEYS.job, epoch, f"run-{epoch}"),
            seq=seq,
            prev=before,
            time=float(seq),
            records=[codec.encode_record(record)[0] for record in group],
        )
        for record in group:
            state = apply(state, seq, epoch, record)
        before = codec.digest(data)
        objects.append((KEYS.segment(seq), data))
        if every and seq % every == 0:
            made = codec.Snapshot(format=1, job=KEYS.job, seq=seq, hash=before, state=state, time=float(seq))
            objects.append((KEYS.snapshot(seq), codec.encode_snapshot(made)))
    lease = LeaseDoc(
        format=1,
        job=KEYS.job,
        epoch=epoch,
        run=f"run-{epoch}",
        nonce="n",
        state="released",
        host=HOST,
        agent="gemini",
        workspace="/w",
        started=0.0,
        time=0.0,
        ttl=30.0,
        seq=seq - behind,
    )
    objects.append((KEYS.lease, msgspec.json.encode(lease)))
    with ThreadPoolExecutor(parallel) as pool:
        for _ in pool.map(lambda one: bucket.put(*one), objects):
            pass
    return seq


def _grouped(each: Iterator[tuple[int, AnyRecord]], together: int) -> Iterator[tuple[int, list[AnyRecord]]]:
    group: list[AnyRecord] = []
    of = 0
    for epoch, record in each:
        if group and (isinstance(record, Opening) or isinstance(group[0], Opening) or len(group) == together):
            yield of, group
            group = []
        of = epoch
        group.append(record)
    if group:
        yield of, group


class Counted(MemoryBucket):
    """Counts requests as a store does: a listing costs one for each page of keys of which one is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.url = "s3://counted"
        self.requests = 0
        self.read: list[str] = []  # keys

    def get(self, key: str) -> Object:
        self.requests += 1
        self.read.append(key)
        return super().get(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self.requests += 1
        return self._pages(super().list(prefix, start_after))

    def _pages(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        for n, entry in enumerate(entries):
            self.requests += n > 0 and n % PAGE == 0
            yield entry

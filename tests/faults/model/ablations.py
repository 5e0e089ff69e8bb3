"""Each rule of the protocol, taken out of the real code by itself, and the world that shows best why it is there.

R5's two halves (acknowledged only; the hash) repair the same fault each by itself, and so do R4's "the older of two
snapshots" and "keep the segment that a kept snapshot names": such pairs are taken out together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import msgspec

from tests.faults.model import directed
from tests.faults.model.simulate import BLOBS, FREE, TIMED
from tests.faults.model.world import TTL, Shape
from wal_agent.recovery import lease_policy
from wal_agent.supervise import ends
from wal_agent.supervise.lease_keeper import LeaseKeeper
from wal_agent.supervise.tasks import TaskBounds
from wal_agent.wal import blobs, codec, job, reader, retention, writer
from wal_agent.wal import lease as leases
from wal_agent.wal.state import apply_all
from wal_agent.wal.writer import Acked, InFlight, Step, Writer


@dataclass(frozen=True)
class Ablation:
    """`patches`: (where, name, what instead). `expect`: the violations of which one must come,
    in a few seeds of a world of this shape, or in the directed schedule that stands in its place."""

    name: str
    expect: tuple[str, ...]
    world: Shape | Callable[[], None]
    patches: tuple[tuple[Any, str, Any], ...]

    @contextmanager
    def out(self) -> Iterator[None]:
        with ExitStack() as stack:
            for where, name, instead in self.patches:
                stack.enter_context(mock.patch.object(where, name, instead))
            yield


def no_opening(store: Any, made: Any, **more: Any) -> Any:
    """Reopening without an opening segment, unless the owner was taken for dead."""
    at = reader.read_tail(store.bucket, store.keys)
    if made.cause in ("closed", "released", "unlocked") and at.epoch < made.epoch:
        return at
    return real_place(store, made, **more)


real_place = job.place_opening


def place_after_reading(store: Any, *rest: Any, **more: Any) -> Any:
    """R2 out: the log is read for the plan, and then the opening is placed."""
    place_after_reading.read = reader.replay(store.bucket, store.keys, parallel=1)  # type: ignore[attr-defined]
    return real_place(store, *rest, **more)


def what_was_read(*_: Any) -> Any:
    return place_after_reading.read  # type: ignore[attr-defined]


def lone_bytes(found: bytes, found_epoch: int, found_run: str, sent: InFlight, epoch: int, run: str) -> str:
    """R3 out: mine is what the same writer wrote."""
    return "mine" if (found_epoch, found_run) == (epoch, run) else "fenced" if found_epoch > epoch else "damage"


real_step = Writer._step


def forgotten(of: Writer) -> Step:
    """R3 out: what was not decided is dropped, and the next batch takes its seq."""
    step = real_step(of)
    if step == "undecided":
        of._line.leave()
    return step


def encoded_again(of: Writer) -> Step:
    """R3 out: the bytes are made anew for each try; the time in them is another by then."""
    step = real_step(of)
    if step == "undecided":
        of._line.segments[0] = _encoded_again(of._line.segments[0])
    return step


def _encoded_again(sent: InFlight) -> InFlight:
    old = codec.decode_segment(sent.data, job="job", seq=sent.seq)
    raw = [codec.encode_record(r)[0] for r in old.records]
    again = codec.encode_segment(
        codec.Author("job", old.epoch, old.run), seq=sent.seq, prev=old.prev, time=old.time + 1, records=raw
    )
    return msgspec.structs.replace(sent, data=again)


def covered_undecided(of: Writer) -> Acked:
    """R5 out: what is in flight is counted in."""
    acked, flying = of.acked, of._line.first
    if flying is None:
        return acked
    records = codec.decode_segment(flying.data, job="job", seq=flying.seq).records
    return msgspec.structs.replace(
        acked,
        seq=flying.seq,
        hash=codec.digest(flying.data),
        state=apply_all(acked.state, flying.seq, of.epoch, records),
    )


def newest(snapshots: Any) -> int:
    return max(snapshots, default=0)


ONE_SNAPSHOT = ((retention, "boundary", newest), (retention, "is_before", lambda seq, edge: seq <= edge))
"""All behind the newest snapshot goes, and the segment that it names with it."""


def yes(*_: Any) -> bool:
    return True


def no(*_: Any) -> bool:
    return False


def free(**more: Any) -> Shape:
    return replace(FREE, lifecycle=0.0, unlock=0.0, **more)


def timed(**more: Any) -> Shape:
    return replace(TIMED, **more)


real_outcome = ends.outcome_of


def believing(**instead: str) -> Callable[..., str]:
    """I8 out: what the agent says is an end."""
    return lambda status, clean, seen: instead.get(status) or real_outcome(status, clean, seen)


def seeing(**seen: bool) -> Callable[..., str]:
    """I8 out: the run does not look."""
    return lambda status, clean, was: real_outcome(status, clean, msgspec.structs.replace(was, **seen))


PILES = free(
    snapshot=4,
    retain=4,
    beat=1.0,
    age=0.0,
    close=0,
    renew=0,
    hosts=2,
    lost=0.2,
    naps=0.06,
    sleeps=(25.0, 50.0),
    steps=500,
)
"""Snapshots and retention follow each other so fast that a host which naps finds the log gone behind it."""


ABLATIONS = [
    Ablation("R1 every reopening opens", ("I2", "DAMAGE", "I3"), free(close=3), ((job, "place_opening", no_opening),)),
    Ablation("R1 the tail is read", ("I2",), free(close=0, hosts=4), ((job, "may_chain", yes),)),
    Ablation(
        "R1 a taken seq is read",
        ("I2",),
        free(close=0, hosts=4),
        ((job, "resolve_opening_conflict", lambda found, e, sent, mine: "mine" if found == sent else "next"),),
    ),
    Ablation(
        "R1 list behind the opening",
        ("SEEN", "I3", "DAMAGE", "ZOMBIE"),
        directed.opening_into_a_hole,
        ((job, "resolve_later_segment", lambda later, mine: "last"),),
    ),
    Ablation(
        "R1 the epoch is raised",
        ("FALSE FENCE", "LIVE"),
        free(close=3),
        ((leases, "next_epoch", lambda lease, log: max(lease, log, 1)),),
    ),
    Ablation(
        "R1 the epoch is above the log's too",
        ("LIVE", "FALSE FENCE", "I2"),
        replace(free(), lifecycle=0.01),
        ((job, "read_end", lambda *_: reader.Tail()),),
    ),
    Ablation(
        "R2 read after the opening",
        ("SEEN", "I3", "DAMAGE"),
        free(close=0),
        ((job, "place_opening", place_after_reading), (job, "replay_for_plan", what_was_read)),
    ),
    Ablation(
        "R3 one seq, one content",
        ("I3", "ZOMBIE", "SEEN", "ACT"),
        free(late=0.2, lost=0.1),
        ((Writer, "_step", forgotten), (writer, "resolve_conflict", lone_bytes)),
    ),
    Ablation("R3 encoded once", ("DAMAGE",), free(late=0.1, lost=0.1), ((Writer, "_step", encoded_again),)),
    Ablation(
        "R4 keep the opening",
        ("ZOMBIE", "I3", "SEEN"),
        directed.append_where_the_opening_was,
        ((retention, "keeps_opening", no),),
    ),
    Ablation(
        "R4 keep what is before the opening",
        ("ZOMBIE",),
        directed.append_again_where_it_was,
        ((retention, "keeps_before_opening", no),),
    ),
    Ablation(
        "R4 keep what a snapshot names",
        ("DAMAGE", "I3", "SEEN"),
        PILES,
        ((retention, "keeps_named", no), *ONE_SNAPSHOT),
    ),
    Ablation(
        "R5 a snapshot covers what is acknowledged, and is checked",
        ("I3", "DAMAGE", "SEEN"),
        replace(PILES, retain=0),
        ((retention, "covered", covered_undecided), (reader, "is_valid_snapshot", yes)),
    ),
    Ablation(
        "R6 seal before giving the job up",
        ("ACT", "END"),
        free(close=4, late=0.15, lost=0.15),
        ((Writer, "seal", yes), (leases.Lease, "may_allow", yes)),
    ),
    Ablation(
        "the end is that of what was acknowledged",
        ("END",),
        free(close=4, late=0.15, lost=0.15),
        ((job, "last_record", lambda of: (of.acked.seq + 1, of.acked.hash)),),
    ),
    Ablation("R7 the allow has a date", ("LATE",), directed.allow_after_the_takeover, ((leases, "may_allow", yes),)),
    Ablation(
        "R8 the next owner waits after unlock",
        ("LATE",),
        directed.takeover_right_after_unlock,
        ((lease_policy, "unlock_wait", lambda seen, local: 0.0),),
    ),
    Ablation(
        "R4 a blob's name holds the epoch",
        ("I4", "DAMAGE"),
        BLOBS,
        ((blobs, "blob_name", lambda sha256, epoch, round=0: f"{sha256}-1"),),
    ),
    Ablation(
        "R4 what was read before the opening stands on the newest snapshot",
        ("I4", "DAMAGE"),
        replace(BLOBS, crash=0.01, naps=0.12, snapshot=6, retain=6, close=2),
        ((job, "may_continue_replay", yes),),
    ),
    Ablation("R4 only who is past naming loses blobs", ("I4", "DAMAGE"), BLOBS, ((retention, "is_past_epoch", yes),)),
    Ablation(
        "a task's call has the date of its caller's lease",
        ("TASK",),
        directed.task_allows_after_the_takeover,
        ((LeaseKeeper, "seconds_left", lambda of: 10 * TTL),),
    ),
    Ablation(
        "a task asks its caller",
        ("TASK",),
        directed.task_asks_after_the_takeover,
        ((TaskBounds, "until", lambda of: math.inf),),
    ),
    Ablation(
        "I8 a cancelled call stays open", ("CLAIM",), timed(), ((ends, "outcome_of", believing(cancelled="failed")),)
    ),
    Ablation("I8 what runs on stays open", ("CLAIM",), timed(), ((ends, "outcome_of", believing(runs_on="done")),)),
    Ablation("I8 a live process keeps a call open", ("CLAIM",), timed(), ((ends, "outcome_of", seeing(alive=False)),)),
    Ablation("I8 once a stop is asked for", ("CLAIM",), timed(), ((ends, "outcome_of", seeing(stopping=False)),)),
    Ablation(
        "I8 a No is seen as asked", ("CLAIM",), timed(), ((ends, "outcome_of", seeing(asked=True, untouched=True)),)
    ),
    Ablation(
        "R6 closed only if nothing is open",
        ("CLAIM",),
        timed(close=4),
        ((job, "final_lease_state", lambda wanted, unlooked: wanted),),
    ),
    Ablation(
        "R9 what another epoch carried in is set aside",
        ("I8",),
        directed.spool_of_a_copied_disk,
        ((job, "epoch_that_carried", lambda *_: 0),),
    ),
    Ablation("R10 mine whatever the nonce", ("FALSE FENCE",), timed(late=0.1, lost=0.1), ((leases, "is_mine", no),)),
]

HALVES = [
    Ablation("R4 boundary alone", (), PILES, ONE_SNAPSHOT),
    Ablation("R4 named alone", (), PILES, ((retention, "keeps_named", no),)),
    Ablation("R5 acknowledged alone", (), replace(PILES, retain=0), ((retention, "covered", covered_undecided),)),
    Ablation("R5 hash alone", (), replace(PILES, retain=0), ((reader, "is_valid_snapshot", yes),)),
]
"""Of each pair that was taken out together, one half alone: the other one still holds."""

"""What a watcher has acted on, so that nobody acts twice: an object beside its lease, replaced by compare-and-swap.

An act is written down before its command runs. A watcher that dies in between leaves it `began`: nobody can tell
whether it ran, so it is not run again (at most once) and told instead. A command that is known to have failed is tried
again a few times. What is remembered of a job goes when it runs again, here or under another epoch: the next loss is
another matter. Pure but for `Acted`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.base import Bucket, Version
from wal_agent.bucket.decorators import RetryBudget
from wal_agent.clock import Clock
from wal_agent.errors import Conflict, Damaged, Fenced, Newer, NotFound, Unavailable
from wal_agent.fleet.jobs import Job, JobState
from wal_agent.records import FORMAT
from wal_agent.wal.lease import find_format, fresh_nonce

KEY: Final = "fleet-acted.json"  # each object of a job lies in a folder, so no job can have this one
MAX_ACTS = 10_000  # acts that are remembered; no more jobs are acted on
MAX_BYTES = 8 << 20
FIRST_PAUSE = 30.0  # seconds until a command that failed is tried again; doubled each time
LONGEST_PAUSE = 3600.0

Outcome = Literal["began", "done", "failed", "unknown", "undone"]
"""`undone`: never begun, or ended by our own end; it counts for nothing, and is not remembered."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """A command run, or to be run, for a job in one state, as one write of its lease left it (`mark`)."""

    job: str
    epoch: int
    state: JobState
    mark: str = ""
    tries: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    outcome: Outcome = "began"
    at: float = 0.0  # of the newest change (since 1970, by the watcher's clock)

    @property
    def why(self) -> tuple[str, int, JobState, str]:
        return self.job, self.epoch, self.state, self.mark


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal[1] = 1
    nonce: str = ""
    acts: tuple[Act, ...] = ()


_MEMORY = msgspec_compat.of_json(Memory)


# --- pure


def prune_memory(memory: Memory, jobs: Iterable[Job]) -> Memory:
    """Without what jobs have left behind: another epoch, it runs after all, or it is gone."""
    unread = ("damaged", "newer")
    epochs = {job.job: None if job.state in unread else job.epoch for job in jobs if job.state != "running"}
    return with_acts(memory, (a for a in memory.acts if a.job in epochs and epochs[a.job] in (None, a.epoch)))


def choose_jobs(
    memory: Memory, jobs: Iterable[Job], on: Collection[str], now: float, *, most: int, tries: int
) -> list[tuple[Act, Job]]:
    """What to act on now, the longest waiting first, `most` at once: what is new, and what failed and is to be tried
    again."""
    known = {act.why: act for act in memory.acts}
    room = MAX_ACTS - len(known)
    found: list[tuple[Act, Job]] = []
    for job in sorted((j for j in jobs if j.needs_host and j.state in on), key=lambda j: (-j.waits, j.job)):
        if len(found) >= most:
            break
        act = Act(job=job.job, epoch=job.epoch, state=job.state, mark=job.mark, at=now)
        before = known.get(act.why)
        if before is None and room > 0:
            room -= 1
            found.append((act, job))
        elif before is not None and is_due_again(before, now, tries):
            found.append((msgspec.structs.replace(act, tries=before.tries + 1), job))
    return found


def is_due_again(act: Act, now: float, tries: int) -> bool:
    return act.outcome == "failed" and act.tries < tries and now >= act.at + pause_after(act.tries)


def pause_after(tries: int) -> float:
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries - 1, 16)))


def record_acts(memory: Memory, acts: Iterable[Act]) -> Memory:
    """With these acts, each in the place of what was known of it; an `undone` one is taken back."""
    known = {act.why: act for act in memory.acts}
    for act in acts:
        if act.outcome != "undone":
            known[act.why] = act
        elif act.tries > 1:
            known[act.why] = msgspec.structs.replace(act, tries=act.tries - 1, outcome="failed")
        else:
            known.pop(act.why, None)
    return with_acts(memory, known.values())


def orphaned_acts(memory: Memory) -> list[Act]:
    """Begun by a watcher that is gone, which may or may not have run them."""
    return [act for act in memory.acts if act.outcome == "began"]


def with_acts(memory: Memory, acts: Iterable[Act]) -> Memory:
    return msgspec.structs.replace(memory, acts=tuple(acts))


def finish_act(act: Act, code: int | None, now: float) -> Act:
    """`code` None: it was not begun, or we ended it."""
    outcome: Outcome = "undone" if code is None else "failed" if code else "done"
    return msgspec.structs.replace(act, outcome=outcome, at=now)


def decode_memory(data: bytes) -> Memory:
    """Damaged; Newer."""
    try:
        if len(data) > MAX_BYTES:
            raise Damaged(f"{len(data)} bytes")
        if (found := find_format(data)) > FORMAT:
            raise Newer.of(f"{KEY} in the bucket", f"format {found}")
        return _MEMORY.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Damaged) as error:
        raise Damaged(
            f"{KEY} in the bucket is damaged, so it is not known which jobs were acted on.",
            "Delete it: then each job that needs a host now is acted on anew.",
        ) from error


# --- the object


class ResultStore:
    """The memory in the bucket, for one watcher. `now` is what it knows, whether that was saved or not."""

    def __init__(self, bucket: Bucket, clock: Clock, rng: random.Random) -> None:
        self._bucket, self._clock, self._rng = bucket, clock, rng
        self._sent: list[str] = []
        self._version: Version | None = None
        self.now = self._look()

    def save(self, memory: Memory, budget: float = 10.0) -> None:
        """Fenced: another watcher wrote. Unavailable: this may land later, or never; `now` is as before."""
        patience = RetryBudget(self._clock, self._rng, budget)
        while True:
            memory = msgspec.structs.replace(memory, nonce=fresh_nonce(self._rng))
            self._sent = [*self._sent[-99:], memory.nonce]
            try:
                self._version = self._bucket.put(KEY, msgspec.json.encode(memory), if_version=self._version)
            except Unavailable as error:
                patience.pause(error)
                continue
            except Conflict:
                if not self._landed(memory, patience):
                    continue
            self.now = memory
            return

    def _landed(self, memory: Memory, patience: RetryBudget) -> bool:
        """After a conflict: what stands there must be an own write whose answer was lost; this one, or one before."""
        before = self._version
        try:
            stands = self._look()
        except Unavailable as error:
            patience.pause(error)
            return False
        if stands.nonce == memory.nonce:
            return True
        if self._version != before and stands.nonce not in self._sent:
            raise Fenced("Another watcher has taken over.")
        patience.pause(Unavailable(f"The bucket refuses to replace {KEY}, although nobody else does."))
        return False

    def _look(self) -> Memory:
        try:
            found = self._bucket.get(KEY)
        except NotFound:
            self._version = None
            return Memory()
        self._version = found.version
        return decode_memory(found.data)


def name_acts(acts: Sequence[Act]) -> str:
    """ "a (epoch 3), b (epoch 1) and 4 more"."""
    words = [f"{act.job} (epoch {act.epoch})" for act in acts[:3]]
    return ", ".join(words) + (f" and {len(acts) - 3} more" if len(acts) > 3 else "")

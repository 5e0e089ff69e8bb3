"""List the jobs of a bucket and judge each by its lease alone: which runs, which needs a host, which needs a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Damaged, Denied, Newer, UsageError
from wal_agent.records import Host
from wal_agent.recovery.lease_policy import (
    Local,
    classify_stop,
    lease_age,
    may_have_spooled,
    owner_is_dead,
    pause_left,
    paused_until,
    spool_is_here,
)
from wal_agent.redact import redact_head
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease

JobState = Literal["damaged", "newer", "crashed", "due", "released", "unlocked", "running", "paused", "closed"]
"""In the order of who is to look first. `newer`: a newer wal-agent wrote its lease; `crashed`: held, and its owner is
gone; `due`: its pause is over."""
STATES: Final[tuple[JobState, ...]] = get_args(JobState)
MAX_WORDS = 500  # characters of a foreign text
LONGEST_AGE = 1e10  # seconds, whatever a lease says


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`wal-agent fleet ls`. Times are seconds since 1970, ages are seconds; texts are redacted, and foreign."""

    job: str
    state: JobState
    needs_host: bool = False  # it is nobody's, and nobody said that it should stay so
    waits: float = 0.0  # since when a `crashed`, `due` or `released` one is nobody's
    only_on: str = ""  # the host whose disk may hold records that the bucket lacks: no other may carry on
    agent: str = ""
    workspace: str = ""
    folder: str = ""  # the workspace as it stands in the lease, to run in; never told
    host: str = ""
    pid: int = 0
    epoch: int = 0
    started: float = 0.0
    age: float = 0.0  # of the last heartbeat
    ttl: float = 0.0
    phase: str = ""
    phase_age: float = 0.0  # 0: not known
    tool: str = ""
    reason: str = ""
    until: float = 0.0  # when its pause is over, or was
    left: float = 0.0
    record: int = 0
    key: str = ""  # id of the key that the job is encrypted with
    problem: str = ""  # why a `damaged` or `newer` lease cannot be read
    mark: str = ""  # of the newest write of its lease

    @property
    def loss(self) -> tuple[str, int, str]:
        """What is the same until somebody writes the lease: a job that came back and was lost again is another."""
        return self.job, self.epoch, self.mark


def classify_job(seen: StoredLease, local: Local) -> Job:
    """By the store's clock (the lease's own times are by its writer's), and by the locks of this machine where the
    owner was on it."""
    doc, old = seen.doc, lease_age(seen)
    left, until = pause_left(seen), paused_until(seen)
    state: JobState
    waits = 0.0
    if doc.state == "held":
        state = "crashed" if owner_is_dead(seen, local) else "running"
        waits = old if state == "crashed" else 0.0
    elif doc.state == "released":
        state = "paused" if left > 0 else "due" if until > 0 else "released"
        waits = {"paused": 0.0, "due": seen.now - until}.get(state, old)
    else:
        state = doc.state
    only_on = clean_text(doc.host.name) if may_have_spooled(seen) and not spool_is_here(seen, local) else ""
    nobodys = state in ("crashed", "due") or (state == "released" and handed_over(doc.reason))
    return Job(
        job=doc.job,
        state=state,
        needs_host=nobodys,
        waits=max(0.0, waits),
        only_on=only_on if state != "running" else "",
        agent=clean_text(doc.agent),
        workspace=clean_text(doc.workspace),
        folder=doc.workspace,
        host=clean_text(doc.host.name),
        pid=doc.host.pid,
        epoch=doc.epoch,
        started=doc.started,
        age=old,
        ttl=doc.ttl,
        phase=clean_text(doc.phase) if doc.state == "held" else "",
        phase_age=_phase_age(doc.time - doc.since) + old if doc.since and state == "running" else 0.0,
        tool=clean_text(doc.tool),
        reason=clean_text(doc.reason),
        until=until,
        left=left,
        record=doc.seq,
        key=clean_text(doc.key),
        mark=blake2b(doc.nonce.encode(), digest_size=8).hexdigest(),
    )


def job_as_json(job: Job) -> dict[str, Any]:
    """For JSON; all its numbers are finite."""
    told: dict[str, Any] = msgspec.to_builtins(job)
    del told["folder"]
    return told


def handed_over(reason: str) -> bool:
    """Whether a released job's reason says that its machine went away, or had no bucket; any other end was the agent's
    or a person's."""
    return classify_stop(reason) == "handed_over"


def sort_jobs(jobs: Iterable[Job]) -> list[Job]:
    """What needs a host or a person first, the longest waiting of these first; what has ended last."""
    return sorted(jobs, key=lambda j: (STATES.index(j.state), not j.needs_host, not _asks(j), -j.waits, j.job))


def count_states(jobs: Iterable[Job]) -> str:
    """ "2 crashed, 1 due, 37 running"."""
    found = Counter(job.state for job in jobs)
    return ", ".join(f"{found[state]} {state}" for state in STATES if found[state])


def _asks(job: Job) -> bool:
    return job.phase == "awaiting_approval"


def clean_text(text: str) -> str:
    return redact_head(text, MAX_WORDS) if text else ""


def _phase_age(seconds: float) -> float:
    return min(max(0.0, seconds), LONGEST_AGE)


PARALLEL = 32  # requests at once; as many connections are kept


@dataclass(frozen=True, slots=True)
class Reader:
    """A bucket, and this machine, which knows of its own processes whether they live."""

    bucket: Bucket
    here: Host
    spools: Path

    @classmethod
    def of(cls, bucket: Bucket, env: Mapping[str, str]) -> Reader:
        return cls(bucket, this_host(env, Path("/dev/null")), spools_dir(env))

    def all(self) -> list[Job]:
        """Every job, by name; what has no lease, and folders that no job can have, are passed over. Denied: none of
        their leases may be read; who may read some sees the others as damaged."""
        names = sorted(filter(is_job, self.bucket.folders("")))
        near = self.bucket.url.startswith(("file:", "memory:"))  # threads cost more than such a read takes
        found = [
            (n, job) for n, job in prefetch_map(self._look, names, 1 if near else min(PARALLEL, len(names))) if job
        ]
        denied = [job for _, job in found if isinstance(job, Denied)]
        if denied and len(denied) == len(found):
            raise denied[0]
        return [damaged_job(name, job) if isinstance(job, Denied) else job for name, job in found]

    def one(self, name: str) -> Job | None:
        """None where there is no lease."""
        _, job = self._look(name)
        return damaged_job(name, job) if isinstance(job, Denied) else job

    def _look(self, name: str) -> tuple[str, Job | Denied | None]:
        try:
            seen = leases.read_lease(self.bucket, Keys(name))
        except Damaged as error:
            return name, damaged_job(name, error)
        except Newer as error:
            return name, Job(job=name, state="newer", problem=clean_text(str(error)))
        except Denied as error:
            return name, error
        if seen is None:
            return name, None
        return name, classify_job(seen, probe_holder(seen, self.here, self.spools, self.bucket.url))


def damaged_job(name: str, error: Exception) -> Job:
    return Job(job=name, state="damaged", problem=clean_text(str(error)))


def is_job(name: str) -> bool:
    try:
        Keys(name)
    except UsageError:
        return False
    return True

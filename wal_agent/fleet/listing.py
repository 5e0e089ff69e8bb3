"""One look at all jobs of a bucket: one listing of its folders (a request for each 1000), and each one's lease, many at
a time. Logs and blobs are not touched, and no key is needed: a lease is never encrypted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wal_agent.bucket.base import Bucket
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Damaged, Denied, Newer, UsageError
from wal_agent.fleet.jobs import Job, clean, judge
from wal_agent.records import Host
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys

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
        return [unreadable(name, job) if isinstance(job, Denied) else job for name, job in found]

    def one(self, name: str) -> Job | None:
        """None where there is no lease."""
        _, job = self._look(name)
        return unreadable(name, job) if isinstance(job, Denied) else job

    def _look(self, name: str) -> tuple[str, Job | Denied | None]:
        try:
            seen = leases.read_lease(self.bucket, Keys(name))
        except Damaged as error:
            return name, unreadable(name, error)
        except Newer as error:
            return name, Job(job=name, state="newer", problem=clean(str(error)))
        except Denied as error:
            return name, error
        if seen is None:
            return name, None
        return name, judge(seen, probe_holder(seen, self.here, self.spools, self.bucket.url))


def unreadable(name: str, error: Exception) -> Job:
    return Job(job=name, state="damaged", problem=clean(str(error)))


def is_job(name: str) -> bool:
    try:
        Keys(name)
    except UsageError:
        return False
    return True

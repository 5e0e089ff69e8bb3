"""Names of a job's objects inside its bucket. A prefix in the bucket's URL is the bucket's own affair."""

from __future__ import annotations

import re

import msgspec

from wal_agent.errors import UsageError

LONGEST = 100  # characters of a job's name
_JOB = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")
_SEQ = re.compile(r"[0-9]{20}")
_BLOB = re.compile(r"([0-9a-f]{64})(?:-([1-9][0-9]{0,17})(?:-[1-9][0-9]{0,17})?)?")

MAX_SEQ = 10**18  # fits 20 digits and a signed 64-bit integer


def check_job(job: str) -> str:
    """Give `job` back, or raise UsageError when it cannot name a job (and be a part of a bucket key)."""
    if not _JOB.fullmatch(job):
        raise UsageError(
            f"{job!r} cannot name a job.", "Use 1 to 100 of A-Z a-z 0-9 . _ - and do not begin with a dot (--job NAME)."
        )
    return job


class Keys(msgspec.Struct, frozen=True):
    """The keys of one job. Sequence numbers have 20 digits, so that the order of keys is the order of numbers."""

    job: str

    def __post_init__(self) -> None:
        check_job(self.job)

    @property
    def lease(self) -> str:
        return f"{self.job}/lease.json"

    @property
    def log(self) -> str:
        """Prefix of the segments."""
        return f"{self.job}/log/"

    @property
    def blobs(self) -> str:
        """Prefix of the blobs."""
        return f"{self.job}/blobs/"

    @property
    def snapshots(self) -> str:
        """Prefix of the snapshots."""
        return f"{self.job}/snapshots/"

    @property
    def inbox(self) -> str:
        """Prefix of the messages to the job."""
        return f"{self.job}/inbox/"

    @property
    def outbox(self) -> str:
        """Prefix of what the job has published, by subject."""
        return f"{self.job}/outbox/"

    def segment(self, seq: int) -> str:
        return f"{self.log}{seq:020d}"

    def blob(self, name: str) -> str:
        """Key of the blob `name` (see blob_name); ValueError for anything else, e.g. from hostile records."""
        if not _BLOB.fullmatch(name):
            raise ValueError(f"not a blob's name: {name!r}")
        return f"{self.blobs}{name}"

    def snapshot(self, seq: int) -> str:
        return f"{self.snapshots}{seq:020d}"

    @staticmethod
    def seq_of(key: str) -> int | None:
        """The number at the end of a segment's or snapshot's key; None for a stranger's object under our prefix."""
        part = key.rpartition("/")[2]
        return int(part) if _SEQ.fullmatch(part) else None


# --- names of blobs


def blob_name(sha256: str, epoch: int, round: int = 0) -> str:
    """`<sha256>-<epoch>[-<round>]`: no two runs ever create the same name, nor does one run in two of its rounds."""
    return f"{sha256}-{epoch}" + (f"-{round}" if round else "")


def is_blob(name: str) -> bool:
    """False for a stranger's object under our prefix."""
    return _BLOB.fullmatch(name) is not None


def blob_sha256(name: str) -> str:
    return name[:64]


def blob_epoch(name: str) -> int:
    """The epoch of the run that created it; 0 for a name that says none."""
    found = _BLOB.fullmatch(name)
    return int(found[2] or 0) if found else 0

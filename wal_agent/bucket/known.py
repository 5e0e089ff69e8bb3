"""What this machine knows of the buckets that its runs used, so that a disk which is not mounted, or a bucket that was
emptied, is not taken for a new one in which a job begins anew (I3). A folder for each bucket, in the state folder:

buckets/<hash of the URL>/id           the id of the bucket's marker (disk.py), where its kind has one
buckets/<hash of the URL>/jobs/<job>   the newest epoch that a run here had of the job
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from wal_agent.bucket.folder import Tree, sync, temp_file
from wal_agent.errors import Unavailable
from wal_agent.places import state_dir
from wal_agent.plainfile import read_plain

_ID, _JOBS = "id", "jobs"


def known_bucket_id(url: str, env: Mapping[str, str]) -> str:
    """Of the marker that the bucket must have; "" where nothing is known."""
    return _read_text(_bucket_folder(url, env) / _ID)


def known_epoch(url: str, job: str, env: Mapping[str, str]) -> int:
    """The newest epoch that a run of this machine had of the job; 0: it had none."""
    text = _read_text(_bucket_folder(url, env) / _JOBS / job)
    return int(text) if text.isascii() and text.isdigit() else 0


def remember_run(url: str, id: str, job: str, epoch: int, env: Mapping[str, str]) -> None:
    """OSError: the state folder cannot be written."""
    if url.startswith("memory:"):
        return  # it ends with its process
    folder = _bucket_folder(url, env)
    tree = Tree(folder.parent)
    for parts, name, text in (((folder.name,), _ID, id), ((folder.name, _JOBS), job, str(epoch))):
        if not text or _read_text(folder.parent.joinpath(*parts, name)) == text:
            continue
        with tree.open(parts, make=True) as fd, temp_file(fd, text.encode()) as temp:
            os.rename(temp, name, src_dir_fd=fd, dst_dir_fd=fd)
            sync(fd)


def forget_bucket(url: str, job: str | None, env: Mapping[str, str]) -> bool:
    """Forget the job, or the whole bucket; whether anything was known of it. OSError."""
    folder = _bucket_folder(url, env)
    gone = folder if job is None else folder / _JOBS / job
    if not gone.exists():
        return False
    if job is None:
        shutil.rmtree(gone)
    else:
        with suppress(FileNotFoundError):
            gone.unlink()
    return True


def missing_job_error(url: str, job: str, epoch: int) -> Unavailable:
    """For a job that ran here and of which the bucket holds neither lease nor log."""
    command = f"wal-agent doctor --forget --bucket {shlex.quote(url)} --job {job}"
    return Unavailable(
        f"Job {job} has run on this machine (epoch {epoch}), but {url} holds neither its lease nor its log.",
        f"Is the disk mounted, and is it the right bucket? If the job was deleted on purpose: {command}",
    )


def _bucket_folder(url: str, env: Mapping[str, str]) -> Path:
    return state_dir(env) / "buckets" / hashlib.sha256(url.encode()).hexdigest()[:32]


def _read_text(path: Path) -> str:
    return (read_plain(path, 100) or b"").decode("ascii", "replace")
